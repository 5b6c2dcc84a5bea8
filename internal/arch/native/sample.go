package native

import "kprobes.dev/kprobes/internal/arch/amd64"

// SampleCode is what generates the code that decides which traces are kept (arch.Sample).
func SampleCode() any { return amd64.SampleCode() }

// SampleBytes is the size of the table of an arch.Sample.
const SampleBytes = amd64.SampleBytes

package main

import (
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// describe names the machine and the conditions of the run.
func (b *bench) describe() machine {
	m := machine{
		CPU: cpuModel(), CPUs: runtime.NumCPU(), Kernel: kernelRelease(), Workload: "C",
		Rseq: b.s.target.CodegenEnv().HasRseq, Rounds: b.rounds, Calls: b.calls, Slow: b.slow,
	}
	if b.goProgram {
		m.Workload = "Go"
	}
	return m
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "?"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// cpuModel is the name that the kernel shows for the first CPU.
func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "?"
	}
	return cpuField(string(b), "model name")
}

// cpuField finds the first value of a field in the text of /proc/cpuinfo; "?" if it has
// none.
func cpuField(text, field string) string {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == field {
			return strings.TrimSpace(value)
		}
	}
	return "?"
}

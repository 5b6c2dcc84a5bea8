package main

import (
	"os"
	"runtime"
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

// cpuModel is the name that the kernel shows for the first CPU.
func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "?"
	}
	return cpuField(string(b), "model name")
}

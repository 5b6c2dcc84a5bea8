// Package workload is what `kprobe bench` measures on: the same functions, called in tight
// loops, once in C (Sources, for machines with a C compiler) and once in Go assembly, for
// the command to run as a subprocess of itself where there is none.
//
// Both speak one protocol, told at the top of src/bench.c. Both hold a tracepoint written by
// hand, which sets the bar for kprobe's own records.
package workload

import (
	"embed"

	"kprobes.dev/kprobes/internal/cbuild"
)

// Sources holds the C program bench and its tracepoint, and Module, in directory src.
//
//go:embed src
var Sources embed.FS

// BuildC compiles the C program, once, and returns its path. It fails with
// cbuild.ErrNoCompiler where there is no gcc.
func BuildC() (string, error) { return cbuild.Build(Sources, "src", "bench") }

// Module is the source in Sources of a module of C that probes a function of a workload (kprobe insmod).
const Module = "src/module.c"

// Functions are the functions of a workload that `run` takes, by their names in the C
// program; the first instruction of each is of the class that its name says.
var Functions = []string{"bench_lea", "bench_endbr", "bench_push", "bench_nop5", "bench_ret", Clock, "bench_traced"}

// Clock is a function that reads the CPU's counter, and does nothing else.
const Clock = "bench_clock"

// Stacked is a function that `run` takes too: it calls itself StackedCalls times, and then Bottom.
const (
	Stacked      = "bench_deep"
	Bottom       = "bench_bottom"
	StackedCalls = 40
)

// Ends is a function of the C program that `run` takes too: it ends in a jump to Bottom.
const Ends = "bench_ends"

// Asked is a function of the C program that `run` takes too: it makes the system call by which a record asks before
// it reads memory. The Go program has none: one that could change its threads' signal masks would have its
// records ask.
const Asked = "bench_asked"

// Result is the answer to `run`.
type Result struct {
	Func    string  `json:"func"`
	Threads int     `json:"threads"`
	Calls   uint64  `json:"calls"`  // made by all threads together
	Min     float64 `json:"min"`    // ns per call in the fastest batch
	Median  float64 `json:"median"` // ns per call in the median batch of all threads
}

// Gap is the answer to `gap`, which the Go program has: how long it was stopped at most, as a
// thread sees it that the first such command starts and that keeps a CPU busy from then on.
type Gap struct {
	NS int64 `json:"ns"` // the largest gap between two looks at the clock since the command before
}

// Written is the answer to `written`: how many records the tracepoint wrote.
type Written struct {
	Records uint64 `json:"records"`
}

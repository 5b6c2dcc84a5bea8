// Package kprobes breaks into almost any instruction of a running program, runs a
// compiled program there (an event, a counter) and lets the program go on.
//
// A Core is the registry of one target's probes:
//
//	p, err := process.Open(pid) // a child of ours: process.Start, or process.OpenUnwaited
//	t, err := process.Attach(p, nil)
//	core, err := kprobes.Open(t, nil)
//	events, err := core.Add(defs, nil) // all of them, or none and the reason
//	n := core.Poll(func(kprobes.Record) { … })
//	err = core.Close() // everything is as it was
//
// A Core may be used by several goroutines. Nothing of it waits for the probed program
// except in Add, Remove and Close, which stop it for a moment.
package kprobes

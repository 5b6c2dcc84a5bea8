// Package kprobes breaks into almost any instruction of a running program, runs a
// compiled program (an event, a counter) or a handler in Go there, and lets the program go
// on.
//
// # The own process
//
// RegisterKprobe, RegisterKretprobe and RegisterJprobe probe the program that imports the
// package, as the documents of Kprobes say, with handlers in Go:
//
//	p := &kprobes.Kprobe{
//		SymbolName: "main.(*Server).Handle",
//		PreHandler: func(p *kprobes.Kprobe, regs *kprobes.Regs) int { calls.Add(1); return 0 },
//	}
//	err := kprobes.RegisterKprobe(p)
//	…
//	kprobes.UnregisterKprobe(p)
//
// A handler runs in the middle of any instruction: unless its probe is FlagSleepable it must
// not block, nor call what does, as in an interrupt handler (docs/HANDLERS.md). It can not
// register, change or unregister probes.
//
// # Other processes
//
// A Core is the registry of one target's probes. It has the functions above as methods, whose
// handlers run in the tracer while the thread that hit waits, and those for events:
//
//	p, err := process.Open(pid) // a child of ours: process.Start, or process.OpenUnwaited
//	t, err := process.Attach(p, nil)
//	core, err := kprobes.Open(t, nil)
//	events, err := core.Add(defs, nil) // all of them, or none and the reason
//	n := core.Poll(func(h *trace.Hit) { … })
//	err = core.Close(nil) // everything is as it was
//
// A Core may be used by several goroutines. Nothing of it waits for the probed program
// except in what registers, arms, disarms or takes out probes, which stops it for a moment,
// and, for handlers that are running, in what unregisters.
package kprobes

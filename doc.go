// Package kprobes breaks into almost any instruction of a running program, runs a compiled
// program (an event, a counter) or a handler in Go there, and lets the program go on.
//
// # The own process
//
// RegisterKprobe, RegisterKretprobe and RegisterJprobe probe the program that imports the
// package, as Linux's Kprobes are used: no rebuild with other flags, no cgo, no root.
//
//	p := &kprobes.Kprobe{
//		SymbolName: "main.(*Server).Handle",
//		PreHandler: func(p *kprobes.Kprobe, regs *kprobes.Regs) int { calls.Add(1); return 0 },
//	}
//	err := kprobes.RegisterKprobe(p)
//	…
//	kprobes.UnregisterKprobe(p)
//
// A Kprobe stands at any instruction, a Jprobe at a function's entry, whose Entry gets the
// function's own arguments, a Kretprobe at a function's returns. They live from registration
// to unregistration; what they have counted can be read afterwards. A name is that of the
// symbol table, with the package's path: "net/http.(*conn).serve"; functions of a program's
// tests are in "PATH_test.".
//
// It works on linux/amd64, in programs of Go 1.25 and 1.26, static or not, with cgo or
// without, stripped or not. Where the runtime is not what is expected of its version, Self
// and the register functions say so (EOPNOTSUPP), and nothing is changed.
//
// OnCall and OnReturn are for Go functions alone: they take the function itself, or its name, and a handler with its
// parameters and results. Functions lists what can be probed.
//
//	r, err := kprobes.OnReturn((*Server).Handle, func(n int, err error) { … })
//	for f := range core.Functions("main.(*Server).*") { … }
//
// # Handlers
//
// A handler runs in the middle of any instruction. It is atomic unless its probe is
// FlagSleepable: it runs on the thread's system stack, and must not block, print, nor
// call what does, as in an interrupt handler (docs/HANDLERS.md has the list, kprobevet looks
// for it). A sleepable handler is ordinary Go on a goroutine of its own, while the one that
// hit waits for it. Handlers run on several threads at once. A hit within a handler runs no
// handler and is counted as missed. A handler that faults or panics is abandoned, and its
// probe disabled, with the reason in Fault and in the listing, unless a FaultHandler takes it.
//
// # Other processes
//
// A Core is the registry of one target's probes; Self gives that of the own process. It has
// the functions above as methods, whose handlers run here while the thread that hit waits,
// and those for events:
//
//	p, err := process.Open(pid) // a child of this process: process.Start, or process.OpenUnwaited
//	t, err := process.Attach(p, nil)
//	core, err := kprobes.Open(t, nil)
//	events, err := core.Add(defs, nil) // all of them, or none and the reason
//	for h := range core.Hits(ctx) { fmt.Println(h.Event.Name, h.Value("n")) }
//	err = core.Close(nil) // everything is as it was
//
// Hits gives the records with the arguments as Go values; Poll is for who reads at a pace of its own. Histogram gives what
// was counted by keys. Package hitlog writes hits to a logger of log/slog, package trace makes ftrace's lines of them.
//
// The Core of the own process takes events too. It is never closed: remove what was added. Core.Counts tells what an
// event has counted, Event.Form and Event.Place how and where it is armed, Core.Stats how many probes wait, and for what.
//
// Nothing is written behind its owner's back. The functions that register, enable, disable and unregister a Kprobe write its
// Addr and Flags before they return; the fields of an Event never change. Methods tell what changes meanwhile.
//
// # What may be called when
//
// All functions and methods may be called by any goroutine, several at once. A change is made
// under one lock, in one stop of the target's threads, batches in one as a whole; Poll and Stats
// do not wait for it. The change is there when the call returns, or the call returns an error and nothing
// has changed. A removal is never taken back: what could not be taken out counts no more, and the next
// removal and Close try again.
//
//   - From an atomic handler nothing can be registered, enabled, disabled or unregistered:
//     EDEADLK, or without an error to return no effect; nor from a sleepable one, which another
//     goroutine's change may be waiting for. State, NMissed and Fault may be
//     called; they tell what was known last.
//   - One Kprobe that several goroutines register is registered by one of them; the others
//     get EINVAL. Unregistering it twice is no error; the second time only sets Addr to 0.
//   - A Kprobe that is to be registered by its name once more needs Addr set to 0 before.
//   - When an unregister function returns, no handler of the probe runs or will run. It waits
//     for those that do, sleepable ones too: it must not be called with a lock held that such
//     a handler wants.
//   - Disabling waits for them too, but for that of a probe whose handler has gone wrong.
//   - Programs may exit with probes armed, by os.Exit, by a signal or by a crash: files are
//     never changed. Probes are not inherited by what os/exec starts.
//
// # Limits
//
// MaxMaxActive and MaxDataSize; 4096 bytes of arguments and results on the stack for a
// Jprobe; functions of up to 4 MiB; one Jprobe a function; 65,536 probes and events at a
// time in the own process. Not in programs built with -race: atomic handlers (EOPNOTSUPP).
package kprobes

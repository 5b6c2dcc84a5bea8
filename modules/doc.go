// Package modules loads modules of C into a program that probes itself, and into another process: objects that a C compiler has made, as Linux loads them into the
// kernel. A module registers kprobes and kretprobes, whose handlers run at the hit, in the probed program, at the cost of a jump and a few stores. They never
// wait for a goroutine, nor for a tracer.
//
//	object, err := modules.Compile("count", source)
//	table, err := modules.Of(nil) // the program's own process
//	m, err := table.Insert("count", bytes.NewReader(object), "limit=10")
//	for line := range table.Lines(ctx) {
//		fmt.Println(line.Text)
//	}
//	err = m.Remove()
//
// What a module can be, and what it finds there, is said in docs/kprobe-insmod.md: the command kprobe insmod loads the same objects into other processes, and
// kprobe cc compiles them.
//
// # Where a handler runs
//
// The start of a module (module_init) and its end run on a thread of their own, of which the Go runtime does not know: they may take their time, and the garbage collector
// does not wait for them. Handlers run on the thread that hits, at once. In the own process they have a stack of 64 KB, as a goroutine's may have some hundred
// bytes left. While a handler runs its goroutine can not be preempted, and the garbage collector waits for it: a handler has to be short, and to store no pointer
// to what the Go program has allocated. A handler that has run for 10 seconds is ended as if it had faulted.
//
// # Faults
//
// A fault in a handler (SIGSEGV, SIGBUS, SIGFPE, SIGILL) has the fault_handler of its probe called. Unless there is one, and it returns 1, the run ends as if the handler
// had returned 0, the probe is disabled, and the log says so. What is not contained:
// a handler that writes to memory that is not its own, or, before Linux 6.13, overruns its stack; one that jumps to where no code of its module is; a fault while the
// thread blocks the signal, as in functions that the runtime's signal handlers call.
//
// # Programs that take no modules
//
// Importing this package makes the program's own process one that takes modules. A program that does not import it has nothing of them in it.
package modules

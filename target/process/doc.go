// Package process opens another live process on Linux x86-64 as a target of probes: it brings detours, the ring and
// the control block into its memory, patches its code while all its threads stand still, and takes all of that out
// again, also what a tracer that was killed has left.
//
//	p, err := process.Open(pid)         // checks; the process does not notice
//	defer p.Close()
//	t, err := process.Attach(p, nil)    // for kprobes.Open
//
// Package internal/ptrace stops the threads and makes them call the system for us.
package process

// Package watchpoint has the kernel watch memory of a process, or of the own one, for the targets whose threads are those of
// the host.
//
// A watchpoint is a perf event of the kernel's breakpoints (perf_event_open(2), PERF_TYPE_BREAKPOINT): the processor tells the
// kernel of an access, and the kernel writes a sample, with the thread's registers, into memory that the tracer maps. The
// process's memory is not changed, no signal is sent, and the events end with their descriptors: nothing is left when
// the tracer dies.
//
// There is an event for each thread and each CPU. A thread that is made later inherits the events of the one that makes it, and
// the kernel lets inherited events write samples only where an event belongs to one CPU. The target has its threads stand while
// the events are opened (Opening), so that none is made meanwhile that would be watched twice, or not at all. All events of a
// CPU write into one ring, which belongs to an event that counts nothing.
package watchpoint

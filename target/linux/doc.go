// Package linux probes the kernel that runs here by its own kprobes, through tracefs: the
// same definitions, hits and counts as those of other targets, but the kernel parses,
// places and runs the probes (kernel/trace/trace_kprobe.c; Linux 5.10 or later is assumed,
// 6.1 is tested).
//
// A Target makes a trace instance and groups of events of its own, so that it neither sees
// nor disturbs what others trace. Both are named after who holds them: process id, start
// time and pid namespace (Holder), so that List and Detach find what a tracer that was
// killed has left. kprobe_events is opened for appending and never truncated.
//
// Records are read from the kernel's ring itself (per_cpu/cpuN/trace_pipe_raw) with the
// layout that the events' format files tell, not from the text of trace_pipe: that escapes
// nothing, so a string that holds a quote or a line feed can be neither split into
// arguments nor even into lines. A Target needs root.
package linux

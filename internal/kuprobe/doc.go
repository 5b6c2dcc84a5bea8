// Package kuprobe places the kernel's own uprobes: what `kprobe bench` compares with, and an
// independent count for tests.
//
// A kernel uprobe belongs to a file, and acts on every process that maps it. Two engines
// must never be at one place of one file: the kernel's breakpoint would fall into our jump
// and kill the program. So whoever uses this package gives it a copy of the program
// (cbuild.Copy), which nothing else probes.
//
// There are two ways in. Tracefs makes an event by uprobe_events, with fetch arguments, and
// either records it in a ring of its own or only counts. Perf counts through the uprobe PMU
// of perf_event_open, without tracefs and without arguments. Both need CAP_PERFMON or root
// (tracefs: root), and count exactly. A Probe is not safe for use from several goroutines,
// and stays in the kernel until Close, or, made by Perf, until the process ends.
package kuprobe

// Package btf says what the names of a kernel's functions stand for: parameters, results, and the members behind them, by the types
// that the kernel carries (BTF, Documentation/bpf/btf.rst). It follows what kprobe_events does with them (kernel/trace/trace_probe.c,
// Linux 6.12).
//
// The types may be hostile. Nothing here is recursive over them but nested members without a name, up to a bound, and every walk has an
// end: Parse takes time and memory in proportion to the bytes, all else is bounded by constants and by one type's members.
package btf

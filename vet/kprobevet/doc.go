// Package kprobevet finds operations in handlers of kprobes.dev/kprobes that an atomic
// handler must not do: those that end the process, or the handler, because it runs on a
// thread's system stack. docs/HANDLERS.md of that module lists them with the reasons.
//
// Looked at are the functions that stand in the handler fields of a Kprobe, Kretprobe or
// Jprobe, in a composite literal or by an assignment, unless its Flags hold FlagSleepable
// or can not be told, those that are given to OnCall and OnReturn, and what they call in their own package. Calls of interface methods
// and func values, and what other packages' functions do in turn, are not followed: no
// report is no proof.
package kprobevet

// Package autoprobe arms probes in the program that imports it before main starts, as the
// kernel does for its boot parameter kprobe_event:
//
//	import _ "kprobes.dev/kprobes/autoprobe"
//
//	KPROBE_EVENT='p:look,main.lookup,key=$arg1:gostring;r:found,main.lookup,hit=$retval' ./server
//
// Definitions are those of kprobe_events, separated by semicolons, with commas for the spaces;
// each may be a deletion. All events are enabled. What can not be done is told on standard
// error and left out; the program starts in any case.
//
// The records go to the process's own trace instance, trace.Self, whose buffer keeps the
// newest; package debughttp, which imports this one, serves it. Without the variable nothing
// is done. It is ignored where the program was given rights that who started it has not
// (AT_SECURE: set-user-ID, capabilities). Programs that this one starts inherit it.
package autoprobe

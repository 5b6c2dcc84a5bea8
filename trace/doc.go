// Package trace is trace instances: what stands behind the files of tracefs (kprobe_events,
// events/…, trace, trace_pipe, kprobe_profile, error_log, instances), for one target's Core and
// without any files. Package debughttp serves them over HTTP, package tracefs as a file system.
//
//	in := trace.New(core, nil)
//	err := in.Write("p:look lookupKey db=%di\nr:found lookupKey obj=$retval")
//	err = in.Enable("kprobes", "look", true)
//	err = in.WriteTrace(os.Stdout)
//	err = in.Close() // disables and deletes all events; the Core stays open
//
// Events are defined disabled, and then stand nowhere in the target: enabling arms them,
// disabling takes them out again. While any is enabled a goroutine reads the Core's records,
// and nobody else may call the Core's Poll. Records go to a buffer of a bounded size for each CPU,
// in which new ones push out the oldest.
//
// NewInstance makes an instance beside the first one: with the same events, but what is enabled,
// filters, triggers and the buffer are its own. Triggers, and the histograms among them, act when
// the records of their hits are read.
//
// An Instance may be used by several goroutines. Its lock is taken before the Core's. What
// changes events waits for the target, as Core.Add and Core.Remove do.
package trace

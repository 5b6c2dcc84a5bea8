//go:build linux

// Package tracefs mounts a trace instance as files, by FUSE: those that tracefs has for a kernel (kprobe_events, events/…, trace,
// trace_pipe, …), and kprobes/{list,enabled,blacklist} of debugfs. Shell scripts and tools that know those know these.
//
//	m, err := tracefs.Mount(in, "/tmp/t", nil)
//	defer m.Close()
//	err = m.Wait() // until somebody unmounts it
//
// It needs fusermount3 (Debian: package fuse3). Two things are not as in a kernel's: truncate(2) of a file does what opening it with
// O_TRUNC does, and owners and modes can not be changed.
package tracefs

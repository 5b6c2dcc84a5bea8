package main

import (
	"errors"

	"kprobes.dev/kprobes/target/linux"
)

// checkKprobes judges whether the kernel's own kprobes can be had (-k).
func checkKprobes(dir string, err error, off bool) finding {
	const check = "kernel probes"
	switch {
	case errors.Is(err, linux.ErrNoKprobes):
		return fine(check, "%v", err).warn("trace -k, list -k, detach -k and funcs -k do not work here; programs can be probed all the same")
	case errors.Is(err, linux.ErrNoTracefs):
		return fine(check, "tracefs is not mounted").warn("trace -k needs it: mount -t tracefs nodev /sys/kernel/tracing")
	case err != nil:
		return fine(check, "%v", err).warn("trace -k needs root")
	case off:
		return fine(check, "%s/kprobe_events is there, but all kprobes are switched off", dir).
			warn("they are armed, and hit nothing: echo 1 > /sys/kernel/debug/kprobes/enabled")
	}
	return fine(check, "%s/kprobe_events is there (trace -k)", dir)
}

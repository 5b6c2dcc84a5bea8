package qemu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/internal/procfs"
)

// Holder tells who has a machine for its probes. It is nil where nobody has, where that one was killed and its guardian tidies up, and where
// that one is in another pid namespace or another user's.
func Holder(spec Spec) (*procfs.Holder, error) {
	f, err := os.Open(spec.Memory)
	if err != nil {
		return nil, fmt.Errorf("memory of the guest: %w", err)
	}
	defer f.Close()
	has, took := holder(f)
	if has == 0 || has != took {
		return nil, nil
	}
	return procfs.NewHolder(has), nil
}

// holder tells who has the lock on a file, with a process that has it now and the one that took it: another
// than the first where a tracer was killed and its guardian has the lock. Who took it is 0 where that is not told
// any more, and both are 0 where nobody is found: in another pid namespace, or another user's.
//
// /proc/locks would not do. It lists the process that took the lock, and in a pid namespace leaves out
// locks of those that have ended; a number that has been given to another process is not told from the
// first's; and a lock may be missed while others come and go.
func holder(f *os.File) (has, took int) {
	want, err := f.Stat()
	if err != nil {
		return 0, 0
	}
	files, err := filepath.Glob("/proc/[0-9]*/fdinfo/*")
	if err != nil {
		return 0, 0
	}
	for _, info := range files {
		by, ok := lockedBy(info)
		if !ok {
			continue
		}
		fd := strings.Replace(info, "/fdinfo/", "/fd/", 1)
		if st, err := os.Stat(fd); err != nil || !os.SameFile(st, want) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(info, "/proc/%d/", &pid); err != nil {
			continue
		}
		if has, took = pid, by; pid == by {
			return has, took
		}
	}
	return has, took
}

// lockedBy gives the process that has taken the lock of flock(2) on an open file, by its text in /proc.
func lockedBy(info string) (pid int, ok bool) {
	b, err := os.ReadFile(info)
	if err != nil {
		return 0, false // it was closed since, or is not ours to see
	}
	for line := range strings.Lines(string(b)) { // lock: 1: FLOCK ADVISORY WRITE PID FILE 0 EOF (proc_pid_fdinfo(5))
		if w := strings.Fields(line); len(w) == 9 && w[0] == "lock:" && w[2] == "FLOCK" {
			pid, err := strconv.Atoi(w[5])
			return pid, err == nil
		}
	}
	return 0, false
}

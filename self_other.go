//go:build !linux || !amd64

package kprobes

import (
	"runtime"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// attachSelf refuses: probes in the own process are machine code.
func attachSelf() (target.Target, error) {
	return nil, errno.Errorf(unix.EOPNOTSUPP, "a program on %s/%s can not probe itself: linux/amd64 can", runtime.GOOS, runtime.GOARCH)
}

// isSelf says whether a target is the own process.
func isSelf(target.Target) bool { return false }

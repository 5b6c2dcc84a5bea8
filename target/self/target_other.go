//go:build !linux || !amd64

package self

import (
	"runtime"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// Options are the choices of Attach; nil means all defaults.
type Options struct {
	Buffer, Events int // see there
}

// Target is the own process. There is none on this system.
type Target struct{ target.Target }

// Attach refuses: probes in the own process are machine code. The error is EOPNOTSUPP.
func Attach(*Options) (*Target, error) {
	return nil, errno.Errorf(unix.EOPNOTSUPP, "a program on %s/%s can not probe itself: linux/amd64 can", runtime.GOOS, runtime.GOARCH)
}

// EnableModules does nothing here.
func EnableModules() {}

//go:build !linux || !amd64

package workload

import (
	"io"
	"runtime"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Symbols are the names that the functions of Functions have in a Go program. There is none for this
// processor.
var Symbols = map[string]string{}

// Serve refuses: its functions are machine code. The error is EOPNOTSUPP.
func Serve(io.Reader, io.Writer, uint64) error {
	return errno.Errorf(unix.EOPNOTSUPP, "workload: no functions to measure for %s/%s: linux/amd64 has them", runtime.GOOS, runtime.GOARCH)
}

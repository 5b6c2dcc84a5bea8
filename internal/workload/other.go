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

// LargeSymbol would be the name of a function in the large program.
const LargeSymbol = ""

// WriteLarge refuses: the large program is machine code. The error is EOPNOTSUPP.
func WriteLarge(string, int) error { return errOther }

// StartLarge refuses.
func StartLarge(string) (pid int, stop func() error, err error) { return 0, nil, errOther }

// Serve refuses: its functions are machine code. The error is EOPNOTSUPP.
func Serve(io.Reader, io.Writer, uint64) error {
	return errOther
}

var errOther = errno.Errorf(unix.EOPNOTSUPP, "workload: nothing to measure on for %s/%s: linux/amd64 has it", runtime.GOOS, runtime.GOARCH)

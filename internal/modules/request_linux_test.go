package modules

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// A module is told of each failure by its error number.
func TestNumber(t *testing.T) {
	for _, c := range []struct {
		err  error
		want unix.Errno
	}{
		{errno.Errorf(unix.E2BIG, "too much"), unix.E2BIG},
		{fmt.Errorf("here: %w", &symbol.NotFoundError{}), unix.ENOENT},
		{fmt.Errorf("here: %w", &target.BusyError{}), unix.EBUSY},
		{fmt.Errorf("here: %w", ptrace.ErrNoThread), unix.EAGAIN},
		{fmt.Errorf("here: %w", ptrace.ErrStuck), unix.ETIMEDOUT},
		{fmt.Errorf("here: %w", ptrace.ErrNoProcess), unix.ESRCH},
		{fmt.Errorf("here: %w", ptrace.ErrSeccomp), unix.EACCES},
		{errors.New("none"), unix.EINVAL},
	} {
		if got := number(c.err); got != c.want {
			t.Errorf("%v: %v, not %v", c.err, got, c.want)
		}
	}
}

package event

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// TestLogged has the error numbers of refusals, and whether error_log tells of them, as Linux 6.12 answered.
func TestLogged(t *testing.T) {
	for _, c := range []struct {
		in     string
		no     syscall.Errno
		logged bool
	}{
		{"x", syscall.EINVAL, false},
		{"p", syscall.EINVAL, false},
		{"p:g/e", syscall.EINVAL, false},
		{"t:g/e sched_switch", syscall.EINVAL, false},
		{"p " + strings.Repeat("f", maxLine), syscall.EINVAL, false},
		{"-", syscall.EINVAL, false},
		{"-:", syscall.EINVAL, false},
		{"-:/", syscall.ENOENT, false},
		{"-:g/1e", syscall.ENOENT, false},
		{" -:a", syscall.EINVAL, false},
		{"pe f", syscall.EINVAL, true}, // which the kernel takes
		{"p:/e f", syscall.EINVAL, true},
		{"p:g/e f a=@0x10000000000000000", syscall.ERANGE, true},
	} {
		_, err := Parse(c.in)
		var bad *Error
		if !errors.As(err, &bad) || bad.Errno() != c.no || bad.Logged() != c.logged {
			t.Errorf("%.60q: %v, want %v, logged %t", c.in, err, c.no, c.logged)
		}
	}
	gone := (&Def{Text: "p f"}).Refuse(BadProbeAddr, 2, "", syscall.ENOENT)
	if gone.Errno() != syscall.EINVAL || !errors.Is(gone, syscall.ENOENT) {
		t.Errorf("%v: %v", gone, gone.Errno())
	}
}

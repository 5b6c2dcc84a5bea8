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
		{"pe", syscall.EINVAL, false},
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

// TestFilterErrno has the error numbers of filters, as Linux 6.12 answered.
func TestFilterErrno(t *testing.T) {
	for filter, want := range map[string]syscall.Errno{
		"(u == 7": syscall.ENOENT, "u == 7)": syscall.EPERM, `s == "x`: syscall.ESRCH, "()": syscall.EINVAL, "&&": syscall.EPERM, "== 7": syscall.EPERM,
		"&& u == 7": syscall.EPERM, "u == 7 u == 8": syscall.EPERM, "u": syscall.EINVAL, "nosuch == 7": syscall.EINVAL, "u == x": syscall.EINVAL,
	} {
		_, err := ParseFilter(filter, oneField{})
		var bad *FilterError
		if !errors.As(err, &bad) || bad.Errno() != want || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%q: %v, want %v", filter, err, want)
		}
	}
}

// oneField is a scope with a number u.
type oneField struct{}

func (oneField) Field(name string) (FilterField, bool) {
	return FilterField{Kind: FieldArg, Size: 4}, name == "u"
}

func (oneField) Function(string, uint64) (start, end uint64, ok bool) { return 0, 0, false }

package linux

import (
	"errors"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/event"
)

// What the kernel's file shows of a filter that was refused is told in its words.
func TestRefusedFilter(t *testing.T) {
	for _, c := range []struct {
		shown string
		code  event.FilterCode // FilterErrno: a text that is not known, or none
		want  string
	}{
		{"a > 3 && b\n         ^\nparse_error: Field not found\n", event.FilterFieldNotFound, `filter "a > 3 && b", column 10: Field not found`},
		{"a > 3 && b\n  ^\nparse_error: Of a later kernel\n", event.FilterErrno, `filter "a > 3 && b", column 3: Of a later kernel: invalid argument`},
		{"a > 3 && b\nError: (-12)\n", event.FilterErrno, `filter "a > 3 && b": the kernel gives no reason: invalid argument`},
		{"", event.FilterErrno, `filter "a > 3 && b": the kernel gives no reason: invalid argument`},
	} {
		err := refusedFilter("a > 3 && b", c.shown, syscall.EINVAL)
		var bad *event.FilterError
		if errors.As(err, &bad) != (c.code != event.FilterErrno) || bad != nil && bad.Code != c.code || err.Error() != c.want || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%q: %v, want %s", c.shown, err, c.want)
		}
	}
}

package ptrace

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A wait of ours for a child of this process would take a stop for its end: such a child is not
// stopped unless the caller says that nothing waits.
func TestOwnChild(t *testing.T) {
	r := run(t, build(t, "live"), "2")
	p, err := Open(r.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.ReadMem(p.Image().StartStack, make([]byte, 8)); err != nil {
		t.Errorf("a child of ours can not be read: %v", err)
	}
	_, stopErr := p.Stop(nil)
	for _, err := range []error{stopErr, p.Stoppable()} {
		if !errors.Is(err, ErrChild) || !errors.Is(err, unix.ECHILD) || !strings.Contains(err.Error(), "process.Start") {
			t.Errorf("a child of ours: %v, want ErrChild and what to do instead", err)
		}
	}
	untouched(t, p)

	p, err = OpenUnwaited(r.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 10 {
		release(t, stop(t, p))
	}
	r.Fine()
}

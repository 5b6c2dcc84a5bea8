//go:build !race

package kprobes_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

// The own process has no watchpoints, and says what to do instead.
func TestSelfWatch(t *testing.T) {
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	d, err := event.Parse("w:timed w@" + selfPrefix + "timedInside")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := core.Add([]*event.Def{d}, nil); !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "probe the instructions") {
		t.Errorf("%v, want EOPNOTSUPP and what to do", err)
	}
}

package trace

import (
	"testing"
)

func TestComm(t *testing.T) {
	now := map[int]string{1: "one", 2: "two\x1b[1m"}
	asked := 0
	n := newNames(nil, func(tid int) string { asked++; return now[tid] })
	hits := func(tids ...int) {
		n.begin()
		for _, tid := range tids {
			n.saw(tid)
		}
		n.look()
	}
	is := func(tid int, want string) {
		t.Helper()
		if got := n.Comm(tid); got != want {
			t.Errorf("thread %d is %q, not %q", tid, got, want)
		}
	}
	hits(1, 2, 3, 1, 2)
	is(1, "one")
	is(2, "two?[1m")
	is(3, noComm)
	is(4, noComm)
	if asked != 3 {
		t.Errorf("%d look-ups", asked)
	}
	now[1], now[2] = "another", ""
	for tid, c := range n.comm {
		c.at = c.at.Add(-2 * commAge) // as if that time had passed
		n.comm[tid] = c
	}
	hits(1, 2)
	is(1, "another")
	is(2, "two?[1m") // it is gone
	for tid := range 2 * maxComms {
		n.saw(100 + tid)
	}
	if len(n.comm) > maxComms {
		t.Errorf("%d names are kept", len(n.comm))
	}
}

package trace

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestErrorLog(t *testing.T) {
	var l ErrorLog
	for i := range 10 {
		l.Add(uint64(i)*1e9+5000, "x: error: y\n  Command: z\n           ^\n")
	}
	want := ""
	for _, at := range []string{"    2", "    3", "    4", "    5", "    6", "    7", "    8", "    9"} {
		want += "[" + at + ".000005] x: error: y\n  Command: z\n           ^\n"
	}
	if d := cmp.Diff(want, l.String()); d != "" {
		t.Error(d)
	}
	l.Clear()
	if s := l.String(); s != "" {
		t.Errorf("after Clear: %q", s)
	}
}

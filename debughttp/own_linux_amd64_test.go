package debughttp

import (
	"net/http/httptest"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/hit"
)

// probed is what the test of the own process probes.
//
//go:noinline
func probed(n int) int { return n + 1 }

// A program probes itself through its own handler.
func TestOwnProcess(t *testing.T) {
	t.Setenv(TokenVar, secret)
	srv := httptest.NewServer(Handler())
	t.Cleanup(srv.Close)
	s := &site{t: t, url: srv.URL + Prefix}
	s.post("kprobe_events", "p:entry kprobes.dev/kprobes/debughttp.probed n=$arg1\nr:exit kprobes.dev/kprobes/debughttp.probed v=$retval")
	s.post("events/enable", "1")
	t.Cleanup(func() {
		s.post("events/enable", "0")
		s.post("kprobe_events", "-:entry\n-:exit")
		s.is("kprobe_events", "")
	})
	const calls = 1000
	for i := range calls {
		if probed(i) != i+1 {
			t.Fatalf("probed(%d) is wrong", i)
		}
	}
	s.is("kprobe_profile", hit.ProfileLine("entry", calls, 0)+hit.ProfileLine("exit", calls, 0))
	out := s.get("trace")
	for _, want := range []string{": entry: (kprobes.dev/kprobes/debughttp.probed+0x0/0x", " n=0x3e7\n", " v=0x3e8\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("the trace has no %q:\n%.1000s", want, out)
		}
	}
}

package conformance

import (
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// add arms definitions.
func (env *Env) add(t *testing.T, texts ...string) []*kprobes.Event {
	t.Helper()
	var defs []*event.Def
	for _, text := range texts {
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	evs, err := env.Core.Add(defs, nil)
	if err != nil {
		t.Fatal(err)
	}
	return evs
}

// records reads until there are n, and gives the arguments of each by its event's name.
func (env *Env) records(t *testing.T, n int) map[string][]fetch.Value {
	t.Helper()
	out := map[string][]fetch.Value{}
	for end := time.Now().Add(time.Minute); len(out) < n && time.Now().Before(end); time.Sleep(time.Millisecond) {
		env.Core.Poll(func(h *hit.Hit) {
			vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, "")
			if err != nil || out[h.Event.Name] != nil {
				t.Errorf("%s: a second record, or %v", h.Event.Name, err)
			}
			out[h.Event.Name] = vs
		})
	}
	if len(out) != n {
		t.Fatalf("records %v, want %d", out, n)
	}
	return out
}

// testTrace is the kernel's test of kprobe_events at boot.
func testTrace(t *testing.T, env *Env) {
	sym := env.Symbol(Sum6)
	evs := env.add(t, "p:testprobe "+sym+" $stack $stack0 +0($stack)", "r:testprobe2 "+sym+" $retval")
	if got := env.Call(Sum, 0); got != 21 {
		t.Errorf("the target returns %d, want 21", got)
	}
	got := env.records(t, 2)
	if vs := got["testprobe"]; vs[1].Num != vs[2].Num || vs[0].Num == 0 {
		t.Errorf("$stack, $stack0 and +0($stack) are %v", vs)
	}
	if vs := got["testprobe2"]; vs[0].Num != 21 {
		t.Errorf("$retval is %v, want 21", vs)
	}
	for _, e := range evs {
		if n := env.Core.Counts(e); n.Hits != 1 || n.Read != 1 {
			t.Errorf("%s: %+v, want one hit", e.Name, n)
		}
	}
	if err := env.Core.Remove(evs); err != nil {
		t.Error(err)
	}
	if got := env.Call(Sum, 0); got != 21 {
		t.Errorf("the target returns %d after the probes are gone, want 21", got)
	}
}

// testGenerated is the kernel's test of definitions that a program makes.
func testGenerated(t *testing.T, env *Env) {
	sym := env.Symbol(Target)
	evs := env.add(t, "p:gen_kprobe_test "+sym+" dfd=%ax filename=%dx flags=%cx mode=+4($stack)", "r:gen_kretprobe_test "+sym+" $retval")
	const v = 3 * 1234
	env.Call(Target, v)
	if vs := env.records(t, 2)["gen_kretprobe_test"]; vs[0].Num != v/3 {
		t.Errorf("$retval is %v, want %d", vs, v/3)
	}
	if err := env.Core.Remove(evs); err != nil {
		t.Error(err)
	}
}

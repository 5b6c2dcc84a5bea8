package guest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testguest"
)

// TestDuration compares the duration of calls in a guest's kernel with the times of records that are made before and after its clock is
// read, at the entry and at the return. The times of records keep within the guest's tick, which comes late where its vCPU waits: calls
// are spread over ticks, and most fit.
func TestDuration(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	var defs []*event.Def
	for _, text := range []string{"p:before do_sys_openat2", "r:timed do_sys_openat2 ns=$duration", "p:after do_sys_openat2", "r:early do_sys_openat2 $retval"} {
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	slow, err := event.Parse("r:slow do_sys_openat2 ns=$duration")
	if err != nil {
		t.Fatal(err)
	}
	slow.Filter = "ns > 100000000000" // by the vCPU: none is as slow
	evs, err := p.core.Add(append(defs, slow), nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		p.g.Hit("open", 10, 0)
		p.poll()
	}
	type call struct{ before, after, early uint64 }
	open := map[int][]call{} // of a thread, the innermost last
	calls, fit := 0, 0
	var other []string
	for i := range p.hits {
		h := &p.hits[i]
		c := open[h.TID]
		if h.Event.Name == "before" {
			open[h.TID] = append(c, call{before: h.Nanos})
			continue
		}
		if len(c) == 0 {
			continue // it began before the probes
		}
		last := &c[len(c)-1]
		switch h.Event.Name {
		case "after":
			last.after = h.Nanos
		case "early":
			last.early = h.Nanos
		case "timed":
			ns, n := duration(t, h), last
			if slack := ns/500 + 1000; ns+slack >= n.early-n.after && ns <= h.Nanos-n.before+slack {
				fit++
			} else {
				other = append(other, fmt.Sprintf("%d ns, by the records %d to %d", ns, n.early-n.after, h.Nanos-n.before))
			}
			open[h.TID] = slices.Delete(c, len(c)-1, len(c))
			calls++
		default:
			t.Errorf("%s has passed its filter", h.Event.Name)
		}
	}
	if calls < 100 || fit < calls*2/3 {
		t.Errorf("%d calls, of which %d fit; the others: %s", calls, fit, strings.Join(other, "; "))
	}
	if n := p.core.Counts(evs[4]); n.Filtered != n.Hits || n.Hits < 100 {
		t.Errorf("%+v", n)
	}
}

// duration is the only argument of a hit.
func duration(t *testing.T, h *kprobes.Hit) uint64 {
	t.Helper()
	vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, "")
	if err != nil || len(vs) != 1 {
		t.Fatalf("%v %v", vs, err)
	}
	return vs[0].Num
}

package engine

import (
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/testprog"
)

// TestBudgetProcess exceeds budgets in a process while others read, list and arm events again: at each time the events are disabled with the
// reason, or have their budgets; and what was read, lost and over are all hits.
func TestBudgetProcess(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "work"), "2")
	c := attached(t, prog.PID)
	var defs []*event.Def
	for _, text := range []string{"p:plain f_six a=%di", "r:ret f_ptr v=$retval", "f:all f_s* n=$arg2:u64"} {
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	evs, err := c.Add(defs, &AddOptions{Budget: Budget{Hits: 500, Nanos: 1e9}})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(c.budgets.given); n != 3 || len(evs) != 5 {
		t.Fatalf("%d budgets of %d events: those of a pattern of f have one", n, len(evs))
	}
	read := map[string]uint64{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				c.Poll(func(h *hit.Hit) { read[h.Event.Name]++ })
				if err := c.List(io.Discard); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range 3 {
		changes := c.Exceeded()
		for end := time.Now().Add(time.Minute); ; {
			if n := prog.Counts("go 5000"); n["bad"] != 0 {
				t.Fatalf("%v", n)
			}
			over := 0
			for _, e := range evs {
				if why := e.Exceeded(); why != nil {
					if tactic, form := e.Form(); !errors.Is(why, unix.EDQUOT) || tactic != "" || form != why {
						t.Fatalf("%s: %v, %q: %v", e.Name, why, tactic, form)
					}
					over++
				}
			}
			if over == len(evs) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%d of %d events are disabled", over, len(evs))
			}
		}
		if n := c.Exceeded(); n != changes+3 {
			t.Errorf("%d changes, want 3", n-changes)
		}
		if err := c.SetEnabled(true); err != nil {
			t.Fatal(err)
		}
		for _, e := range evs {
			if tactic, why := e.Form(); tactic != "jump" || why != nil || e.Exceeded() != nil {
				t.Errorf("%s: %q: %v", e.Name, tactic, why)
			}
		}
	}
	close(stop)
	wg.Wait()
	if err := c.Close(func(h *hit.Hit) { read[h.Event.Name]++ }); err != nil {
		t.Error(err)
	}
	sums := map[string]Counts{}
	for _, e := range evs {
		n, s := c.Counts(e), sums[e.Name]
		s.Hits, s.Read, s.Lost, s.Over, s.Missed, s.Unwound = s.Hits+n.Hits, s.Read+n.Read, s.Lost+n.Lost, s.Over+n.Over, s.Missed+n.Missed, s.Unwound+n.Unwound
		sums[e.Name] = s
	}
	for name, n := range sums {
		if n.Read != read[name] || n.Hits != n.Read+n.Lost+n.Over || n.Read < 3*500 || n.Over == 0 || n.Missed+n.Unwound != 0 {
			t.Errorf("%s: %+v, %d read", name, n, read[name])
		}
	}
}

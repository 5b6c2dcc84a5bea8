package kprobes_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// heldUp is a process whose changes wait once it is asked for: changing says that one has begun, and
// goOn lets it go on.
type heldUp struct {
	*process.Target
	ask            chan struct{}
	changing, goOn chan struct{}
}

func (h *heldUp) Commit(c *target.Change) error {
	select {
	case <-h.ask:
		close(h.changing)
		<-h.goOn
	default:
	}
	return h.Target.Commit(c)
}

// Records are read while a change of probes goes on: it may have to wait for a thread, and the ring
// would overflow.
func TestReadingNeverWaitsForAChange(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "work"), "4")
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tg, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	held := &heldUp{Target: tg, ask: make(chan struct{}, 1), changing: make(chan struct{}), goOn: make(chan struct{})}
	c, err := kprobes.Open(held, nil)
	if err != nil {
		t.Fatal(err)
	}
	add := func(text string) ([]*kprobes.Event, error) {
		d, err := event.Parse(text)
		if err != nil {
			return nil, err
		}
		return c.Add([]*event.Def{d}, nil)
	}
	evs, err := add("p:seen f_lea")
	if err != nil {
		t.Fatal(err)
	}
	held.ask <- struct{}{}
	added := make(chan error, 1)
	go func() {
		_, err := add("r:later f_lea")
		added <- err
	}()
	<-held.changing

	before := prog.Counts("count")["f_lea"]
	want := prog.Counts("go 50")["f_lea"] - before
	if want == 0 {
		t.Fatal("the program has not called f_lea")
	}
	read := make(chan uint64)
	go func() {
		n := uint64(0)
		for n < want {
			c.Poll(func(h *hit.Hit) {
				if h.Event.Name == "seen" {
					n++
				}
			})
			if s := c.Stats(); s.Probes != 1 { // neither does this
				t.Errorf("%+v: the event that is being added is not there yet", s)
			}
		}
		read <- n
	}()
	select {
	case n := <-read:
		if n != want {
			t.Errorf("%d records were read during the change, the program counts %d calls", n, want)
		}
	case <-time.After(time.Minute):
		t.Error("no records are read while a change goes on")
	}
	close(held.goOn)
	if err := <-added; err != nil {
		t.Error(err)
	}
	if s := c.Stats(); s.Probes != 2 {
		t.Errorf("%+v, want two events", s)
	}
	if err := c.Close(nil); err != nil {
		t.Error(err)
	}
	if s := c.Stats(); s.Probes != 2 {
		t.Errorf("%+v: Stats tells what was so before Close", s)
	}
	if n := c.Counts(evs[0]); n.Hits != want || n.Read != want {
		t.Errorf("counts are %+v, want %d hits", n, want)
	}
}

// closing is a process that says when all is out of it, before the stop ends in which that was done.
type closing struct {
	*process.Target
	out func()
}

func (c *closing) Capabilities() target.Capabilities {
	can := c.Target.Capabilities()
	can.Sequencer = c
	return can
}

func (c *closing) CloseStopped() {
	c.Target.CloseStopped()
	c.out()
}

// The ring goes out of the process while somebody polls: what it holds is read all the same, each record once, by Poll or by
// Close.
func TestReadingWhileTheRingGoes(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "work"), "4")
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tg, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	held := &closing{Target: tg}
	c, err := kprobes.Open(held, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := event.Parse("p:seen f_lea %di")
	if err != nil {
		t.Fatal(err)
	}
	evs, err := c.Add([]*event.Def{d}, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := prog.Counts("count")["f_lea"]
	want := prog.Counts("go 50")["f_lea"] - before
	polled, closed := uint64(0), uint64(0)
	held.out = func() {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", prog.PID))
		if err != nil || strings.Contains(string(maps), "kprobes:") {
			t.Errorf("memory is left in the process: %v", err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Poll(func(*hit.Hit) { polled++ })
		}()
		<-done
	}
	if err := c.Close(func(*hit.Hit) { closed++ }); err != nil {
		t.Fatal(err)
	}
	if polled == 0 || polled+closed != want {
		t.Errorf("%d records were read by Poll and %d by Close, the program counts %d calls", polled, closed, want)
	}
	if n := c.Counts(evs[0]); n.Hits != want || n.Read != want || n.Lost != 0 {
		t.Errorf("counts are %+v, want %d hits", n, want)
	}
}

package kprobes_test

import (
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target"
	"kprobes.dev/kprobes/target/process"
	"kprobes.dev/kprobes/trace"
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
			c.Poll(func(h *trace.Hit) {
				if h.Event.Name == "seen" {
					n++
				}
			})
			c.Pending() // neither does this
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
	if err := c.Close(nil); err != nil {
		t.Error(err)
	}
	if n := c.Counts(evs[0]); n.Hits != want || n.Read != want {
		t.Errorf("counts are %+v, want %d hits", n, want)
	}
}

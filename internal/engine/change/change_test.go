package change_test

import (
	"cmp"
	"errors"
	"slices"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/engine/change"
	"kprobes.dev/kprobes/internal/target"
)

func sites(addrs ...uint64) (out []*target.Site) {
	for _, a := range addrs {
		out = append(out, &target.Site{Addr: a})
	}
	return out
}

// A target that leaves out a change has it Blocked, and the rest Committed. What was made is not asked for again; the next
// attempt forgets why a change was left out.
func TestStates(t *testing.T) {
	must := &change.Change{Add: sites(1), Remove: sites(2), Whole: true}
	may, free, none := &change.Change{Add: sites(3)}, &change.Change{Remove: sites(4)}, &change.Change{}
	cs := []*change.Change{must, may, free, none}
	all, work := change.All(slices.Values(cs), nil, true)
	if !work || !all.Once || len(all.Add) != 1 || len(all.Remove) != 1 || len(all.Groups) != 2 {
		t.Fatalf("%+v, work %v", all, work)
	}
	why := errors.New("a thread is there")
	all.Groups[0].Blocked = why
	made := 0
	for _, c := range cs {
		if c.Commit() {
			made++
		}
	}
	if made != 3 || must.State() != change.Committed || free.State() != change.Committed || none.State() != change.Committed {
		t.Errorf("%d made: %v %v %v", made, must.State(), free.State(), none.State())
	}
	if may.State() != change.Blocked || may.Why() != why {
		t.Errorf("what was left out is %v, because of %v", may.State(), may.Why())
	}
	all, work = change.All(slices.Values(cs), nil, false)
	if !work || len(all.Add)+len(all.Remove) != 0 || len(all.Groups) != 1 || all.Groups[0].Add[0].Addr != 3 || may.State() != change.Planned {
		t.Errorf("again: %+v, work %v, state %v", all, work, may.State())
	}
	if !may.Commit() || may.Commit() || may.State() != change.Committed {
		t.Error("a change is committed once")
	}
	if _, work = change.All(slices.Values(cs), nil, false); work {
		t.Error("there is work where all is made")
	}
	if _, work = change.All(slices.Values(cs), func() error { return nil }, false); !work {
		t.Error("what is to be done in the stop is no work")
	}
}

// A change that must be made is never left out, whatever was noted of it before.
func TestWholeIsNotBlocked(t *testing.T) {
	c := &change.Change{Add: sites(1)}
	c.Block(errors.New("a thread is there"))
	if c.State() != change.Blocked {
		t.Errorf("state %v", c.State())
	}
	if c.Whole = true; c.State() != change.Planned || c.Why() != nil {
		t.Errorf("state %v, because of %v", c.State(), c.Why())
	}
}

// A function waits from when it was queued first, for what was in the way last.
func TestQueue(t *testing.T) {
	var q change.Queue[int]
	if q.Get(7) != nil || q.Len() != 0 {
		t.Error("an empty queue has something")
	}
	first, last := errors.New("first"), errors.New("last")
	q.Put(7, first)
	since := q.Get(7).Since
	q.Put(3, first)
	q.Put(7, last)
	if w := q.Get(7); w.Why != last || w.Since != since || q.Len() != 2 {
		t.Errorf("%+v, %d wait", w, q.Len())
	}
	if got := q.Functions(cmp.Compare[int]); !slices.Equal(got, []int{3, 7}) {
		t.Errorf("%v wait", got)
	}
	q.Remove(3)
	if q.Get(3) != nil || q.Len() != 1 {
		t.Error("what was taken out waits")
	}
	if q.Clear(); q.Len() != 0 {
		t.Error("the queue is not empty")
	}
}

// The pauses double up to their bound, and begin anew when something is queued.
func TestPauses(t *testing.T) {
	var q change.Queue[int]
	p := q.Begin()
	for range 20 {
		n := q.Next()
		if n != min(2*p, 2*time.Second) {
			t.Fatalf("%v after %v", n, p)
		}
		p = n
	}
	if p != 2*time.Second || q.Begin() != 20*time.Millisecond {
		t.Errorf("the last pause is %v", p)
	}
}

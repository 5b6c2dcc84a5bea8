package instances_test

import (
	"encoding/binary"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/instances"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

// fake is a target that is a table of instances.
type fake struct {
	running, left map[int]int // instances by event: of calls in progress, and of those that were left
	// busy: a thread is in code that was taken out. It leaves after so many changes if leaves is not 0.
	busy    bool
	leaves  int
	crowded bool
	own     bool
	took    time.Duration // what Tally takes
	err     error         // of each method

	ring    *ring.Ring
	mem     []byte // the ring's
	commits int
	tallies int
	asked   int // calls of Instances
	reaps   []*target.Reap
	at      []time.Duration // when, since the start
	start   time.Time
	pools   []*arch.Pool // that were given back
}

func newFake() *fake {
	return &fake{running: map[int]int{}, left: map[int]int{}, start: time.Now()}
}

func (f *fake) Capabilities() target.Capabilities {
	return target.Capabilities{
		Reaper: f, Tallier: f, Own: f.own,
		Idle:    func() bool { return !f.busy },
		EndPool: func(p *arch.Pool) { f.pools = append(f.pools, p) },
	}
}

func (f *fake) Ring() *ring.Ring { return f.ring }

func (f *fake) Commit(*target.Change) error {
	f.commits++
	if f.commits == f.leaves {
		f.busy = false
	}
	return f.err
}

func (f *fake) Instances() (active, unwound map[int]int, err error) {
	f.asked++
	if f.err != nil {
		return nil, nil, f.err
	}
	return f.running, f.left, nil
}

func (f *fake) Tally(n map[int]int) error {
	f.tallies++
	time.Sleep(f.took)
	for id, k := range f.running {
		n[id] += k
	}
	for id, k := range f.left {
		n[id] += k
	}
	return f.err
}

func (f *fake) Crowded() bool { return f.crowded }

// Reap reclaims as targets do. An error comes after what it has reclaimed.
func (f *fake) Reap(r *target.Reap) error {
	r.Active, r.Unwound, r.Whole = map[int]int{}, map[int]int{}, true
	f.reaps, f.at = append(f.reaps, r), append(f.at, time.Since(f.start))
	take := func(from, to map[int]int, id int) {
		if n := from[id]; n > 0 {
			to[id] = n
			delete(from, id)
		}
	}
	for _, id := range r.Live {
		if r.Left && !r.Ended[id] {
			take(f.left, r.Unwound, id)
		}
	}
	for id := range r.Ended {
		if f.busy {
			r.Whole = r.Whole && f.running[id]+f.left[id] == 0
			continue
		}
		take(f.left, r.Unwound, id)
		take(f.running, r.Active, id)
	}
	return f.err
}

// bare is a target that can do nothing beyond target.Target.
type bare struct{ *fake }

func (bare) Capabilities() target.Capabilities { return target.Capabilities{} }

// withRing gives the target a ring for so many events.
func (f *fake) withRing(t *testing.T, events int) {
	cfg := ring.Config{CPUs: 1, Events: events, LockedOnly: true}
	l, err := ring.NewLayout(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.mem = make([]byte, l.Size())
	if f.ring, err = ring.On(f.mem, cfg); err != nil {
		t.Fatal(err)
	}
}

// miss counts n entries that find no instance.
func (f *fake) miss(id, n int) {
	b := f.mem[f.ring.ShardOff(0)+f.ring.CounterOff(id)+ring.CtrMissed:]
	binary.NativeEndian.PutUint64(b, binary.NativeEndian.Uint64(b)+uint64(n))
}

// world is a Reclaimer of a fake target.
type world struct {
	*fake
	numbers *instances.Numbers
	*instances.Reclaimer
	registered []*instances.Probe
}

func newWorld(t instances.Target, f *fake) *world {
	w := &world{fake: f, numbers: instances.NewNumbers(t, func(int) {})}
	w.Reclaimer = instances.NewReclaimer(t, w.numbers, func() []*instances.Probe { return w.registered })
	return w
}

// probe makes a probe with a pool of its own.
func probe(id int) *instances.Probe {
	return &instances.Probe{ID: id, Pool: &arch.Pool{Base: uint64(id) << 12}}
}

// tend calls Reclaim ten times a second.
func (w *world) tend(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		w.Reclaim()
	}
}

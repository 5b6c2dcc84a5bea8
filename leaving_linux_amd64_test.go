package kprobes_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

// patience bounds what tests wait for. Nothing measures it.
const patience = 3 * time.Minute

// eventually waits until something holds, on a machine that may have much else to do.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// TestThreadsEndInside: instances of threads that end inside the probed function, or leave it
// by a jump, are taken back, however small the pool: no call is missed for want of one, and the
// sums are the program's.
func TestThreadsEndInside(t *testing.T) {
	for _, x := range []struct{ maxActive, threads, rounds int }{{10, 5, 12}, {800, 400, 6}} {
		prog, c := attach(t, "leaver")
		rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "inside"}, MaxActive: x.maxActive}
		must(t, c.RegisterKretprobe(rp))
		room := uint64(x.maxActive - x.threads)
		for round := range x.rounds {
			n := prog.Counts(fmt.Sprint("leave ", round%3, " ", x.threads))
			eventually(t, "most instances of calls that were left are taken back", func() bool {
				return rp.Unwound()+room >= n["left"]
			})
			n = prog.Counts("call 3")
			if s := rp.State(); s.Hits != n["returned"] || s.Misses.Total() != 0 || s.Unwound > n["left"] || n["bad"] != 0 {
				t.Fatalf("MaxActive %d, round %d: %+v; the program counts %v", x.maxActive, round, s, n)
			}
		}
		c.UnregisterKretprobe(rp)
		must(t, c.Close(nil))
	}
}

// TestCallsLeftAreCounted: calls that were left are found where nobody needs their instances, and
// calls in progress are told, so that all that have begun are in a number.
func TestCallsLeftAreCounted(t *testing.T) {
	prog, c := attach(t, "leaver")
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "inside"}}
	must(t, c.RegisterKretprobe(rp))
	for how := range uint64(3) {
		n := prog.Counts(fmt.Sprint("leave ", how, " 3"))
		eventually(t, "calls that were left are counted", func() bool {
			s := rp.State()
			return s.Unwound == n["left"] && s.Active == 0 && s.Hits == 0
		})
	}
	prog.Counts("hold 5")
	eventually(t, "calls in progress are told", func() bool { return rp.State().Active == 5 })
	n := prog.Counts("free")
	eventually(t, "and that they have returned", func() bool { return rp.State().Active == 0 })
	if s := rp.State(); s.Hits != n["returned"] || s.Hits+s.Unwound+s.Active+s.Misses.Total() != n["inside"] {
		t.Errorf("%+v; the program counts %v", s, n)
	}
	prog.Counts("hold 4")
	eventually(t, "calls in progress are told", func() bool { return rp.State().Active == 4 })
	must(t, c.DisableKretprobe(rp))
	if s := rp.State(); s.Active != 4 {
		t.Errorf("disabled: %+v", s)
	}
	prog.Counts("free")
	c.UnregisterKretprobe(rp)
	if s := rp.State(); s.Active != 4 || s.Hits != n["returned"] {
		t.Errorf("unregistered: %+v", s)
	}
}

// TestGoroutinesEndInside is TestThreadsEndInside for a Go program.
func TestGoroutinesEndInside(t *testing.T) {
	const maxActive, each, rounds = 12, 5, 8
	prog, c := attach(t, "gowork")
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "main.Leave"}, MaxActive: maxActive}
	must(t, c.RegisterKretprobe(rp))
	for round := range uint64(rounds) {
		prog.Counts(fmt.Sprint("leave ", each))
		eventually(t, "most instances of calls that were left are taken back", func() bool {
			return rp.Unwound()+maxActive-each >= each*(round+1)
		})
		if s := rp.State(); s.Hits != round+1 || s.Misses.Total() != 0 || s.Unwound > each*(round+1) {
			t.Fatalf("round %d: %+v", round, s)
		}
	}
}

// TestCallsOutliveTheirProbe: calls that are in progress when their probe goes return as if it
// had never been, no handler runs and nothing is counted for them; and their instances serve
// again.
func TestCallsOutliveTheirProbe(t *testing.T) {
	prog, c := attach(t, "leaver")
	const depth = 60
	var in, out atomic.Int64
	rp := &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: "inside"}, MaxActive: depth + 1, DataSize: 8,
		EntryHandler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { in.Add(1); return 0 },
		Handler:      func(*kprobes.KretprobeInstance, *kprobes.Regs) int { out.Add(1); return 0 },
	}
	for round := range 4 {
		rp.Kp.Addr = 0
		must(t, c.RegisterKretprobe(rp))
		prog.Counts(fmt.Sprint("hold ", depth)) // needs all instances: those of the last round are free
		if s := rp.State(); in.Swap(0) != depth || s.Misses.Total() != 0 {
			t.Fatalf("round %d: %+v with %d calls in progress", round, s, depth)
		}
		c.UnregisterKretprobe(rp)
		n := prog.Counts("free")
		if s := rp.State(); s.Hits != 0 || s.Unwound != 0 || in.Load()+out.Load() != 0 || n["bad"] != 0 || n["returned"] != n["inside"] {
			t.Fatalf("round %d: after the calls of a probe that is gone have returned: %+v, %d and %d runs; the program counts %v", round, s, in.Load(), out.Load(), n)
		}
	}
}

// TestPoolsServeAgain: return probes with a pool of their own can come and go for ever, though
// the process has room for some dozens of such pools.
func TestPoolsServeAgain(t *testing.T) {
	prog, c := attach(t, "leaver")
	for round := range 150 {
		rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "inside"}, MaxActive: kprobes.MaxMaxActive}
		if err := c.RegisterKretprobe(rp); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if round%30 == 0 {
			prog.Counts("hold 20")
		}
		prog.Counts("call 2")
		c.UnregisterKretprobe(rp)
		if s := rp.State(); s.Hits != 2 || s.Misses.Total() != 0 {
			t.Fatalf("round %d: %+v", round, s)
		}
		if round%30 == 0 {
			prog.Counts("free")
		}
	}
}

// TestWidePools: any number of return events may save many values of their entries, and they
// share the room for it.
func TestWidePools(t *testing.T) {
	prog, c := attach(t, "stand")
	var defs []*event.Def
	for i, fn := range []string{"stand", "behind", "first", "second", "third"} {
		d, err := event.Parse(fmt.Sprintf("r:wide%d %s a=$arg1 b=$arg2 c=$arg3 d=$arg4 e=$arg5 f=$arg6 g=%%bx h=%%bp", i, fn))
		must(t, err)
		defs = append(defs, d)
	}
	evs, err := c.Add(defs, &kprobes.AddOptions{})
	must(t, err)
	prog.Counts("go 100")
	eventually(t, "100 hits of each", func() bool {
		c.Poll(func(*hit.Hit) {}) // of other processors' clocks some run a little behind
		return !slices.ContainsFunc(evs, func(e *kprobes.Event) bool { return c.Counts(e).Hits != 100 })
	})
}

// TestUnseenCalls: calls are in progress while everything is switched off, end, and others begin
// at the same places of the same stacks. Once everything is on again the returns of those are
// nobody's.
func TestUnseenCalls(t *testing.T) {
	prog, c := attach(t, "leaver")
	d, err := event.Parse("r:unseen inside")
	must(t, err)
	evs, err := c.Add([]*event.Def{d}, &kprobes.AddOptions{Count: true})
	must(t, err)
	prog.Counts("hold 30")
	must(t, c.SetEnabled(false))
	nobodys := func(when string) {
		t.Helper()
		if n := c.Counts(evs[0]); n.Hits != 0 || n.Active != 30 || n.Unwound != 0 {
			t.Errorf("%s: %+v, want 30 calls that were in progress and no hit", when, n)
		}
	}
	nobodys("off") // whoever looks later could take them for calls that were left
	prog.Counts("free")
	prog.Counts("hold 30")
	must(t, c.SetEnabled(true))
	prog.Counts("free")
	nobodys("on again")
	prog.Counts("call 7")
	if n := c.Counts(evs[0]); n.Hits != 7 {
		t.Errorf("%+v, want 7 hits", n)
	}
}

// TestDisabledCalls: calls that are in progress while their probe is disabled have no return
// handler, also if it is enabled again before they return, and are nobody's later.
func TestDisabledCalls(t *testing.T) {
	prog, c := attach(t, "leaver")
	var out atomic.Int64
	rp := &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: "inside"}, MaxActive: 32,
		Handler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { out.Add(1); return 0 },
	}
	must(t, c.RegisterKretprobe(rp))
	for round := range 3 {
		prog.Counts("hold 30")
		must(t, c.DisableKretprobe(rp))
		if round == 0 {
			prog.Counts("free")
		}
		must(t, c.EnableKretprobe(rp))
		if round != 0 {
			prog.Counts("free")
		}
		prog.Counts("hold 30") // the same stack: all instances are free
		prog.Counts("free")
		if s := rp.State(); out.Swap(0) != 30 || s.Hits != uint64(30*(round+1)) || s.Misses.Total() != 0 || s.Unwound != 0 {
			t.Fatalf("round %d: %+v", round, s)
		}
	}
}

// leftHandlers are handlers of all kinds that count their runs after they were told to be gone.
type leftHandlers struct {
	gone       atomic.Bool
	runs, late atomic.Int64
}

func (l *leftHandlers) ran() int {
	l.runs.Add(1)
	if l.gone.Load() {
		l.late.Add(1)
	}
	return 0
}

func (l *leftHandlers) probes(fn string, flags kprobes.Flags) ([]*kprobes.Kprobe, []*kprobes.Kretprobe) {
	at := kprobes.Kprobe{SymbolName: fn, Flags: flags}
	pre, post, ret := at, at, at
	pre.PreHandler = func(*kprobes.Kprobe, *kprobes.Regs) int { return l.ran() }
	post.PostHandler = func(*kprobes.Kprobe, *kprobes.Regs, uint64) { l.ran() }
	on := func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return l.ran() }
	ks := []*kprobes.Kprobe{&pre, &post}
	if flags&kprobes.FlagSleepable != 0 {
		ks = ks[:1] // a post handler can not sleep in the own process
	}
	return ks, []*kprobes.Kretprobe{{Kp: ret, EntryHandler: on, Handler: on}}
}

// comeAndGo registers probes on a function that runs, and has them unregistered or disabled
// under load: nothing of them runs any more afterwards.
func comeAndGo(t *testing.T, c *kprobes.Core, fn string, flags kprobes.Flags, rounds int) {
	t.Helper()
	for round := range rounds {
		l := &leftHandlers{}
		ks, rs := l.probes(fn, flags)
		must(t, c.RegisterKprobes(ks))
		must(t, c.RegisterKretprobes(rs))
		eventually(t, "a handler runs", func() bool { return l.runs.Load() > 0 })
		if round%2 == 0 {
			for _, k := range ks {
				must(t, c.DisableKprobe(k))
			}
			must(t, c.DisableKretprobe(rs[0]))
		} else {
			c.UnregisterKprobes(ks)
			c.UnregisterKretprobes(rs)
		}
		l.gone.Store(true)
		time.Sleep(2 * time.Millisecond) // for what should not come
		c.UnregisterKprobes(ks)
		c.UnregisterKretprobes(rs)
		if n := l.late.Load(); n > 0 {
			t.Fatalf("round %d: %d handlers ran after their probes had gone (of %d)", round, n, l.runs.Load())
		}
	}
}

// TestNothingRunsLate: see comeAndGo.
func TestNothingRunsLate(t *testing.T) {
	prog, c := attach(t, "conform")
	end := calling(t, prog)
	for _, flags := range []kprobes.Flags{0, kprobes.FlagSleepable} {
		comeAndGo(t, c, "target", flags, 8)
	}
	end()
}

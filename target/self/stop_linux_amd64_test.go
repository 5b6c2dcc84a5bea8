package self_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/target/self"
)

// own begins the names of this package's functions.
const own = "kprobes.dev/kprobes/target/self_test."

func init() {
	children["breakpoints"] = breakpoints
	children["preempted"] = func(c *kprobes.Core) error { return tightLoops(c, runtime.GC) }
	children["interrupted"] = func(c *kprobes.Core) error { return tightLoops(c, nil) }
}

// bump begins with an instruction of several bytes, the first of which a breakpoint replaces.
//
//go:noinline
func bump(a, b uint64) uint64 { return a*5 + b }

//go:noinline
func other(a, b uint64) uint64 { return a*3 + b }

// TestStopAtBreakpoint: a thread that takes a breakpoint in the moment in which it is asked
// to stop loses neither.
func TestStopAtBreakpoint(t *testing.T) { child(t, "breakpoints") }

func breakpoints(c *kprobes.Core) error {
	var runs atomic.Uint64
	k := &kprobes.Kprobe{SymbolName: own + "bump", PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) { runs.Add(1) }}
	o := &kprobes.Kprobe{SymbolName: own + "other"}
	if err := c.RegisterKprobes([]*kprobes.Kprobe{k, o}); err != nil {
		return err
	}
	if k.State().Optimized {
		return errors.New("the probe is no breakpoint")
	}
	var stop atomic.Bool
	var calls, wrong atomic.Uint64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for i := uint64(0); !stop.Load(); i++ {
				if bump(i, 7) != 5*i+7 || other(i, 1) != 3*i+1 {
					wrong.Add(1)
				}
				calls.Add(1)
			}
		})
	}
	for range 3000 {
		if err := errors.Join(c.DisableKprobe(o), c.EnableKprobe(o)); err != nil {
			return err
		}
	}
	stop.Store(true)
	wg.Wait()
	s := k.State()
	c.UnregisterKprobes([]*kprobes.Kprobe{k, o})
	if runs.Load()+s.Misses.Total() != calls.Load() || wrong.Load() != 0 {
		return fmt.Errorf("%d calls, %d with a wrong result, %d runs, %+v", calls.Load(), wrong.Load(), runs.Load(), s)
	}
	return nil
}

// The functions of a tight loop: leaves, so that they may be preempted at any instruction,
// with several instructions in the bytes that a jump takes.
//
//go:noinline
func tightMul(a, b uint32) uint32 {
	a *= b
	a *= b
	a *= b
	return a * b
}

//go:noinline
func tightAdd(a, b uint32) uint32 {
	a += b
	a ^= b << 1
	a += b
	return a*a + b
}

// tightMulWant and tightAddWant are inlined.
func tightMulWant(a, b uint32) uint32 { return a * b * b * b * b }

func tightAddWant(a, b uint32) uint32 {
	c := ((a + b) ^ (b << 1)) + b
	return c*c + b
}

// TestPreempted: goroutines that were preempted between the instructions that a jump
// replaces are not met by it, and go on right.
func TestPreempted(t *testing.T) { tight(t, "preempted") }

// TestInterrupted: threads that stand there are moved to the copies, and back from a
// detour that goes.
func TestInterrupted(t *testing.T) { tight(t, "interrupted") }

// tight runs a child of tightLoops and shows what it did.
func tight(t *testing.T, name string) {
	t.Log(strings.TrimSpace(child(t, name)))
}

// tightCycles is how often the probes of tightLoops are armed and disarmed.
const tightCycles = 1000

// tightLoops arms and disarms counters in functions in which goroutines spend their time,
// while again and again all goroutines are preempted by disturb. Then it counts exactly.
func tightLoops(c *kprobes.Core, disturb func()) error {
	ks := []*kprobes.Kprobe{{SymbolName: own + "tightMul"}, {SymbolName: own + "tightAdd"}}
	if err := c.RegisterKprobes(ks); err != nil {
		return err
	}
	for _, k := range ks {
		if !k.State().Optimized {
			return fmt.Errorf("%s: %+v", k.SymbolName, k.State())
		}
	}
	l := &loops{disturb: disturb}
	l.begin(0)
	blocked := 0
	for range tightCycles {
		for _, k := range ks {
			err := errors.Join(untilFree(&blocked, func() error { return c.DisableKprobe(k) }), untilFree(&blocked, func() error { return c.EnableKprobe(k) }))
			if err != nil {
				return err
			}
		}
	}
	l.end()
	before := ks[0].State().Hits
	const calls = 500_000
	l.begin(calls)
	l.end()
	if n := ks[0].State().Hits - before; n != calls*loopers || l.wrong.Load() != 0 {
		return fmt.Errorf("%d hits in %d calls, %d results wrong in all", n, calls*loopers, l.wrong.Load())
	}
	fmt.Printf("%d changes, %d of them at the second attempt or later\n", 2*tightCycles*len(ks), blocked)
	c.UnregisterKprobes(ks)
	return nil
}

// untilFree does what a thread may block for long, and counts where it did.
func untilFree(blocked *int, f func() error) error {
	err := f()
	for n := 0; errors.Is(err, self.ErrBlocked) && n < 100; n++ {
		*blocked++
		err = f()
	}
	return err
}

// loopers is the number of goroutines in a tight loop: more than can run.
const loopers = 4

// loops are goroutines in tight loops.
type loops struct {
	disturb func()
	limit   uint64 // calls that each makes; 0: until end
	stop    atomic.Bool
	wrong   atomic.Uint64
	run     sync.WaitGroup
	noise   sync.WaitGroup
}

// begin starts them.
func (l *loops) begin(limit uint64) {
	l.limit = limit
	l.stop.Store(false)
	for range loopers {
		l.run.Go(l.loop)
	}
	if l.disturb != nil {
		l.noise.Go(func() {
			for !l.stop.Load() {
				l.disturb()
			}
		})
	}
}

func (l *loops) loop() {
	for i := uint64(0); l.limit == 0 && !l.stop.Load() || i < l.limit; i++ {
		a, b := uint32(i), uint32(i>>3)|1
		if tightMul(a, b) != tightMulWant(a, b) || tightAdd(a, b) != tightAddWant(a, b) {
			l.wrong.Add(1)
		}
	}
}

// end waits until all calls have been made.
func (l *loops) end() {
	l.stop.Store(l.limit == 0)
	l.run.Wait()
	l.stop.Store(true)
	l.noise.Wait()
}

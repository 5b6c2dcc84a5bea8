package self_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/target/self"
)

// own begins the names of this package's functions.
const own = "kprobes.dev/kprobes/target/self_test."

func init() {
	children["breakpoints"] = breakpoints
	children["tight"] = tightLoops
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
	if err := errors.Join(forced(c, arch.TacticBoost, k), c.RegisterKprobe(o)); err != nil {
		return err
	}
	if k.State().Tactic != arch.TacticBoost {
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

// tightLoad begins with an instruction that waits for memory and is shorter than a jump: a
// thread that is interrupted stands behind it nearly always. It is a leaf, so that the runtime
// preempts it there too.
//
//go:noinline
func tightLoad(p *uint32, i uint32) uint32 { return *p + i }

// tightTable is more than caches hold.
var tightTable [16 << 20]uint32

// tightAt is what tightTable has at an index.
func tightAt(i uint32) uint32 { return i*2654435761 + 1 }

// TestTightLoops: threads that stand between the instructions that a jump replaces are moved
// to the copies, and back from a detour that goes; goroutines that were preempted there are
// waited for, whether they are being put aside by a thread or wait for one.
func TestTightLoops(t *testing.T) {
	t.Log(strings.TrimSpace(child(t, "tight", "KPROBES_CYCLES="+strconv.Itoa(cycles(400, 10_000)))))
}

// cycles is a number for usual runs and for long ones.
func cycles(usual, long int) int {
	if self.Long {
		return long
	}
	return usual
}

// tightLoops arms and disarms a counter in a function in which goroutines spend their time,
// while the collector preempts them again and again. Then it counts exactly.
func tightLoops(c *kprobes.Core) error {
	n, err := strconv.Atoi(os.Getenv("KPROBES_CYCLES"))
	if err != nil {
		return err
	}
	for i := range tightTable {
		tightTable[i] = tightAt(uint32(i))
	}
	k := &kprobes.Kprobe{SymbolName: own + "tightLoad"}
	if err := c.RegisterKprobe(k); err != nil {
		return err
	}
	if s := k.State(); !s.Optimized {
		return fmt.Errorf("%+v", s)
	}
	slow := &kprobes.Kprobe{SymbolName: "runtime.asyncPreempt2", PreHandler: linger}
	if err := c.RegisterKprobe(slow); err != nil {
		return err
	}
	var l loops
	l.begin(0)
	blocked := 0
	for range n {
		err := errors.Join(untilFree(&blocked, func() error { return c.DisableKprobe(k) }), untilFree(&blocked, func() error { return c.EnableKprobe(k) }))
		if err != nil {
			return err
		}
	}
	l.end()
	before := k.State().Hits
	const calls = 200_000
	l.begin(calls)
	l.end()
	if hits := k.State().Hits - before; hits != calls*loopers || l.wrong.Load() != 0 {
		return fmt.Errorf("%d hits in %d calls, %d results wrong in all", hits, calls*loopers, l.wrong.Load())
	}
	fmt.Printf("%d changes, %d of them at the second attempt or later\n", 2*n, blocked)
	c.UnregisterKprobes([]*kprobes.Kprobe{k, slow})
	return nil
}

// linger is a handler that takes its time.
func linger(*kprobes.Kprobe, *kprobes.Regs) int {
	for n := uint32(0); n < 100_000; n++ {
		lingered.Add(1)
	}
	return 0
}

var lingered atomic.Uint32

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
const loopers = 3

// loops are goroutines in tight loops.
type loops struct {
	limit uint64 // calls that each makes; 0: until end
	stop  atomic.Bool
	wrong atomic.Uint64
	run   sync.WaitGroup
	noise sync.WaitGroup
}

// begin starts them.
func (l *loops) begin(limit uint64) {
	l.limit = limit
	l.stop.Store(false)
	for range loopers {
		l.run.Go(l.loop)
	}
	l.noise.Go(func() {
		for !l.stop.Load() {
			runtime.GC()
		}
	})
}

func (l *loops) loop() {
	x := uint32(1)
	for i := uint64(0); l.limit == 0 && !l.stop.Load() || i < l.limit; i++ {
		x = x*1664525 + 1013904223
		at := x % uint32(len(tightTable))
		if tightLoad(&tightTable[at], x) != tightAt(at)+x || tightTable[x>>8] != tightAt(x>>8) {
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

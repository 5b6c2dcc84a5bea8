package workload

import (
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Functions of a program that probes itself: one that is probed, and one of each kind that
// never is. The loops have calls of their own, for one through a variable would cost another
// amount.

// Leaf is a function that calls nothing and does not check its stack.
//
//go:noinline
func Leaf(a, b int) int { return a*3 + b }

//go:noinline
func plainLeaf(a, b int) int { return a*3 + b }

// Deep checks its stack, as sleepable handlers need it.
//
//go:noinline
func Deep(a, b int) int { return plainLeaf(a, b) + 1 }

//go:noinline
func plainDeep(a, b int) int { return plainLeaf(a, b) + 1 }

// OwnLeaf and OwnDeep are the names of the functions that are to be probed.
const (
	OwnLeaf = prefixOfOwn + "Leaf"
	OwnDeep = prefixOfOwn + "Deep"
)

const prefixOfOwn = "kprobes.dev/kprobes/internal/workload."

// OwnSink is what the last call of a loop gave: so no compiler leaves one out.
var OwnSink int

// LoopLeaf calls Leaf n times.
func LoopLeaf(n int) {
	for i := range n {
		OwnSink = Leaf(i, 1)
	}
}

// LoopPlainLeaf calls a function like Leaf that is never probed.
func LoopPlainLeaf(n int) {
	for i := range n {
		OwnSink = plainLeaf(i, 1)
	}
}

// LoopDeep calls Deep n times.
func LoopDeep(n int) {
	for i := range n {
		OwnSink = Deep(i, 1)
	}
}

// LoopPlainDeep calls a function like Deep that is never probed.
func LoopPlainDeep(n int) {
	for i := range n {
		OwnSink = plainDeep(i, 1)
	}
}

// batches is how many times a loop is measured; the median counts.
const batches = 32

// PerCall runs a loop in batches and returns the time of a call in the median batch, in ns,
// and how many calls were made.
func PerCall(loop func(n int), calls int) (ns float64, made uint64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n := max(calls/batches, 1)
	all := make([]float64, batches)
	for i := range all {
		start := time.Now()
		loop(n)
		all[i] = float64(time.Since(start).Nanoseconds()) / float64(n)
	}
	slices.Sort(all)
	return all[len(all)/2], uint64(n * batches)
}

// Gauge is a thread that spins and measures the largest gap between two looks at the clock:
// how long the program was stopped.
type Gauge struct {
	largest atomic.Int64
	looks   atomic.Int64 // at the clock
	stop    atomic.Bool
	done    chan struct{}
}

// StartGauge starts the thread. It keeps a CPU busy until Stop.
func StartGauge() *Gauge {
	g := &Gauge{done: make(chan struct{})}
	go g.spin()
	return g
}

func (g *Gauge) spin() {
	runtime.LockOSThread()                                      // and the thread ends with the goroutine
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // so that others rarely push it aside
	defer close(g.done)
	for last := time.Now(); !g.stop.Load(); {
		now := time.Now()
		if d := int64(now.Sub(last)); d > g.largest.Load() {
			g.largest.Store(d)
		}
		last = now
		g.looks.Add(1)
	}
}

// Take gives the largest gap since the last Take.
func (g *Gauge) Take() time.Duration {
	for seen := g.looks.Load(); g.looks.Load() < seen+2; { // the gap that has just been is seen too
		time.Sleep(10 * time.Microsecond)
	}
	return time.Duration(g.largest.Swap(0))
}

// Stop ends the thread.
func (g *Gauge) Stop() {
	g.stop.Store(true)
	<-g.done
}

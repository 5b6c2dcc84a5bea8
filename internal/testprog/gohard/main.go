// Command gohard does what a probe can least get wrong in Go: loops that the scheduler
// preempts between any two instructions, nil dereferences that must become panics, profiling
// signals, stacks that grow.
//
//	gohard [WORKERS]     commands: go N (every worker makes N rounds), spin N (N goroutines
//	                     loop until stop), stop, profile (the CPU, at 1 kHz, from here on),
//	                     gc, count, quit
//
// In a round a worker calls, with its own goroutine's id and the round's number i:
//
//	Leaf(goid, i)     a few instructions without a frame; returns 3*goid + 5*i + 1
//	Twice(i)          calls Once(i) and Once(i+1) without a check of the stack; returns 2*i+3
//	Chase(p)          follows pointers: where the CPU waits, between the loads, is where a
//	                  goroutine is preempted; returns p
//	Load(p)           dereferences p, every 4th time nil: the panic is recovered
//	Grow(i&31)        recurses with a large frame, so that stacks move
//	Fall(i&7)         recurses, panics at the bottom; Catch recovers
//
// Spinning goroutines call Leaf and Chase alone. Results are checked: "bad" counts the wrong ones.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

var counts struct {
	leaf, twice, chase, load, nils, grow, fall, catch, bad atomic.Uint64
}

type node struct{ v uint64 }

// Leaf has no frame and does not check its stack: it can be preempted anywhere.
//
//go:noinline
func Leaf(goid, i uint64) uint64 {
	a := goid + goid<<1
	b := i + i<<2
	return a + b + 1
}

// Once returns i+1.
//
//go:noinline
func Once(i uint64) uint64 { return i + 1 }

// Twice has a frame and does not check its stack: at its calls any register may be in use.
//
//go:noinline
//go:nosplit
func Twice(i uint64) uint64 { return Once(i) + Once(i+1) }

// link is one of a ring of two.
type link struct{ next *link }

var ring = func() *link {
	a := new(link)
	a.next = &link{next: a}
	return a
}()

// Chase begins with loads of three bytes each.
//
//go:noinline
func Chase(p *link) *link { return p.next.next.next.next.next.next.next.next }

// Load faults in its first instruction if p is nil.
//
//go:noinline
func Load(p *node) uint64 { return p.v }

// safe calls Load; ok is false if it panicked as it does without probes.
func safe(p *node) (v uint64, ok bool) {
	defer func() {
		e := recover()
		if e == nil {
			return
		}
		counts.nils.Add(1)
		if err, is := e.(runtime.Error); !is || !strings.Contains(err.Error(), "nil pointer dereference") {
			counts.bad.Add(1)
		}
	}()
	return Load(p), true
}

// Grow needs about half a kilobyte of stack for each level.
//
//go:noinline
func Grow(n uint64) uint64 {
	var pad [64]uint64
	pad[n&63] = n
	if n == 0 {
		return pad[0]
	}
	return Grow(n-1) + pad[n&63] - n + 1
}

// Fall recurses n deep and panics there: it never returns.
//
//go:noinline
func Fall(n uint64) uint64 {
	if n == 0 {
		panic("bottom")
	}
	return Fall(n-1) + 1
}

// Catch recovers what Fall panics with and returns n.
//
//go:noinline
func Catch(n uint64) (r uint64) {
	defer func() {
		if recover() != nil {
			r = n
		}
	}()
	return Fall(n) + n
}

// self is the id of the goroutine that runs, as a traceback shows it.
func self() uint64 {
	buf := make([]byte, 64)
	word := bytes.Fields(buf[:runtime.Stack(buf, false)])[1]
	id, err := strconv.ParseUint(string(word), 10, 64)
	if err != nil {
		counts.bad.Add(1)
	}
	return id
}

func check(ok bool) {
	if !ok {
		counts.bad.Add(1)
	}
}

func work(rounds uint64) {
	id := self()
	for i := range rounds {
		check(Leaf(id, i) == 3*id+5*i+1)
		check(Twice(i) == 2*i+3)
		check(Chase(ring) == ring)
		p := &node{i}
		if i&3 == 3 {
			p = nil
		}
		v, ok := safe(p)
		check(ok == (p != nil) && (!ok || v == i))
		check(Grow(i&31) == i&31)
		check(Catch(i&7) == i&7)
		counts.grow.Add(i&31 + 1)
		counts.fall.Add(i&7 + 1)
	}
	counts.leaf.Add(rounds)
	counts.twice.Add(rounds)
	counts.chase.Add(rounds)
	counts.load.Add(rounds)
	counts.catch.Add(rounds)
}

// spinning are goroutines in tight loops.
var spinning struct {
	stop atomic.Bool
	all  sync.WaitGroup
}

func spin() {
	id := self()
	var n uint64
	for ; !spinning.stop.Load(); n++ {
		check(Leaf(id, n) == 3*id+5*n+1)
		check(Chase(ring) == ring)
	}
	counts.leaf.Add(n)
	counts.chase.Add(n)
}

// profile makes the runtime send SIGPROF a thousand times a second of CPU time. The
// rate is set first: pprof would take a hundred, and says on stderr that it is too late.
func profile() {
	runtime.SetCPUProfileRate(1000)
	check(pprof.StartCPUProfile(io.Discard) == nil)
}

func report() {
	c := &counts
	all := map[string]uint64{
		"main.Leaf": c.leaf.Load(), "main.Twice": c.twice.Load(), "main.Chase": c.chase.Load(), "main.Load": c.load.Load(), "main.Grow": c.grow.Load(), "main.Fall": c.fall.Load(),
		"main.Catch": c.catch.Load(), "nils": c.nils.Load(), "bad": c.bad.Load(),
	}
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		os.Exit(1)
	}
}

func command(word string, n uint64, workers int) {
	switch word {
	case "go":
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() { work(n) })
		}
		wg.Wait()
	case "spin":
		spinning.stop.Store(false)
		for range n {
			spinning.all.Go(spin)
		}
	case "stop":
		spinning.stop.Store(true)
		spinning.all.Wait()
	case "profile":
		profile()
	case "gc":
		runtime.GC()
	}
}

func main() {
	workers := 2
	if len(os.Args) > 1 {
		if n, err := strconv.Atoi(os.Args[1]); err == nil && n > 0 {
			workers = n
		}
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && in.Text() != "quit" {
		word, arg, _ := strings.Cut(in.Text(), " ")
		n, _ := strconv.ParseUint(arg, 0, 64)
		command(word, n, workers)
		report()
	}
	report()
}

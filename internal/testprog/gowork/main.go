// Command gowork calls functions with arguments of Go's types from many goroutines.
//
//	gowork [GOROUTINES]     commands: go N (every goroutine calls every function N times),
//	                        gc (run the collector), leave N (N goroutines call Leave, which
//	                        ends them), cycles (answers the cycles that the collector has ended, of which none follows), count, quit
//
// In "go N" the call number i (from 0) of goroutine g (from 0) passes v = g<<32 | i:
//
//	Ints(v, v+1, i as int32)      returns the sum
//	Text("call-g-i", i&15)        returns the length + (i&15)
//	Words([]uint64{v, v+1})       returns the sum
//	Float(i+0.5, 2)               returns the product
//	(*Tree).Sum(i&7)              recurses i&7 deep, returns v + that depth
//	Record(Rec{v, "rec-g-i"})     a struct in registers; returns v, the name, true
//	Iface(fmt.Stringer)           an interface; returns its text
//	Deep(i&63)                    recurses with a large frame, so that stacks move
//	Closure                       a closure that captured v; returns v+1
//
// Each result is checked: "bad" counts the wrong ones.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
)

// Rec is a struct that ABIInternal passes in three registers.
type Rec struct {
	ID   uint64
	Name string
}

// Tree has a method with a pointer receiver.
type Tree struct{ v uint64 }

// Num is what Iface is called with.
type Num uint64

// String returns the number in decimal.
func (n Num) String() string { return strconv.FormatUint(uint64(n), 10) }

// Ints takes integers of two sizes.
//
//go:noinline
func Ints(a, b uint64, c int32) uint64 { return a + b + uint64(c) }

// Text takes a string.
//
//go:noinline
func Text(s string, n int) int { return len(s) + n }

// Words takes a slice.
//
//go:noinline
func Words(w []uint64) uint64 {
	var sum uint64
	for _, x := range w {
		sum += x
	}
	return sum
}

// Float takes floating-point numbers.
//
//go:noinline
func Float(a, b float64) float64 { return a * b }

// Sum recurses depth deep.
//
//go:noinline
func (t *Tree) Sum(depth uint64) uint64 {
	if depth == 0 {
		return t.v
	}
	return t.Sum(depth-1) + 1
}

// Record takes a struct and returns three values.
//
//go:noinline
func Record(r Rec) (uint64, string, bool) { return r.ID, r.Name, r.ID == r.ID/2*2 || r.Name != "" }

// Iface takes an interface.
//
//go:noinline
func Iface(s fmt.Stringer) string { return s.String() }

// Deep needs about half a kilobyte of stack for each level.
//
//go:noinline
func Deep(n uint64) uint64 {
	var pad [64]uint64
	pad[n&63] = n
	if n == 0 {
		return pad[0]
	}
	return Deep(n-1) + pad[n&63] - n + 1
}

type tally struct {
	rounds, sums, deeps, bad uint64
	_                        [4]uint64
}

func check(ok bool, t *tally) {
	if !ok {
		t.bad++
	}
}

func step(g, i uint64, t *tally) {
	v := g<<32 | i
	text := fmt.Sprintf("call-%d-%d", g, i)
	name := fmt.Sprintf("rec-%d-%d", g, i)
	check(Ints(v, v+1, int32(i)) == 2*v+1+uint64(int32(i)), t)
	check(Text(text, int(i&15)) == len(text)+int(i&15), t)
	check(Words([]uint64{v, v + 1}) == 2*v+1, t)
	check(Float(float64(i)+0.5, 2) == 2*float64(i)+1, t)
	check((&Tree{v}).Sum(i&7) == v+i&7, t)
	id, n, ok := Record(Rec{v, name})
	check(id == v && n == name && ok, t)
	check(Iface(Num(v)) == strconv.FormatUint(v, 10), t)
	check(Deep(i&63) == i&63, t)
	closure := func() uint64 { return v + 1 }
	check(call(closure) == v+1, t)
	t.rounds++
	t.sums += i&7 + 1
	t.deeps += i&63 + 1
}

//go:noinline
func call(f func() uint64) uint64 { return f() }

func report(ts []tally) {
	var s tally
	for i := range ts {
		s.rounds += ts[i].rounds
		s.sums += ts[i].sums
		s.deeps += ts[i].deeps
		s.bad += ts[i].bad
	}
	counts := map[string]uint64{
		"main.Ints": s.rounds, "main.Text": s.rounds, "main.Words": s.rounds, "main.Float": s.rounds,
		"main.(*Tree).Sum": s.sums, "main.Record": s.rounds, "main.Iface": s.rounds, "main.Deep": s.deeps,
		"main.call": s.rounds, "bad": s.bad,
	}
	if err := json.NewEncoder(os.Stdout).Encode(counts); err != nil {
		os.Exit(1)
	}
}

func main() {
	workers := 2
	if len(os.Args) > 1 {
		if n, err := strconv.Atoi(os.Args[1]); err == nil && n > 0 {
			workers = n
		}
	}
	ts := make([]tally, workers)
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && in.Text() != "quit" {
		word, arg, _ := strings.Cut(in.Text(), " ")
		switch word {
		case "go":
			n, _ := strconv.ParseUint(arg, 0, 64)
			burst(ts, n)
		case "gc":
			runtime.GC()
		case "cycles":
			fmt.Printf("{\"cycles\":%d}\n", cycles())
			continue
		case "leave":
			n, _ := strconv.Atoi(arg)
			var wg sync.WaitGroup
			for range n {
				wg.Go(func() { leave(0) })
			}
			wg.Wait()
			if leave(7) != 22 {
				ts[0].bad++
			}
		}
		report(ts)
	}
	report(ts)
}

// cycles has the collector run no more, and gives the cycles that it has ended.
func cycles() uint64 {
	debug.SetGCPercent(-1) // waits for the end of a cycle
	n := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(n)
	return n[0].Value.Uint64()
}

// Leave ends its goroutine if v is 0, else it returns 3v+1.
//
//go:noinline
func Leave(v uint64) uint64 {
	if v == 0 {
		runtime.Goexit()
	}
	return double(v) + v + 1
}

//go:noinline
func double(v uint64) uint64 { return 2 * v }

var leave = Leave

// burst runs n steps in one new goroutine per tally: new stacks start small and grow.
func burst(ts []tally, n uint64) {
	var wg sync.WaitGroup
	for g := range ts {
		wg.Go(func() {
			for i := range n {
				step(uint64(g), i, &ts[g])
			}
		})
	}
	wg.Wait()
}

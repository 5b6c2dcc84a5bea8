// Command probing probes itself in every way, and says what did not go as it should.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

//go:noinline
func leaf(a, b int) int { return a*3 + b }

//go:noinline
func deep(s string, n int) string {
	if n > 0 {
		return deep(s, n-1)
	}
	return s
}

//go:noinline
func thrower(n int) (r int) {
	defer func() { r = recover().(int) }()
	if n >= 0 {
		panic(n)
	}
	return 0
}

const (
	routines = 8
	rounds   = 400
	depth    = 40
)

var failed atomic.Bool

func check(what string, got, want any) {
	if got != want {
		failed.Store(true)
		fmt.Printf("%s: %v, want %v\n", what, got, want)
	}
}

func must(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// work calls the functions from several goroutines, with stacks that grow and collections.
func work() {
	var wg sync.WaitGroup
	for i := range routines {
		wg.Go(func() {
			for j := range rounds {
				if leaf(i, j) != i*3+j || thrower(j) != j {
					check("results", "wrong", "right")
				}
				if j%20 == 0 {
					want := fmt.Sprint(i, j)
					check("string", deep(want, depth), want)
				}
			}
		})
		runtime.GC()
	}
	wg.Wait()
}

const (
	leafs  = routines * rounds
	deeps  = routines * rounds / 20 * (depth + 1)
	throws = routines * rounds
)

func main() {
	core, err := kprobes.Self()
	must(err)
	counted(core)
	if !raceEnabled {
		handlers()
		broken()
		tight(core)
	}
	if failed.Load() {
		os.Exit(1)
	}
	fmt.Println("ok", runtime.Version())
}

// counted uses compiled events.
func counted(core *kprobes.Core) {
	var defs []*event.Def
	for _, text := range []string{"p:leaf main.leaf", "p:deep main.deep", "r:thrower main.thrower", "p:malloc runtime.mallocgc", "p:move runtime.memmove"} {
		d, err := event.Parse(text)
		must(err)
		defs = append(defs, d)
	}
	evs, err := core.Add(defs, &kprobes.AddOptions{Count: true})
	must(err)
	work()
	check("count of leaf", core.Counts(evs[0]).Hits, uint64(leafs))
	check("count of deep", core.Counts(evs[1]).Hits, uint64(deeps))
	check("count of thrower", core.Counts(evs[2]).Hits, uint64(throws))
	if core.Counts(evs[3]).Hits == 0 || core.Counts(evs[4]).Hits == 0 {
		check("count of the runtime's functions", 0, "more")
	}
	must(core.Remove(evs))
}

// handlers uses handlers of every kind.
func handlers() {
	var pre, post, sleep, entry, ret, jump, wrong atomic.Uint64
	k := &kprobes.Kprobe{
		SymbolName:  "main.leaf",
		PreHandler:  func(*kprobes.Kprobe, *kprobes.Regs) int { pre.Add(1); return 0 },
		PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) { post.Add(1) },
	}
	s := &kprobes.Kprobe{SymbolName: "main.deep", Flags: kprobes.FlagSleepable, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		if sleep.Add(1)%64 == 0 {
			runtime.GC()
		}
		return 0
	}}
	must(kprobes.RegisterKprobes([]*kprobes.Kprobe{k, s}))
	r := &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: "main.thrower"}, DataSize: 8,
		EntryHandler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
			entry.Add(1)
			ri.Data[0] = byte(r.Arg(0))
			return 0
		},
		Handler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
			if ret.Add(1); byte(r.ReturnValue()) != ri.Data[0] {
				wrong.Add(1)
			}
			return 0
		},
	}
	must(kprobes.RegisterKretprobe(r))
	j := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: "main.leaf"}, Entry: func(a, b int) int { jump.Add(uint64(a) - uint64(a) + 1); return b }}
	must(kprobes.RegisterJprobe(j))
	work()
	check("pre", pre.Load()+uint64(k.NMissed()), uint64(leafs))
	check("post", post.Load(), pre.Load())
	check("sleepable", sleep.Load()+uint64(s.NMissed()), uint64(deeps))
	check("entry", entry.Load()+uint64(r.NMissed()), uint64(throws))
	check("return", ret.Load(), entry.Load())
	check("data", wrong.Load(), uint64(0))
	check("jprobe", jump.Load()+uint64(j.NMissed()), uint64(leafs))
	kprobes.UnregisterJprobe(j)
	kprobes.UnregisterKretprobe(r)
	kprobes.UnregisterKprobes([]*kprobes.Kprobe{k, s})
}

// broken has a handler that panics, and one that faults.
func broken() {
	var nothing *int
	for _, bad := range []func(){func() { panic("on purpose") }, func() { *nothing = 1 }} {
		k := &kprobes.Kprobe{SymbolName: "main.leaf", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { bad(); return 0 }}
		must(kprobes.RegisterKprobe(k))
		check("leaf", leaf(1, 2), 5)
		check("a fault is told", k.Fault() != nil, true)
		kprobes.UnregisterKprobe(k)
	}
}

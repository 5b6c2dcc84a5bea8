package main

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
)

// count is what one probe of those that are armed all the time counted, beside what its
// function did.
type count struct {
	Kind    string         `json:"kind"`
	Func    string         `json:"func"`
	Calls   uint64         `json:"calls"`
	Left    uint64         `json:"left"` // calls that a panic left
	Runs    uint64         `json:"runs"` // of the handler
	Bad     uint64         `json:"bad"`  // runs that were given something wrong
	Hits    uint64         `json:"hits"`
	Misses  kprobes.Misses `json:"misses"`
	Unwound uint64         `json:"unwound"`
	Fault   string         `json:"fault"`
}

// probe is a probe of any kind.
type probe struct {
	kind string
	of   *hot
	runs runs
	k    *kprobes.Kprobe
	r    *kprobes.Kretprobe
	j    *kprobes.Jprobe
}

// Kinds of probes.
const (
	kindPre    = "kprobe"
	kindPost   = "post"  // a kprobe with a post handler
	kindCount  = "count" // one without handlers
	kindReturn = "kretprobe"
	kindData   = "data" // a kretprobe with an entry handler and data
	kindJump   = "jprobe"
)

var kinds = []string{kindPre, kindPost, kindCount, kindReturn, kindData, kindJump}

// newProbe makes a probe that is not registered.
func newProbe(h *hot, kind string, flags kprobes.Flags) *probe {
	p := &probe{kind: kind, of: h}
	kp := kprobes.Kprobe{SymbolName: h.name, Flags: flags}
	pre := func(*kprobes.Kprobe, *kprobes.Regs) int { p.runs.saw(true); return 0 }
	ret := func(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
		p.runs.saw(ri.RetAddr != 0 && ri.Task.ID != 0)
		return 0
	}
	switch kind {
	case kindPre:
		kp.PreHandler = pre
	case kindPost:
		kp.PreHandler = pre
		kp.PostHandler = func(*kprobes.Kprobe, *kprobes.Regs, uint64) {}
	case kindReturn:
		p.r = &kprobes.Kretprobe{Kp: kp, Handler: ret}
		return p
	case kindData:
		p.r = p.withData(kp)
		return p
	case kindJump:
		p.j = &kprobes.Jprobe{Kp: kp, Entry: h.entry(&p.runs)}
		return p
	}
	p.k = &kp
	return p
}

// withData makes a return probe whose handler is given what the entry handler of the same
// call wrote.
func (p *probe) withData(kp kprobes.Kprobe) *kprobes.Kretprobe {
	id := func(ri *kprobes.KretprobeInstance) byte { return byte(ri.Task.ID) ^ byte(ri.RetAddr) }
	return &kprobes.Kretprobe{
		Kp: kp, DataSize: 16, MaxActive: 4096,
		EntryHandler: func(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
			ri.Data[0], ri.Data[15] = id(ri), ^id(ri)
			return 0
		},
		Handler: func(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
			p.runs.saw(ri.Data[0] == id(ri) && ri.Data[15] == ^id(ri))
			return 0
		},
	}
}

func (p *probe) register() error {
	switch {
	case p.r != nil:
		return kprobes.RegisterKretprobe(p.r)
	case p.j != nil:
		return kprobes.RegisterJprobe(p.j)
	}
	return kprobes.RegisterKprobe(p.k)
}

func (p *probe) unregister() {
	switch {
	case p.r != nil:
		kprobes.UnregisterKretprobe(p.r)
	case p.j != nil:
		kprobes.UnregisterJprobe(p.j)
	default:
		kprobes.UnregisterKprobe(p.k)
	}
}

// enable enables the probe, or disables it.
func (p *probe) enable(on bool) error {
	type both struct{ enable, disable func() error }
	var f both
	switch {
	case p.r != nil:
		f = both{func() error { return kprobes.EnableKretprobe(p.r) }, func() error { return kprobes.DisableKretprobe(p.r) }}
	case p.j != nil:
		f = both{func() error { return kprobes.EnableJprobe(p.j) }, func() error { return kprobes.DisableJprobe(p.j) }}
	default:
		f = both{func() error { return kprobes.EnableKprobe(p.k) }, func() error { return kprobes.DisableKprobe(p.k) }}
	}
	if on {
		return f.enable()
	}
	return f.disable()
}

// base is the Kprobe in the probe.
func (p *probe) base() *kprobes.Kprobe {
	switch {
	case p.r != nil:
		return &p.r.Kp
	case p.j != nil:
		return &p.j.Kp
	}
	return p.k
}

// registerWhole registers a probe of each kind on every function.
func registerWhole() []*probe {
	var out []*probe
	for i, h := range hots {
		for _, kind := range kinds {
			switch {
			case kind == kindPost && h != all[hotFloats]: // a trap for each call
				continue
			case kind == kindJump && i%2 == 1: // a function has one: left to the probers
				continue
			}
			p := newProbe(h, kind, 0)
			if err := p.register(); err != nil {
				wrong("%s: %s: %v", h.name, kind, err)
				continue
			}
			out = append(out, p)
		}
	}
	return out
}

// unregisterWhole tells what they counted since before.
func unregisterWhole(ps []*probe, before map[string]total) []count {
	now := totals()
	var out []count
	for _, p := range ps {
		p.unregister()
		s := p.base().State()
		c := count{
			Kind: p.kind, Func: p.of.name, Runs: p.runs.n.Load(), Bad: p.runs.bad.Load(), Hits: s.Hits, Misses: s.Misses, Unwound: s.Unwound,
			Calls: now[p.of.name].calls - before[p.of.name].calls, Left: now[p.of.name].left - before[p.of.name].left,
		}
		if err := p.base().Fault(); err != nil {
			c.Fault = err.Error()
		}
		out = append(out, c)
	}
	return out
}

// ofRuntime are functions of the runtime that probers also probe: by kprobes, since what
// they do can not be counted here.
var ofRuntime = []*hot{
	{name: "runtime.mallocgc"},
	{name: "runtime.newstack"},
	{name: "runtime.memmove"},
	{name: "runtime.schedule"},
	{name: "runtime.copystack"},
	{name: "runtime.gcDrain"},
	{name: "runtime.scanblock"},
	{name: "runtime.gopanic"},
	{name: "runtime.chansend"},
	{name: "runtime.chanrecv"},
	{name: "runtime.newproc1"},
	{name: "runtime.findfunc"},
}

// tally is what a prober did.
type tally struct {
	rounds map[string]int
	hits   uint64
}

// prober registers, enables, disables and unregisters probes.
func prober(n int, rt bool, stop chan bool) tally {
	t := tally{rounds: map[string]int{}}
	rnd := rand.New(rand.NewPCG(uint64(n), 1))
	for {
		select {
		case <-stop:
			return t
		default:
		}
		h, kind := hots[rnd.IntN(len(hots))], kinds[rnd.IntN(len(kinds))]
		if rt && n%4 == 0 {
			h = ofRuntime[rnd.IntN(len(ofRuntime))]
			kind = kinds[:min(3, len(kinds))][rnd.IntN(min(3, len(kinds)))]
		}
		var flags kprobes.Flags
		if rnd.IntN(4) == 0 {
			flags = kprobes.FlagDisabled
		}
		p := newProbe(h, kind, flags)
		if t.round(p, rnd) {
			t.rounds[kind]++
		}
	}
}

// round puts a probe to one life, and checks what it counted.
func (t *tally) round(p *probe, rnd *rand.Rand) bool {
	before := p.of.calls.Load()
	if err := p.register(); err != nil {
		if p.kind != kindJump || !errors.Is(err, unix.EEXIST) { // a function has one jprobe
			wrong("%s: %s: %v", p.of.name, p.kind, err)
		}
		return false
	}
	for range rnd.IntN(4) {
		if err := p.enable(rnd.IntN(2) == 0); err != nil {
			wrong("%s: %s: enable or disable: %v", p.of.name, p.kind, err)
		}
		if rnd.IntN(3) == 0 {
			time.Sleep(time.Duration(rnd.IntN(2000)) * time.Microsecond)
		} else {
			runtime.Gosched()
		}
	}
	p.unregister()
	// A call may have hit the probe and not have counted itself yet, one of each worker.
	limit := p.of.calls.Load() - before + workers
	s := p.base().State()
	t.hits += s.Hits
	if n := p.runs.n.Load(); p.kind != kindCount && s.Hits != n || p.runs.bad.Load() != 0 {
		wrong("%s: %s: %d runs, %d of them wrong, %+v", p.of.name, p.kind, n, p.runs.bad.Load(), s)
	}
	if p.of.entry != nil && s.Hits+s.Misses.Total() > limit || s.Registered {
		wrong("%s: %s: at most %d calls, but %+v", p.of.name, p.kind, limit, s)
	}
	if err := p.base().Fault(); err != nil {
		wrong("%s: %s: %v", p.of.name, p.kind, err)
	}
	return true
}

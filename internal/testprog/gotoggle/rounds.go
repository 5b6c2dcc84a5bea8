package main

import (
	"fmt"
	"runtime"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/toggle"
)

// look notes what the functions, the probes and the returns have counted, while the threads wait.
func (r *toggling) look(ps []*probed) {
	_, r.parked = called()
	for _, p := range ps {
		p.had = p.k.State()
	}
	r.seen = nil
	for _, ret := range r.returns {
		r.seen = append(r.seen, ret.State().Hits)
	}
}

// park has the threads wait, and compares what probes that were armed all the time have
// counted since they did the last time: each call, and nothing else.
func (r *toggling) park(ps []*probed) {
	run(false)
	_, now := called()
	for _, p := range ps {
		s := p.k.State()
		r.exactly(fmt.Sprintf("%v %s handler %t", p.at, s.Tactic, p.k.PreHandler != nil), s, p.had, now[p.at.fn]-r.parked[p.at.fn])
		r.ran(p, s)
	}
	for i, ret := range r.returns {
		s := ret.State()
		r.exactly("returns of "+ret.Kp.SymbolName, s, kprobes.State{Hits: r.seen[i]}, now[ret.Kp.SymbolName]-r.parked[ret.Kp.SymbolName])
	}
	r.look(ps)
}

func (r *toggling) exactly(what string, s, had kprobes.State, calls uint64) {
	hits, missed := s.Hits-had.Hits, s.Misses.Total()-had.Misses.Total()
	if hits+missed != calls {
		r.wrong("%s: %d hits and %d missed, the threads counted %d calls; %+v", what, hits, missed, calls, s)
	}
	r.Hits += hits
	r.Missed += missed
	r.Exact++
}

// ran compares the hits of a probe with the runs of its handler.
func (r *toggling) ran(p *probed, s kprobes.State) {
	if n := p.runs.Load(); p.k.PreHandler != nil && n != s.Hits {
		r.wrong("%v: %d hits, %d runs of the handler", p.at, s.Hits, n)
	}
	if err := p.k.Fault(); err != nil {
		r.wrong("%v: %v", p.at, err)
	}
}

// form checks that the probes are jumps where one fits, or breakpoints.
func (r *toggling) form(ps []*probed, jump bool) {
	for _, p := range ps {
		s := p.k.State()
		jumps := s.Tactic == arch.TacticJump
		if jumps {
			r.Jumps++
		} else {
			r.Traps++
		}
		if jumps != jump && (jumps || p.at.jumps()) {
			r.wrong("%v should be a jump: %t; %+v", p.at, jump, s)
		}
	}
}

// third is every third place.
func third(k int) (ps []*probed) {
	for i := k % 3; i < len(all); i += 3 {
		ps = append(ps, newProbe(all[i], (i/3+k)%4 == 0))
	}
	return ps
}

// cycle registers probes at a third of the places, changes the form of all of them again and
// again, and unregisters them, while the threads run: they wait before and after the
// changes of form, so that what was counted meanwhile can be compared.
func (r *toggling) cycle(k int) {
	var w toggle.Window
	ps := third(k)
	_, w.EndedBefore = called()
	r.register("a third", ps)
	r.settled()
	w.BegunArmed, _ = called()
	r.park(r.whole)
	staying := append(ps, r.whole...)
	r.look(staying)
	run(true)
	r.knob(staying)
	r.others(k)
	r.park(staying)
	run(true)
	_, w.EndedArmed = called()
	r.unregister("a third", ps)
	r.settled()
	w.BegunAfter, _ = called()
	for _, p := range ps {
		r.within(p, &w, kprobes.State{})
	}
	if k%3 == 0 {
		runtime.GC()
	}
}

// within compares what a probe that comes and goes has counted since.
func (r *toggling) within(p *probed, w *toggle.Window, had kprobes.State) {
	s := p.k.State()
	n := s.Hits + s.Misses.Total() - had.Hits - had.Misses.Total()
	if err := w.Check(p.at.fn, n); err != nil {
		r.wrong("%v: %v; %+v", p.at, err, s)
	}
	r.ran(p, s)
	r.Hits += n
	r.Within++
}

// knob has all probes become breakpoints, and jumps, and what they were.
func (r *toggling) knob(ps []*probed) {
	on := r.c.Optimization()
	for _, form := range []bool{!on, on, !on} {
		r.change(fmt.Sprintf("the knob to %t", form), func() error { return r.c.SetOptimization(form) })
		r.settled()
		r.form(ps, form)
	}
}

// others registers second probes beside those that are there, within their regions: some with
// post handlers, which run behind the instruction, and unregisters them.
func (r *toggling) others(k int) {
	var second, post []*probed
	for i := k % 5; i < len(all); i += 5 {
		second = append(second, newProbe(all[i], false))
	}
	for i := k % 7; i < len(all); i += 7 {
		p := newProbe(all[i], true)
		p.k.PostHandler = nothing
		post = append(post, p)
	}
	r.register("second probes", second)
	r.register("post handlers", post)
	r.settled()
	r.form(post, r.c.Optimization())
	r.unregister("post handlers", post)
	r.unregister("second probes", second)
	r.settled()
	for _, p := range append(second, post...) {
		r.ran(p, p.k.State())
	}
}

func nothing(*kprobes.Kprobe, *kprobes.Regs, uint64) {}

// single enables a probe and disables it.
func (r *toggling) single(k int) {
	p := r.singles[k%len(r.singles)]
	had := p.k.State()
	var w toggle.Window
	_, w.EndedBefore = called()
	r.change("enable", func() error { return r.c.EnableKprobe(&p.k) })
	r.settled()
	w.BegunArmed, _ = called()
	time.Sleep(time.Millisecond)
	_, w.EndedArmed = called()
	r.change("disable", func() error { return r.c.DisableKprobe(&p.k) })
	r.settled()
	w.BegunAfter, _ = called()
	r.within(p, &w, had)
}

// all disarms and arms everything at once, again times: as breakpoints every other time.
func (r *toggling) all(k, again int) {
	r.park(r.whole)
	run(true)
	if k%2 == 1 {
		r.change("the knob", func() error { return r.c.SetOptimization(!r.c.Optimization()) })
	}
	ps := third(k)
	var w toggle.Window
	_, w.EndedBefore = called()
	r.register("a third", ps)
	for range again {
		for _, on := range []bool{false, true} {
			r.change(fmt.Sprintf("all to %t", on), func() error { return r.c.SetEnabled(on) })
		}
	}
	r.settled()
	r.unregister("a third", ps)
	r.settled()
	w.BegunAfter, _ = called()
	for _, p := range ps {
		r.within(p, &w, kprobes.State{})
	}
	run(false)
	r.look(r.whole)
	run(true)
}

package engine

import (
	"cmp"
	"runtime"
	"slices"
	"sort"
	"sync"

	"kprobes.dev/kprobes/internal/engine/plan"
)

// generate makes the code that a change is to put in, with room in arena, and says how each event gets control by it, or why
// there is no such code.
func (ed *editor) generate(ch *functionChange, arena *codeArena) {
	f := ch.f
	ch.Add, ch.now, ch.err = nil, nil, nil
	if len(f.events) == 0 {
		return
	}
	clear(arena.ops)
	for _, e := range inOrder(f.events) {
		if e.idle() {
			continue
		}
		if ch.err = e.works(arena.ops, ed.can.FaultsCaught); ch.err != nil {
			return
		}
	}
	stands := ed.can.Stands
	if len(f.sites) > 0 { // a function that has code keeps its place: what must end is to end
		stands = nil
	}
	p := f.plan(nil)
	if ch.Add, ch.err = p.Sites(ed.t.Arch(), arena.ops, arena, ed.t.CodegenEnv(), stands); ch.err != nil {
		ed.release(ch.Add)
		ch.Add = nil
		return
	}
	for _, e := range f.events {
		if !e.idle() {
			tactic, why := p.Form(e.points)
			ch.now = append(ch.now, eventForm{e, armedAs{tactic, why}})
		}
	}
}

// inOrder gives events in the order of their registration: so is their work done.
func inOrder(evs []*Event) []*Event {
	if len(evs) < 2 {
		return evs
	}
	out := slices.Clone(evs)
	slices.SortStableFunc(out, func(a, b *Event) int { return cmp.Compare(a.seq, b.seq) })
	return out
}

// make generates the code of changes, and gives those of which that failed, in the order of their
// functions.
func (ed *editor) make(cs []*functionChange) (failed []*functionChange) {
	arenas := make([]codeArena, runtime.GOMAXPROCS(0))
	for i := range arenas {
		arenas[i] = codeArena{ed: ed, size: plan.FirstRoom, ops: plan.Ops{}}
		if len(cs) > batchStep {
			arenas[i].size = batchRoom
		}
		defer arenas[i].close()
	}
	var mu sync.Mutex
	each(len(cs), func(w, i int) {
		ch := cs[i]
		ed.generate(ch, &arenas[w])
		if ch.err != nil {
			mu.Lock()
			failed = append(failed, ch)
			mu.Unlock()
		}
		if len(cs) > batchStep && ch.f.Code != nil {
			ch.f.Code.Release()
		}
	})
	sort.Slice(failed, func(i, j int) bool { return byStart(failed[i].f, failed[j].f) < 0 })
	return failed
}

// remake makes the code of a change anew.
func (ed *editor) remake(ch *functionChange) error {
	ed.make([]*functionChange{ch})
	return ch.err
}

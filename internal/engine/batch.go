package engine

import (
	"runtime"
	"sort"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// Many functions at once are analysed, and their code is generated, on all processors.

// match is the event of a function that a pattern matches, or why there is none.
type match struct {
	e     *Event
	base  string // of its name
	err   error
	fresh *function // not known before; nil: it was
}

// matched makes the events of a definition's pattern, which have no names yet, and takes the functions
// that are not known yet into c.fns, with the regions for the definition's points in them. Events of
// counters need nothing that others use, and are made on all processors, as the analysis is.
func (c *Core) matched(m *symbol.Module, fns []*symbol.Func, d *event.Def, o *AddOptions) []match {
	out := make([]match, len(fns))
	one := func(i int, f *function) {
		def := *d
		def.Name = ""
		def.Place.Glob, def.Place.Symbol = false, fns[i].Pretty()
		if fns[i].Name == "" { // it goes by its address
			def.Place.Kind, def.Place.Symbol, def.Place.Addr = event.PlaceAddr, "", fns[i].Addr
		}
		e := newEvent(&def, c, o)
		r := symbol.Resolved{Module: m, Func: fns[i], Vaddr: fns[i].Addr, Addr: m.Runtime(fns[i].Addr)}
		if out[i].err = c.locateIn(e, r, f); out[i].err == nil {
			e.Given, e.oneOf = d, true
			out[i].e, out[i].base = e, def.BaseName(def.Place)
		}
	}
	asks := c.can.Describer != nil
	alone := o.Count && d.Filter == "" && d.Kind == event.Probe && !asks
	each(len(fns), func(_, i int) {
		f := c.fns[m.Runtime(fns[i].Addr)]
		if f == nil {
			var err error
			if f, err = c.newFunction(symbol.Resolved{Module: m, Func: fns[i]}); err != nil {
				return // it comes again below
			}
			out[i].fresh = f
			if len(fns) > batchStep {
				f.prepare(d, o.Tactic)
			}
		}
		if alone && !fns[i].IFunc {
			one(i, f)
		}
	})
	for i := range out {
		if f := out[i].fresh; f != nil && c.fns[f.Start] == nil {
			c.fns[f.Start] = f
		} else if f != nil {
			out[i] = match{} // another function begins there too
		}
		if out[i].e == nil && out[i].err == nil {
			one(i, nil)
		}
	}
	return out
}

// prepare plans the regions that a definition at the function's start will want and drops
// the rest of the analysis: that of thousands of functions takes much memory.
func (f *function) prepare(d *event.Def, tactic arch.Tactic) {
	points := []uint64{f.Code.EntryPoint()}
	if d.Kind == event.Return {
		exits, err := f.Code.Exits() // it comes again where the event is made
		if err != nil {
			f.Code.Tails()
		}
		for _, x := range exits {
			points = append(points, x.Addr)
		}
	}
	f.Code.Plan(points, arch.Policy{Force: regionTactic(tactic)}) // which the analysis keeps
	f.Code.Release()
}

// Room that an event takes, as a guess, in bytes: its detours.
const (
	countRoom  = 256
	recordRoom = 1024
	callRoom   = 2048 // also of a return probe: an entry, and an exit or two
)

// reserve tells the target what room events will take.
func (c *Core) reserve(evs []*Event) {
	t := c.can.Reserver
	if t == nil {
		return
	}
	arena, sizes := &codeArena{ed: &c.editor}, map[target.Room]target.Room{}
	for _, e := range evs {
		if e.gone || e.watches() || e.force.Held() {
			continue
		}
		n := recordRoom
		switch {
		case e.h != nil, e.Def != nil && e.Def.Kind == event.Return:
			n = callRoom
		case e.Prog == nil:
			n = countRoom
		}
		lo, hi := arena.Span(e.Place.Addr)
		at := target.Room{Lo: lo, Hi: max(hi, lo+1)}
		at.Size, at.Sites = sizes[at].Size+n, sizes[at].Sites+1
		sizes[target.Room{Lo: at.Lo, Hi: at.Hi}] = at
	}
	rooms := make([]target.Room, 0, len(sizes))
	for _, r := range sizes {
		r.Size += runtime.GOMAXPROCS(0) * batchRoom
		rooms = append(rooms, r)
	}
	sort.Slice(rooms, func(i, j int) bool { return rooms[i].Lo < rooms[j].Lo })
	t.Reserve(rooms)
}

package engine

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/plan"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// Many functions at once are analysed, and their code is generated, on all processors.

// batchStep is the number of neighbours that one processor takes at a time: they are read
// from the same window of the file.
const batchStep = 16

// each calls f for every number i below n, on several goroutines if that are many. No two
// calls at a time have the same worker, a number below GOMAXPROCS.
func each(n int, f func(worker, i int)) {
	var next atomic.Int64
	work := func(w int) {
		for {
			hi := int(next.Add(batchStep))
			for i := hi - batchStep; i < min(hi, n); i++ {
				f(w, i)
			}
			if hi >= n {
				return
			}
		}
	}
	var wg sync.WaitGroup
	for w := 1; w < runtime.GOMAXPROCS(0) && w*batchStep < n; w++ {
		wg.Go(func() { work(w) })
	}
	work(0)
	wg.Wait()
}

// make generates the code of changes, and gives those of which that failed, in the order of their
// functions.
func (c *Core) make(cs []*functionChange) (failed []*functionChange) {
	yards := make([]codeArena, runtime.GOMAXPROCS(0))
	for i := range yards {
		yards[i] = codeArena{c: c, size: plan.FirstRoom, ops: plan.Ops{}}
		if len(cs) > batchStep {
			yards[i].size = yardRoom
		}
		defer yards[i].close()
	}
	var mu sync.Mutex
	each(len(cs), func(w, i int) {
		ch := cs[i]
		c.generate(ch, &yards[w])
		if ch.err != nil {
			mu.Lock()
			failed = append(failed, ch)
			mu.Unlock()
		}
		if len(cs) > batchStep && ch.f.a != nil {
			ch.f.a.Release()
		}
	})
	slices.SortFunc(failed, func(a, b *functionChange) int { return byStart(a.f, b.f) })
	return failed
}

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
			e.pattern = d
			out[i].e, out[i].base = e, def.BaseName(def.Place)
		}
	}
	asks := c.can.Describer != nil
	alone := o.Count && d.Kind == event.Probe && !asks
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
		if f := out[i].fresh; f != nil && c.fns[f.start] == nil {
			c.fns[f.start] = f
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
	points := []uint64{f.a.EntryPoint()}
	if d.Kind == event.Return {
		exits, err := f.a.Exits() // it comes again where the event is made
		if err != nil {
			f.a.Tails()
		}
		for _, x := range exits {
			points = append(points, x.Addr)
		}
	}
	plan.Make(f.planFunction(), []plan.Probe{{Points: points}}, plan.Constraints{Force: regionTactic(tactic)}) // which the analysis keeps
	f.a.Release()
}

// codeArena is room for the code of several detours, taken from the target at once.
type codeArena struct {
	c       *Core
	size    int // what is taken at a time
	at, end uint64
	mod     *symbol.Module // that was last asked about, see span
	lo, hi  uint64         // its range
	ops     plan.Ops       // of the function at hand
}

// yardRoom is the room that a batch takes at a time, in bytes.
const yardRoom = 64 << 10

// yardReach is the distance that a jump covers, less what instructions need.
const yardReach = 1<<31 - 1<<12

// Take implements plan.Room.
func (y *codeArena) Take(lo, hi uint64, size int) (uint64, error) {
	if y.end-y.at >= uint64(size) && max(hi, y.end)-min(lo, y.at) < yardReach {
		return y.at, nil
	}
	y.close()
	n := max(size, y.size)
	y.c.room.Lock()
	defer y.c.room.Unlock()
	a, err := y.c.t.Code(lo, hi, n)
	if err != nil {
		return 0, err
	}
	y.at, y.end = a, a+uint64(n)
	return a, nil
}

// Keep implements plan.Room.
func (y *codeArena) Keep(n int) { y.at += uint64(n) }

// close gives the rest back.
func (y *codeArena) close() {
	if y.end > y.at {
		y.c.free(y.at, int(y.end-y.at))
	}
	y.at, y.end = 0, 0
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
	y, sizes := &codeArena{c: c}, map[target.Room]target.Room{}
	for _, e := range evs {
		if e.gone || e.force.Held() {
			continue
		}
		n := recordRoom
		switch {
		case e.h != nil, e.Def != nil && e.Def.Kind == event.Return:
			n = callRoom
		case e.Prog == nil:
			n = countRoom
		}
		lo, hi := y.Span(e.Place.Addr)
		at := target.Room{Lo: lo, Hi: max(hi, lo+1)}
		at.Size, at.Sites = sizes[at].Size+n, sizes[at].Sites+1
		sizes[target.Room{Lo: at.Lo, Hi: at.Hi}] = at
	}
	rooms := make([]target.Room, 0, len(sizes))
	for _, r := range sizes {
		r.Size += runtime.GOMAXPROCS(0) * yardRoom
		rooms = append(rooms, r)
	}
	slices.SortFunc(rooms, func(a, b target.Room) int { return cmp.Compare(a.Lo, b.Lo) })
	t.Reserve(rooms)
}

func (c *Core) free(addr uint64, size int) {
	c.room.Lock()
	defer c.room.Unlock()
	c.t.FreeCode(addr, size)
}

// Span implements plan.Room: the range is the module, if that
// is not too large.
func (y *codeArena) Span(addr uint64) (lo, hi uint64) {
	m := y.c.t.Space().ModuleAt(addr)
	if m == nil {
		return addr, addr
	}
	if m != y.mod {
		y.mod, y.lo, y.hi = m, addr, addr
		for _, s := range m.Image.Segments() {
			y.lo = min(y.lo, m.Runtime(s.Vaddr))
			y.hi = max(y.hi, m.Runtime(s.Vaddr+s.Memsz))
		}
	}
	if y.hi-y.lo > 1<<30 {
		return addr, addr
	}
	return min(y.lo, addr), max(y.hi, addr)
}

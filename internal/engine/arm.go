package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/target"
)

// arm puts new events into their functions and the functions' sites into the target.
// Events that no tactic can serve are an error, or skipped if the options say so.
func (c *Core) arm(evs []*Event, o *AddOptions) ([]*Event, error) {
	c.stubbed.asked = false
	if c.meetsOwn(evs) { // what the caller wants there must not come before the other own probes
		if err := errors.Join(c.armOwnNow(), c.located(evs)); err != nil {
			return evs, err
		}
	}
	fns := make([]*function, 0, len(evs))
	for _, e := range evs {
		if e.gone {
			continue
		}
		if err := c.pool(e); err != nil {
			return evs, e.refused(err)
		}
		e.fn.take(e)
		if !e.internalProbe {
			e.fn.wish = c.wishOf(e.fn, o)
		}
		fns = append(fns, e.fn)
	}
	kept := make([]*Event, 0, len(evs))
	for _, e := range evs {
		var err error
		if !e.gone {
			err = c.serve(e)
			if err == nil && e.byStub {
				err = c.stub(e)
			}
		}
		switch {
		case err == nil:
			kept = append(kept, e)
		case !o.skips(e):
			return evs, err
		default:
			if e.h != nil { // put forgets it
				e.h.left = err
				e.fn.drop(e)
				continue
			}
			c.skip(e.pattern, e.Place.Func.Pretty(), err, o)
			c.freeIDs = append(c.freeIDs, c.erase([]*Event{e})...) // no code was made for it
		}
	}
	fns = slices.DeleteFunc(fns, func(f *function) bool { return len(f.events) == 0 })
	if len(fns) == 0 {
		return kept, nil
	}
	slices.SortFunc(fns, byStart)
	left, err := c.generable(kept, slices.Compact(fns), o)
	if err != nil {
		return evs, err
	}
	return left, nil
}

// wishOf is what is asked of the regions of a function.
func (c *Core) wishOf(f *function, o *AddOptions) constraints {
	return constraints{force: regionTactic(o.Tactic), named: c.t.TrapsAt(f.start, true), unasked: c.t.TrapsAt(f.start, false)}
}

// noTraps says why no breakpoint may stand in the function now; nil: it may. The tactic asks for
// them by name, and the knob asks for all that may stand.
func (f *function) noTraps() error {
	if f.wish.force != "" || f.core != nil && f.core.optimizationOff {
		return f.wish.named
	}
	return f.wish.unasked
}

// generable brings functions to what their events want. Where no code of ours can serve a
// new event the kernel holds its probe; else it is an error, or the function's new events
// are left out if the options say so.
func (c *Core) generable(evs []*Event, fns []*function, o *AddOptions) ([]*Event, error) {
	bad := map[*function]error{}
	mend := func(f *function, err error) error {
		if bad[f] != nil {
			return err
		}
		fresh := slices.DeleteFunc(slices.Clone(f.events), func(e *Event) bool { return !slices.Contains(evs, e) })
		e, err := c.fallBackToUprobeAt(fresh, err)
		asked := func(e *Event) bool { return !o.skips(e) }
		switch {
		case err == nil:
			return nil
		case !slices.ContainsFunc(fresh, asked):
		case e != nil:
			return e.refused(err)
		default:
			return err
		}
		bad[f] = err
		for _, e := range fresh {
			f.drop(e)
		}
		return nil
	}
	if err := c.updateOr(fns, mend, stopping{}); err != nil {
		return nil, err
	}
	if len(bad) == 0 {
		return evs, nil
	}
	return slices.DeleteFunc(evs, func(e *Event) bool {
		err := bad[e.fn]
		if e.gone || err == nil {
			return false
		}
		if e.h != nil {
			e.h.left = e.refused(err)
			return true
		}
		c.skip(e.pattern, e.Place.Func.Pretty(), e.refused(err), o)
		e.ended = true
		e.release()
		return true
	}), nil
}

// refused wraps the reason why an event can not be armed.
func (e *Event) refused(err error) error {
	if e.h != nil {
		return e.h.refused(err)
	}
	return e.Def.Refuse(event.FailRegProbe, e.Def.Place.Pos, "", errors.Join(err, ErrRegister))
}

// pool gives a return probe its instances.
func (c *Core) pool(e *Event) error {
	if e.Def.Kind != event.Return || e.work.Pool != nil {
		return nil
	}
	p, err := c.t.Pool(len(e.Prog.EntryBases()), e.Def.MaxActive)
	e.work.Pool = p
	return err
}

// serves says whether all points of an event can be covered beside the function's
// other events.
func (f *function) serves(e *Event) error {
	err := f.covers(e)
	if err == nil || len(f.unoptimised()) == 0 {
		return err
	}
	f.jumpOnly = true
	if f.covers(e) == nil {
		return nil
	}
	f.jumpOnly = false
	return err
}

// covers is serves as the function's probes are to be armed now.
func (f *function) covers(e *Event) error {
	_, refused := f.plan(e.points...)
	for _, p := range e.points {
		if err := refused[p]; err != nil {
			return fmt.Errorf("%s+0x%x: no tactic fits: %w", f.name, p-f.start, err)
		}
	}
	return nil
}

// points are the instructions that regions must cover, more among them.
func (f *function) points(more ...uint64) []uint64 {
	if len(f.events) == 1 && !f.events[0].idle() {
		if own := f.events[0].points; len(own) == 1 && (len(more) == 0 || slices.Equal(more, own)) {
			return own
		}
	}
	out := slices.Clone(more)
	for _, e := range f.events {
		if !e.idle() {
			out = append(out, e.points...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// sites makes the sites that a function's events want, with room in y, and says how each event
// gets control by them.
func (c *Core) sites(f *function, y *codeArena) ([]*target.Site, []eventForm, error) {
	if len(f.events) == 0 {
		return nil, nil, nil
	}
	work := y.work
	clear(work)
	for _, e := range inOrder(f.events) {
		if e.idle() {
			continue
		}
		if err := e.works(work); err != nil {
			return nil, nil, err
		}
	}
	for _, ws := range work {
		returnsLast(ws)
	}
	regions, refused := f.plan()
	for at, err := range refused {
		return nil, nil, &arch.PointError{Addr: at, Err: fmt.Errorf("%s+0x%x: %w", f.name, at-f.start, err)}
	}
	var out []*target.Site
	for _, r := range regions {
		if err := c.stands(f, r, work); err != nil {
			c.release(out)
			return nil, nil, err
		}
		s, err := c.site(f, r, work, y)
		if err != nil {
			c.release(out)
			return nil, nil, fmt.Errorf("%s+0x%x: %w", f.name, placeOfError(r, err)-f.start, err)
		}
		out = append(out, s)
	}
	s, err := c.stubSite(f, work[atStub], y)
	if err != nil {
		c.release(out)
		return nil, nil, fmt.Errorf("%s: %w", f.name, err)
	}
	if s != nil {
		out = append(out, s)
	}
	var forms []eventForm
	for _, e := range f.events {
		if !e.idle() {
			forms = append(forms, eventForm{e, f.form(e, regions)})
		}
	}
	return out, forms, nil
}

// release gives back the room of detours that were not installed.
func (c *Core) release(sites []*target.Site) {
	for _, s := range sites {
		c.free(s.Detour.Addr, s.Room)
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

// placeOfError is the instruction of a region that an error is about: the first, if it does
// not say.
func placeOfError(r arch.Region, err error) uint64 {
	var at *arch.PointError
	if errors.As(err, &at) {
		return at.Addr
	}
	return r.Start()
}

// form tells the slowest tactic among those of an event's points, and why.
func (f *function) form(e *Event, regions []arch.Region) armedAs {
	var out armedAs
	for _, r := range regions {
		if slices.ContainsFunc(e.points, r.Holds) && (out.tactic == "" || rank(r.Tactic()) > rank(out.tactic)) {
			out = armedAs{r.Tactic(), r.Why()}
		}
	}
	if out.tactic != "" && out.tactic != arch.TacticJump {
		out.why = f.whyTrap(e, out.why)
	}
	return out
}

func rank(t arch.Tactic) int {
	return slices.Index([]arch.Tactic{arch.TacticJump, arch.TacticBoost, arch.TacticStep, arch.TacticUprobe, arch.TacticBreak}, t)
}

func (c *Core) site(f *function, r arch.Region, work map[uint64][]arch.ProbeOp, y *codeArena) (*target.Site, error) {
	d, room, err := c.detour(f, r, work, y)
	if err != nil {
		return nil, err
	}
	s := &target.Site{Addr: r.Start(), Detour: d, Room: room, Trap: r.Tactic() != arch.TacticJump}
	s.Points = pointsOf(r, work)
	if s.Trap {
		s.Reason = f.reason(r)
	} else {
		s.Reason = f.plainReason(r)
	}
	if s.Patch, err = f.a.Patch(r, d.Addr); err == nil {
		s.Orig, err = f.orig(s.Addr, len(s.Patch))
	}
	if err != nil {
		return nil, err
	}
	y.keep(room)
	return s, nil
}

// stands says why the target has no place for code in a function that has none yet. One that has
// some keeps it: what must end is to end.
func (c *Core) stands(f *function, r arch.Region, work map[uint64][]arch.ProbeOp) error {
	if c.can.Stands == nil || len(f.sites) > 0 {
		return nil
	}
	why := c.can.Stands(r.Start())
	if why == nil {
		return nil
	}
	at := uint64(math.MaxUint64) // the first event's, which another tactic may serve
	for p := range work {
		if r.Holds(p) {
			at = min(at, p)
		}
	}
	return &arch.PointError{Addr: at, Err: fmt.Errorf("%s+0x%x: %w", f.name, r.Start()-f.start, why)}
}

// detour generates the code of a region and finds the room for it. Most detours fit what is
// tried first; the size of one that does not is found out, and it is generated anew.
func (c *Core) detour(f *function, r arch.Region, work map[uint64][]arch.ProbeOp, y *codeArena) (d *arch.Detour, room int, err error) {
	w := c.t.CodegenEnv()
	lo, hi := y.span(r.Start())
	for room = firstRoom; ; {
		addr, err := y.take(lo, hi, room)
		if err != nil {
			return nil, 0, err
		}
		if d, err = f.a.Detour(addr, r, work, w); err != nil {
			return nil, 0, err
		}
		need := (len(d.Code) + roomStep - 1) &^ (roomStep - 1)
		if need <= room {
			return d, need, nil
		}
		if room, err = f.a.DetourSize(r, work, w); err != nil {
			return nil, 0, err
		}
		room = max(room, need+roomStep)
	}
}

// pointsOf tells what stands at the points of a region, in order of address.
func pointsOf(r arch.Region, work map[uint64][]arch.ProbeOp) []target.Point {
	var out []target.Point
	for at, ws := range work {
		if !r.Holds(at) {
			continue
		}
		p := target.Point{Addr: at}
		for i := range ws {
			switch {
			case ws[i].Role == arch.RoleEntry:
				p.Returns++
			case i > 0 && ws[i].Event == ws[i-1].Event: // of the same probe
			case ws[i].Role == arch.RoleRecord || ws[i].Role == arch.RoleCall:
				p.Probes++
			}
		}
		if p.Probes+p.Returns > 0 {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b target.Point) int { return cmp.Compare(a.Addr, b.Addr) })
	return out
}

// span is the range that the code around an address may refer to: its module, if that
// is not too large.
func (y *codeArena) span(addr uint64) (lo, hi uint64) {
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

package engine

import (
	"slices"
	"sort"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/interval"
)

// Leaving has a probe tell of calls that a goroutine leaves without their returns (arch.Left). The probe's code refers to the instances of these
// calls' events. So whoever changes the function of one of these makes that code anew, in the same stop.
type Leaving struct {
	At    *event.Def          // a probe with the arguments of arch.Left
	Calls map[*event.Def]bool // return probes

	at   *Event
	of   []*Event // of Calls
	made []*Event // of these, those that the code tells of which was generated last
	in   []*Event // likewise, the code that is in
}

// Leave has the events of a Leaving, which are to be added next, tell of calls that are left. In a target or of a function where that can not
// be had nothing is told: such calls are counted as unwound.
func (c *Core) Leave(l *Leaving) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ls, ok := c.leavings.(*leavings)
	if !ok {
		ls = &leavings{c: c}
		c.leavings, c.markLeft, c.dependents = ls, ls.mark, ls.dependents
	}
	ls.all = slices.DeleteFunc(ls.all, func(o *Leaving) bool { return o.at != nil && o.at.ended })
	ls.all = append(ls.all, l)
}

// leavings are those of a Core (Core.leavings).
type leavings struct {
	c   *Core
	all []*Leaving
}

// mark notes which of new events belong to a Leaving.
func (ls *leavings) mark(evs []*Event) {
	main := ls.c.t.Space().Main()
	for _, l := range ls.all {
		for _, e := range evs {
			switch {
			case e.Prog == nil || e.gone || e.Place.Module != main:
			case e.Given == l.At && (l.at == nil || l.at.ended):
				l.at, e.leaving, e.most = e, l, Budget{}
			case l.Calls[e.Given] && !e.byStub && e.Prog.Stack == 0 && e.work.Hist == nil && isGo(e.Place.Func):
				e.left = -1
				l.of = append(l.of, e)
			}
		}
	}
}

// dependents is editor.dependents.
func (ls *leavings) dependents(fns []*function) []*function {
	had := len(fns)
	for _, l := range ls.all {
		if l.at == nil || l.at.ended || l.at.fn == nil || slices.Contains(fns, l.at.fn) {
			continue
		}
		if slices.ContainsFunc(l.of, func(e *Event) bool { return slices.Contains(fns[:had], e.fn) }) {
			fns = append(fns[:len(fns):len(fns)], l.at.fn)
		}
	}
	if len(fns) > had {
		sort.Slice(fns, func(i, j int) bool { return byStart(fns[i], fns[j]) < 0 })
	}
	return fns
}

// wanted are the events that the code is to tell of.
func (l *Leaving) wanted() (out []*Event) {
	for _, e := range l.of {
		if !e.ended && e.work.Pool != nil && !e.idle() && slices.Contains(e.fn.events, e) {
			out = append(out, e)
		}
	}
	return out
}

func (l *Leaving) work(w *arch.ProbeOp) {
	m := l.at.Place.Module
	left := &arch.Left{Code: native.LeftCode()}
	for _, s := range m.Image.TextRanges() {
		left.Text = left.Text.Union(interval.Range{Start: m.Runtime(s.Start), End: m.Runtime(s.End)})
	}
	l.made = l.wanted()
	for _, e := range l.made {
		op := e.work
		op.Role, op.Event, op.Instance, op.PlainLoads = arch.RoleLeft, e.left, e.ID, w.PlainLoads
		left.Calls = append(left.Calls, op)
	}
	w.Role, w.Left = arch.RoleLeft, left
}

func (l *Leaving) outdated() bool { return !slices.Equal(l.made, l.wanted()) }

func (l *Leaving) stands() { l.in = l.made }

func (l *Leaving) owes() bool {
	want := l.wanted()
	return slices.ContainsFunc(l.in, func(e *Event) bool { return !slices.Contains(want, e) })
}

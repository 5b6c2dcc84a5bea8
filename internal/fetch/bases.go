package fetch

import "slices"

// PointBases lists the bases that the program reads at its own point. nil has none.
func (p *Program) PointBases() []Base {
	if p == nil {
		return nil
	}
	var out []Base
	for i := range p.Args {
		a := &p.Args[i]
		if a.AtEntry {
			continue
		}
		out = append(out, a.Base)
		if a.Counted() {
			out = append(out, a.Len)
		}
	}
	return out
}

// EntryBases lists, without doubles, the bases that a return probe's entry saves. The
// position in the list is the position in an instance's slot. nil has none.
func (p *Program) EntryBases() []Base { return p.entry(true) }

// EntryReads lists, without doubles, the bases that a return probe's entry reads for them.
func (p *Program) EntryReads() []Base { return p.entry(false) }

// entry is EntryBases, or EntryReads.
func (p *Program) entry(saved bool) []Base {
	if p == nil {
		return nil
	}
	var out []Base
	add := func(b Base) {
		for _, o := range out {
			if o == b {
				return
			}
		}
		out = append(out, b)
	}
	for i := range p.Args {
		a := &p.Args[i]
		if !a.AtEntry {
			continue
		}
		if a.Store == StoreSpan && saved {
			for n := range SpanSize / 8 {
				add(Base{Kind: BaseSpan, N: n, Imm: uint64(i)})
			}
			continue
		}
		add(a.Base)
		if a.Counted() {
			add(a.Len)
		}
	}
	return out
}

// EntrySpans says whether the entry of a return probe goes to a span for an argument.
func (p *Program) EntrySpans() bool {
	return p != nil && slices.ContainsFunc(p.Args, func(a Arg) bool { return a.AtEntry && a.Store == StoreSpan })
}

// Durations says whether an argument is the duration of a call. nil has none.
func (p *Program) Durations() bool {
	return slices.Contains(p.EntryBases(), Base{Kind: BaseDuration})
}

// Loads says whether an argument, or the walk over the stack, reads memory, at the probe's point or, for the value of a
// return probe's entry, there.
func (p *Program) Loads() bool {
	return p != nil && (p.Stack > 0 || slices.ContainsFunc(p.Args, func(a Arg) bool {
		return a.Store != StoreNone && a.Store != StoreComm && (len(a.Derefs) > 0 || a.Store != StoreValue || a.Base.Kind == BaseStack)
	}))
}

// Counted says whether the argument is a counted string, or a context, whose two words are
// two bases (not a header in memory).
func (a *Arg) Counted() bool {
	return (a.Store == StoreCounted || a.Store == StoreSpan) && len(a.Derefs) == 0
}

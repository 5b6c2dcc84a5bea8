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
		for _, c := range a.Checks {
			out = append(out, c.Base)
		}
	}
	return out
}

// EntryBases lists, without doubles, the bases that a return probe's entry saves. The
// position in the list is the position in an instance's slot. nil has none.
func (p *Program) EntryBases() []Base {
	if p == nil {
		return nil
	}
	var out []Base
	for i := range p.Args {
		a := &p.Args[i]
		if !a.AtEntry {
			continue
		}
		all := a.Saved
		if all == nil {
			all = []Base{a.Base}
			if a.Counted() {
				all = append(all, a.Len)
			}
			for _, c := range a.Checks {
				all = append(all, c.Base)
			}
		}
		for _, b := range all {
			if !slices.Contains(out, b) {
				out = append(out, b)
			}
		}
	}
	return out
}

// Durations says whether an argument is the duration of a call. nil has none.
func (p *Program) Durations() bool {
	return slices.Contains(p.EntryBases(), Base{Kind: BaseDuration})
}

// Loads says whether an argument, or the walk over the stack, reads memory, at the probe's point or, for the value of a
// return probe's entry, there.
func (p *Program) Loads() bool {
	return p != nil && (p.Stack > 0 || slices.ContainsFunc(p.Args, func(a Arg) bool {
		return a.Store != StoreNone && a.Store != StoreComm && (len(a.Derefs) > 0 || a.Store != StoreValue || a.Base.Kind == BaseStack || slices.ContainsFunc(a.Checks, Check.Loads))
	}))
}

// Counted says whether the argument is a counted string, or a context, whose two words are
// two bases (not a header in memory).
func (a *Arg) Counted() bool {
	return (a.Store == StoreCounted || a.Store == StoreSpan) && len(a.Derefs) == 0
}

// Loads says whether a check reads memory.
func (c Check) Loads() bool { return len(c.Derefs) > 0 || c.Base.Kind == BaseStack }

package debuginfo

import (
	"cmp"
	"debug/dwarf"
	"errors"
	"slices"
	"strings"
)

// InlinedCall is a call that was inlined.
type InlinedCall struct {
	PC            uint64 // where it begins, at link time
	Name, Linkage string // of the function: as it is declared, and as the linker knows it ("": as declared)
}

// Inlined gives the calls that were inlined of functions whose name, or linkage name, is meant, one of each function at an address, in
// the order of their addresses.
func (f *File) Inlined(meant func(name, linkage string) bool) ([]InlinedCall, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.walk()
	if err := f.indexInlined(w); err != nil {
		return nil, err
	}
	var calls []InlinedCall
	for off, entries := range f.inlines {
		e, _, err := w.at(off)
		if err != nil {
			continue
		}
		one := InlinedCall{Name: w.name(e)}
		one.Linkage, _ = w.val(e, dwarf.AttrLinkageName).(string)
		if !meant(one.Name, one.Linkage) {
			continue
		}
		for _, at := range entries {
			e, _, err := w.at(at)
			if errors.Is(err, ErrLimit) {
				return nil, err
			}
			if err != nil {
				continue
			}
			var begins bool
			if one.PC, begins = w.begin(e); begins {
				calls = append(calls, one)
			}
		}
	}
	slices.SortFunc(calls, func(a, b InlinedCall) int {
		return cmp.Or(cmp.Compare(a.PC, b.PC), strings.Compare(a.Name, b.Name), strings.Compare(a.Linkage, b.Linkage))
	})
	return slices.Compact(calls), nil
}

// indexInlined finds the inlined calls of all functions, once, by the entries of the functions.
func (f *File) indexInlined(w *walk) error {
	if f.inlines != nil {
		return nil
	}
	inlines := map[dwarf.Offset][]dwarf.Offset{}
	for i := range f.units {
		if err := f.skim(w, &f.units[i], dwarf.TagInlinedSubroutine, func(r reference) {
			inlines[r.of] = append(inlines[r.of], r.at)
		}); err != nil {
			return err
		}
	}
	f.inlines = inlines
	return nil
}

// begin is where an inlined call begins.
func (w *walk) begin(e *dwarf.Entry) (uint64, bool) {
	rs, err := w.ranges(e)
	if err != nil || len(rs) == 0 {
		return 0, false
	}
	low := rs[0][0]
	for _, r := range rs {
		low = min(low, r[0])
	}
	switch pc := e.Val(dwarf.AttrEntrypc).(type) {
	case uint64:
		return pc, true
	case int64: // from where the code begins
		return rs[0][0] + uint64(pc), true
	}
	return low, true
}

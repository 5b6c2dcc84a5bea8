package debuginfo

import (
	"debug/dwarf"
	"slices"
)

// Inlined gives the link-time addresses at which calls begin that were inlined of functions whose name, or linkage name, is meant.
func (f *File) Inlined(meant func(name, linkage string) bool) ([]uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.walk()
	if err := f.indexInlined(w); err != nil {
		return nil, err
	}
	var at []uint64
	for off, pcs := range f.inlines {
		e, _, err := w.at(off)
		if err != nil {
			continue
		}
		linkage, _ := w.val(e, dwarf.AttrLinkageName).(string)
		if meant(w.name(e), linkage) {
			at = append(at, pcs...)
		}
	}
	slices.Sort(at)
	return slices.Compact(at), nil
}

// indexInlined finds the inlined calls of all functions, once: by the entries of the functions, where each begins.
func (f *File) indexInlined(w *walk) error {
	if f.inlines != nil {
		return nil
	}
	inlines := map[dwarf.Offset][]uint64{}
	r := f.data.Reader()
	for i := range f.units {
		u := &f.units[i]
		r.Seek(u.first)
		for {
			e, err := w.next(r)
			if err != nil && w.left < 0 {
				return err
			}
			if err != nil || e == nil || e.Offset >= u.end {
				break // what was read of a damaged unit is used
			}
			if e.Tag != dwarf.TagInlinedSubroutine {
				continue
			}
			of, ok := origin(e)
			if pc, begins := w.begin(e); ok && begins {
				inlines[of] = append(inlines[of], pc)
			}
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

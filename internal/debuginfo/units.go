package debuginfo

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sort"
)

// unitsOf finds the compilation units, and where the abbreviations of all units are (DWARF 5, 7.5.1.1; DWARF 4, 7.5.1.1).
//
//	u32 length, or 0xffffffff and u64 length | u16 version |
//	to 4: offset of abbreviations | u8 address size
//	5:    u8 type | u8 address size | offset of abbreviations | what the type has
func unitsOf(info []byte) (units []unit, tables []uint64) {
	for pos := 0; pos < len(info) && len(tables) <= maxUnits; {
		c := cursor{b: info, pos: pos}
		length, wide := uint64(c.u32()), false
		if length == math.MaxUint32 {
			length, wide = c.u64(), true
		}
		if c.bad || length > uint64(len(info)-c.pos) {
			break
		}
		end := c.pos + int(length)
		u := unit{start: dwarf.Offset(pos), version: int(c.u16()), wide: wide, end: dwarf.Offset(end)}
		kind := uint8(unitCompile)
		if u.version >= 5 {
			kind = c.u8()
			u.addrSize = int(c.u8())
		}
		u.abbrev = c.offset(wide)
		tables = append(tables, u.abbrev)
		if u.version < 5 {
			u.addrSize = int(c.u8())
		}
		if kind == unitSkeleton {
			c.u64()
		}
		u.first = dwarf.Offset(c.pos)
		if !c.bad && c.pos < end && (kind == unitCompile || kind == unitSkeleton) {
			units = append(units, u)
		}
		pos = end
	}
	return units, tables
}

// Types of units (DWARF 5, 7.5.1).
const (
	unitCompile  = 1
	unitSkeleton = 4
)

// unitsAt goes through the units whose code a link-time address may be in. Precondition: the units are indexed.
func (f *File) unitsAt(pc uint64) iter.Seq[*unit] {
	return func(yield func(*unit) bool) {
		for i := range f.spans {
			s := &f.spans[i]
			if s.start > pc || pc < s.end && !yield(&f.units[s.unit]) {
				return
			}
		}
	}
}

// find gives the entry of the function that begins at a link-time address.
func (f *File) find(w *walk, pc uint64) (dwarf.Offset, error) {
	if err := f.indexUnits(w); err != nil {
		return 0, err
	}
	for u := range f.unitsAt(pc) {
		if err := f.indexFuncs(w, u); err != nil {
			return 0, err
		}
		if off, ok := u.funcs[pc]; ok {
			return off, nil
		}
	}
	return 0, fmt.Errorf("nothing at 0x%x: %w", pc, ErrNone)
}

// indexUnits learns which code belongs to which unit.
func (f *File) indexUnits(w *walk) error {
	if f.index {
		return nil
	}
	for i := range f.units {
		u := &f.units[i]
		e, _, err := w.at(u.first)
		if errors.Is(err, ErrLimit) {
			return err
		}
		if err != nil || e.Tag != dwarf.TagCompileUnit {
			continue // this one is damaged, or none
		}
		u.root = e
		rs, err := w.ranges(e)
		if err != nil {
			continue
		}
		for _, r := range rs {
			if r[0] < r[1] {
				f.spans = append(f.spans, span{r[0], r[1], i})
			}
		}
	}
	sort.SliceStable(f.spans, func(i, j int) bool {
		a, b := f.spans[i], f.spans[j]
		return a.start < b.start || a.start == b.start && a.unit < b.unit
	})
	f.index = true
	return nil
}

// indexFuncs lists the functions of a unit.
func (f *File) indexFuncs(w *walk, u *unit) error {
	if u.funcs != nil {
		return nil
	}
	funcs := map[uint64]dwarf.Offset{}
	r := f.data.Reader()
	r.Seek(u.first)
	for {
		e, err := w.next(r)
		if errors.Is(err, ErrLimit) {
			return err
		}
		if err != nil || e == nil || e.Offset >= u.end {
			break // what was read of a damaged unit is used
		}
		if e.Tag != dwarf.TagSubprogram {
			continue
		}
		rs, err := w.ranges(e)
		if err != nil {
			rs = nil
		}
		pc, ok := e.Val(dwarf.AttrLowpc).(uint64)
		if !ok && len(rs) > 0 { // of several pieces the first is the entry
			pc, ok = rs[0][0], true
		}
		if _, dup := funcs[pc]; ok && !dup {
			funcs[pc] = e.Offset
			for _, r := range rs {
				u.code = append(u.code, funcCode{r[0], r[1], e.Offset})
			}
		}
		if f.known+len(funcs)+len(u.code) > maxFuncs {
			return fmt.Errorf("more than %d functions: %w", maxFuncs, ErrLimit)
		}
	}
	sort.SliceStable(u.code, func(i, j int) bool { return u.code[i].start < u.code[j].start })
	u.funcs, f.known = funcs, f.known+len(funcs)+len(u.code)
	return nil
}

// holding gives the entry of the function that an instruction of the unit lies in.
func (f *File) holding(w *walk, u *unit, pc uint64) (dwarf.Offset, bool) {
	if f.indexFuncs(w, u) != nil {
		return 0, false
	}
	i := sort.Search(len(u.code), func(i int) bool { return u.code[i].start > pc }) - 1
	if i < 0 || pc >= u.code[i].end {
		return 0, false
	}
	return u.code[i].off, true
}

// checkTables refuses tables of abbreviations that take long to read, or declare entries that do. Package debug/dwarf bounds neither.
//
//	uleb code, 0 at the end | uleb tag | u8 children | (uleb attribute | uleb form | sleb constant, of one form)*, 0, 0
func checkTables(abbrev []byte, tables []uint64) error {
	if len(tables) > maxUnits {
		return fmt.Errorf("more than %d units: %w", maxUnits, ErrLimit)
	}
	slices.Sort(tables)
	left := 2 * len(abbrev) // those of compilers do not overlap
	for _, at := range slices.Compact(tables) {
		if at >= uint64(len(abbrev)) {
			continue
		}
		c := cursor{b: abbrev, pos: int(at)}
		for !c.bad && c.uleb() != 0 {
			c.uleb()
			c.u8()
			attrs := 0
			for more := true; more && !c.bad; attrs++ {
				attr, form := c.uleb(), c.uleb()
				if form == formImplicitConst {
					c.sleb()
				}
				more = attr != 0 || form != 0
			}
			if attrs > maxAttrs {
				return fmt.Errorf("an entry of more than %d attributes: %w", maxAttrs, ErrLimit)
			}
		}
		if left -= c.pos - int(at); left < 0 {
			return fmt.Errorf("tables of abbreviations that overlap: %w", ErrLimit)
		}
	}
	return nil
}

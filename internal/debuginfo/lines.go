package debuginfo

import (
	"debug/dwarf"
	"fmt"
	"slices"
)

// Line is a place in the source.
type Line struct {
	// Func is the function that was inlined there; "" for what belongs to the function that is asked about.
	Func string
	File string
	Line int // 0: none is told
}

// Lines tells where in the source the instruction at pc comes from: first the place itself, then, outwards, those at which the
// functions were inlined that it lies in. ErrNone: nothing is told.
func (f *File) Lines(pc uint64) ([]Line, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.walk()
	if err := f.indexUnits(w); err != nil {
		return nil, err
	}
	for u := range f.unitsAt(pc) {
		t, err := f.lineTable(u)
		if err != nil {
			return nil, err
		}
		if row, ok := t.at(pc); ok {
			return f.inlined(w, u, t, row, pc), nil
		}
	}
	return nil, fmt.Errorf("no line for 0x%x: %w", pc, ErrNone)
}

// inlined gives the place of a row, and the calls that were inlined around it. What is damaged leaves out the calls.
func (f *File) inlined(w *walk, u *unit, t *lineTable, row lineRow, pc uint64) []Line {
	lines := []Line{{File: t.file(int64(row.file)), Line: int(row.line &^ notStatement)}}
	off, ok := f.holding(w, u, pc)
	if !ok {
		return lines
	}
	top, _, err := w.at(off)
	if err != nil {
		return lines
	}
	blocks, err := w.blocksAt(top, pc)
	if err != nil {
		return lines
	}
	for _, e := range slices.Backward(blocks) {
		if e.Tag != dwarf.TagInlinedSubroutine {
			continue
		}
		n, _ := e.Val(dwarf.AttrCallFile).(int64)
		line, _ := e.Val(dwarf.AttrCallLine).(int64)
		lines[len(lines)-1].Func = w.name(e)
		lines = append(lines, Line{File: t.file(n), Line: int(line)})
	}
	return lines
}

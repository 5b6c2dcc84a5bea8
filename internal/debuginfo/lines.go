package debuginfo

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
)

// Line is a place in the source.
type Line struct {
	// Func is the function that was inlined there; "" for what belongs to the function that is asked about.
	Func string
	File string
	Line int
}

// maxLines bounds the rows of a unit's line table.
const maxLines = 1 << 22

// lineRow says that the code from addr on comes from a line; file < 0 says that none is told.
type lineRow struct {
	addr       uint64
	file, line int32
}

// lineTable has a unit's lines, in the order of their addresses.
type lineTable struct {
	rows  []lineRow
	files []*dwarf.LineFile
}

// Lines tells where in the source the instruction at pc comes from: first the place itself, then, outwards, those at which the
// functions were inlined that it lies in. fn is where the function begins that has the instruction. ErrNone: nothing is told.
func (f *File) Lines(fn, pc uint64) ([]Line, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.walk()
	if err := f.indexUnits(w); err != nil {
		return nil, err
	}
	for i := range f.spans {
		s := &f.spans[i]
		if s.start > pc {
			break
		}
		if pc >= s.end {
			continue
		}
		u := &f.units[s.unit]
		t, err := f.lineTable(u)
		if err != nil {
			return nil, err
		}
		if row, ok := t.at(pc); ok {
			return f.inlined(w, u, t, row, fn, pc), nil
		}
	}
	return nil, fmt.Errorf("no line for 0x%x: %w", pc, ErrNone)
}

// lineTable reads the line table of a unit, once.
func (f *File) lineTable(u *unit) (*lineTable, error) {
	if u.lines != nil {
		return u.lines, nil
	}
	r, err := f.data.LineReader(u.root)
	if err != nil {
		return nil, err
	}
	t := &lineTable{}
	if r == nil {
		u.lines = t
		return t, nil
	}
	files := map[*dwarf.LineFile]int32{nil: -1}
	var e dwarf.LineEntry
	for {
		if err := r.Next(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		row := lineRow{addr: e.Address, file: -1, line: int32(min(max(e.Line, 0), 1<<31-1))}
		if !e.EndSequence {
			n, ok := files[e.File]
			if !ok {
				n = int32(len(t.files))
				files[e.File] = n
				t.files = append(t.files, e.File)
			}
			row.file = n
		}
		if t.rows = append(t.rows, row); len(t.rows) > maxLines {
			return nil, fmt.Errorf("more than %d lines in a unit: %w", maxLines, ErrLimit)
		}
	}
	sort.SliceStable(t.rows, func(i, j int) bool {
		a, b := t.rows[i], t.rows[j]
		return a.addr < b.addr || a.addr == b.addr && a.file < 0 && b.file >= 0 // an end comes before what begins there
	})
	u.lines = t
	return t, nil
}

// at finds the row that holds for an instruction. Of several for one address the last one counts.
func (t *lineTable) at(pc uint64) (lineRow, bool) {
	i := sort.Search(len(t.rows), func(i int) bool { return t.rows[i].addr > pc }) - 1
	if i < 0 || t.rows[i].file < 0 || t.rows[i].line == 0 {
		return lineRow{}, false
	}
	return t.rows[i], true
}

// inlined gives the place of a row, and the calls that were inlined around it. What is damaged leaves out the calls.
func (f *File) inlined(w *walk, u *unit, t *lineTable, row lineRow, fn, pc uint64) []Line {
	lines := []Line{{File: t.files[row.file].Name, Line: int(row.line)}}
	off, err := f.find(w, fn)
	if err != nil {
		return lines
	}
	calls, err := w.inlinedAt(off, pc)
	if err != nil {
		return lines
	}
	r, err := f.data.LineReader(u.root)
	if err != nil || r == nil {
		return lines
	}
	files := r.Files()
	for _, e := range slices.Backward(calls) {
		n, _ := e.Val(dwarf.AttrCallFile).(int64)
		line, _ := e.Val(dwarf.AttrCallLine).(int64)
		lines[len(lines)-1].Func = w.name(e)
		l := Line{Line: int(line)}
		if n >= 0 && n < int64(len(files)) && files[n] != nil {
			l.File = files[n].Name
		}
		lines = append(lines, l)
	}
	return lines
}

// inlinedAt gives the entries of the calls that were inlined around an instruction of the function at off, the outermost first.
func (w *walk) inlinedAt(off dwarf.Offset, pc uint64) ([]*dwarf.Entry, error) {
	var calls []*dwarf.Entry
	for range maxInlined {
		e, r, err := w.at(off)
		if err != nil || !e.Children {
			return calls, err
		}
		var in *dwarf.Entry
		err = w.children(r, func(c *dwarf.Entry) error {
			if in != nil || c.Tag != dwarf.TagInlinedSubroutine && c.Tag != dwarf.TagLexDwarfBlock {
				return nil
			}
			rs, err := w.ranges(c)
			if slices.ContainsFunc(rs, func(r [2]uint64) bool { return pc >= r[0] && pc < r[1] }) {
				in = c
			}
			return err
		})
		if err != nil || in == nil {
			return calls, err
		}
		if in.Tag == dwarf.TagInlinedSubroutine {
			calls = append(calls, in)
		}
		off = in.Offset
	}
	return calls, nil
}

// maxInlined bounds how deep blocks and inlined calls lie in one another.
const maxInlined = 256

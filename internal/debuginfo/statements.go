package debuginfo

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// ErrLine says that no statement begins at a line of a file that is known.
var ErrLine = errors.New("no statement begins there")

// Statements gives the link-time addresses at which a line of a source file begins: of each function, and of each call that was inlined, in
// whose code it does, the lowest. The file is a path, or what a path ends in. ErrNone: there is no such file; ErrLine: there is, and the
// error names the next line that has a statement; an error names the files if several are meant.
func (f *File) Statements(file string, line int) ([]uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.walk()
	if err := f.indexUnits(w); err != nil {
		return nil, err
	}
	s := statements{file: path.Clean(file), line: uint32(line), files: map[string]bool{}}
	var at []uint64
	for i := range f.units {
		u := &f.units[i]
		if u.root == nil {
			continue
		}
		t, err := f.lineTable(u)
		if errors.Is(err, ErrLimit) {
			return nil, err
		}
		if err != nil {
			continue // this one is damaged
		}
		at = append(at, f.lowest(w, u, s.in(t))...)
	}
	if len(s.files) > 1 {
		names := make([]string, 0, len(s.files))
		for n := range s.files {
			names = append(names, n)
		}
		slices.Sort(names)
		return nil, fmt.Errorf("%s may be %s: give more of the path", file, strings.Join(names[:min(len(names), maxNamed)], ", "))
	}
	if len(at) > 0 {
		slices.Sort(at)
		return slices.Compact(at), nil
	}
	switch {
	case len(s.files) == 0:
		return nil, fmt.Errorf("%w of a file %s", ErrNone, file)
	case s.next == 0:
		return nil, fmt.Errorf("%s:%d: %w, nor at any line behind it", file, line, ErrLine)
	}
	return nil, fmt.Errorf("%s:%d: %w; the next one is at line %d", file, line, ErrLine, s.next)
}

// maxNamed bounds the files that an error names.
const maxNamed = 4

// statements is a search for the statements of a line.
type statements struct {
	file  string
	line  uint32
	files map[string]bool // files that are meant
	next  uint32          // the first line behind that has a statement; 0: none
}

// in gives the addresses at which rows of the line are, in a table.
func (s *statements) in(t *lineTable) (at []uint64) {
	meant := make([]bool, len(t.files))
	any := false
	for i := range t.files {
		if path.Base(t.files[i].String()) != path.Base(s.file) {
			continue
		}
		name := t.file(int64(i))
		meant[i] = name == s.file || strings.HasSuffix(name, "/"+s.file)
		any = any || meant[i]
	}
	if !any {
		return nil
	}
	for _, r := range t.rows {
		if r.file >= uint32(len(meant)) || !meant[r.file] || r.line&notStatement != 0 || r.line == 0 {
			continue
		}
		s.files[t.file(int64(r.file))] = true
		switch {
		case r.line == s.line:
			at = append(at, r.addr)
		case r.line > s.line && (s.next == 0 || r.line < s.next):
			s.next = r.line
		}
	}
	return at
}

// lowest gives, of each function and inlined call, the lowest of some addresses.
func (f *File) lowest(w *walk, u *unit, at []uint64) (out []uint64) {
	slices.Sort(at)
	seen := map[dwarf.Offset]bool{}
	for _, pc := range at {
		off, ok := f.holding(w, u, pc)
		if !ok {
			continue
		}
		top, _, err := w.at(off)
		if err != nil {
			continue
		}
		blocks, err := w.blocksAt(top, pc)
		if err != nil {
			continue
		}
		for _, b := range slices.Backward(blocks) {
			if b.Tag == dwarf.TagLexDwarfBlock {
				continue
			}
			if !seen[b.Offset] {
				seen[b.Offset] = true
				out = append(out, pc)
			}
			break
		}
	}
	return out
}

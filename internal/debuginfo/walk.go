package debuginfo

import (
	"debug/dwarf"
	"fmt"
)

// walk reads entries, a bounded number of them.
type walk struct {
	f    *File
	left int
}

func (f *File) walk() *walk { return &walk{f: f, left: maxEntries} }

// next reads one entry; nil at the end.
func (w *walk) next(r *dwarf.Reader) (*dwarf.Entry, error) {
	if w.left--; w.left < 0 {
		return nil, fmt.Errorf("more than %d entries: %w", maxEntries, ErrLimit)
	}
	return r.Next()
}

// at reads the entry at an offset.
func (w *walk) at(off dwarf.Offset) (*dwarf.Entry, *dwarf.Reader, error) {
	r := w.f.data.Reader()
	r.Seek(off)
	e, err := w.next(r)
	if err == nil && (e == nil || e.Tag == 0) {
		err = fmt.Errorf("debug information: no entry at 0x%x", off)
	}
	return e, r, err
}

// ranges gives the code of an entry.
func (w *walk) ranges(e *dwarf.Entry) ([][2]uint64, error) {
	rs, err := w.f.data.Ranges(e)
	if w.left -= len(rs); w.left < 0 {
		return nil, fmt.Errorf("more than %d entries and ranges: %w", maxEntries, ErrLimit)
	}
	return rs, err
}

// children visits the entries right below the one that r has just read.
func (w *walk) children(r *dwarf.Reader, visit func(*dwarf.Entry) error) error {
	for {
		e, err := w.next(r)
		if err != nil || e == nil || e.Tag == 0 {
			return err
		}
		if err := visit(e); err != nil {
			return err
		}
		if e.Children {
			r.SkipChildren()
		}
	}
}

// val gives an attribute of an entry, or of the one that it refers to for what it does not say itself.
func (w *walk) val(e *dwarf.Entry, a dwarf.Attr) any {
	for range maxOrigins {
		if v := e.Val(a); v != nil {
			return v
		}
		off, ok := origin(e)
		if !ok {
			return nil
		}
		var err error
		if e, _, err = w.at(off); err != nil {
			return nil
		}
	}
	return nil
}

// origin is the entry that another one completes: the abstract one of an instance, the declaration of a definition.
func origin(e *dwarf.Entry) (dwarf.Offset, bool) {
	for _, a := range []dwarf.Attr{dwarf.AttrAbstractOrigin, dwarf.AttrSpecification} {
		if off, ok := e.Val(a).(dwarf.Offset); ok {
			return off, true
		}
	}
	return 0, false
}

func (w *walk) name(e *dwarf.Entry) string {
	s, _ := w.val(e, dwarf.AttrName).(string)
	return s
}

func (w *walk) typ(e *dwarf.Entry) Type {
	off, ok := w.val(e, dwarf.AttrType).(dwarf.Offset)
	return Type{f: w.f, off: off, known: ok}
}

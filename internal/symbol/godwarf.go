package symbol

import (
	"bytes"
	"compress/zlib"
	"debug/dwarf"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// goDWARF is the debug information of a file.
type goDWARF struct {
	data *dwarf.Data

	mu    sync.Mutex
	units []dwarfUnit
	known int // functions in the units' maps
}

// dwarfUnit is a compilation unit: in Go a package.
type dwarfUnit struct {
	name  string
	first dwarf.Offset            // of its first entry
	funcs map[uint64]dwarf.Offset // functions by their address; nil before it was searched
}

// goDWARF gives the debug information of the file, else that of its separate debug file;
// nil without error if there is none.
func (im *Image) goDWARF() (*goDWARF, error) {
	return im.dw.Get(func() (*goDWARF, error) {
		dw, err := im.elf.readDWARF()
		if dw == nil && err == nil && !im.opts.NoDebugFiles {
			if f, closer, _ := im.openDebugFile(); f != nil {
				defer closer.Close()
				dw, err = f.readDWARF()
			}
		}
		return dw, err
	})
}

// readDWARF reads the sections that types and functions need; nil without error if the
// file has no debug information.
func (f *elfFile) readDWARF() (*goDWARF, error) {
	if f.section(".debug_info") == nil {
		return nil, nil
	}
	read := func(name string) (b []byte, err error) {
		if s := f.section(name); s != nil {
			b, err = f.debugSection(s)
		}
		return b, err
	}
	var sects [3][]byte
	for i, name := range []string{".debug_abbrev", ".debug_info", ".debug_str"} {
		var err error
		if sects[i], err = read(name); err != nil {
			return nil, err
		}
	}
	if len(sects[0]) > maxAbbrev {
		return nil, f.fail(".debug_abbrev", f.section(".debug_abbrev").off, "%d bytes: at most %d are read", len(sects[0]), maxAbbrev)
	}
	d, err := dwarf.New(sects[0], nil, nil, sects[1], nil, nil, nil, sects[2])
	if err != nil {
		return nil, f.fail(".debug_info", f.section(".debug_info").off, "%v", err)
	}
	for _, name := range []string{".debug_addr", ".debug_line_str", ".debug_str_offsets"} {
		b, err := read(name)
		if err == nil && b != nil {
			err = d.AddSection(name, b)
		}
		if err != nil {
			return nil, err
		}
	}
	return &goDWARF{data: d, units: unitsOf(d, sects[1])}, nil
}

// debugSection reads a section that may be compressed (gABI, Elf64_Chdr).
func (f *elfFile) debugSection(s *section) ([]byte, error) {
	b, err := f.bytesAt(s.off, s.size, s.name)
	if err != nil || s.flags&secCompressed == 0 {
		return b, err
	}
	c := &cursor{b: b}
	typ := c.u32()
	c.u32()
	size := c.u64()
	c.u64()
	switch {
	case c.bad || typ != compressZlib:
		return nil, f.fail(s.name, s.off, "compressed in a way that is not known (ch_type %d): only zlib is", typ)
	case size > f.limit:
		return nil, &FormatError{Path: f.path, Off: s.off, What: s.name, Why: fmt.Sprintf("%d bytes, at most %d are read: raise Options.MaxSize", size, f.limit), Err: ErrLimit}
	}
	z, err := zlib.NewReader(bytes.NewReader(b[c.pos:]))
	if err == nil {
		b, err = io.ReadAll(io.LimitReader(z, int64(size)))
	}
	if err == nil && uint64(len(b)) < size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, &FormatError{Path: f.path, Off: s.off, What: s.name, Why: "can not be decompressed", Err: err}
	}
	return b, nil
}

// unitsOf lists the compilation units with their names (DWARF 5, 7.5.1.1; DWARF 4, 7.5.1.1).
//
//	u32 length, or 0xffffffff and u64 length | u16 version |
//	4:  offset of abbreviations | u8 address size
//	5:  u8 type | u8 address size | offset of abbreviations
func unitsOf(d *dwarf.Data, info []byte) []dwarfUnit {
	var units []dwarfUnit
	for pos := 0; pos < len(info); {
		c := &cursor{b: info, pos: pos}
		length, offSize := uint64(c.u32()), 4
		if length == math.MaxUint32 {
			length, offSize = c.u64(), 8
		}
		if c.bad || length > uint64(len(info)-c.pos) {
			break
		}
		end := c.pos + int(length)
		version := c.u16()
		if version >= 5 {
			c.u8()
		}
		c.take(1 + offSize)
		if first := dwarf.Offset(c.pos); !c.bad && c.pos < end {
			units = append(units, dwarfUnit{name: unitName(d, first), first: first})
		}
		pos = end
	}
	return units
}

// unitName is the name of a unit, in Go the package's path.
func unitName(d *dwarf.Data, first dwarf.Offset) string {
	r := d.Reader()
	r.Seek(first)
	e, err := r.Next()
	if err != nil || e == nil || e.Tag != dwarf.TagCompileUnit {
		return ""
	}
	name, _ := e.Val(dwarf.AttrName).(string)
	return name
}

// signature fills in the parameters of a function.
func (dw *goDWARF) signature(fn *Func, sig *Signature) error {
	w := &dwarfWalk{data: dw.data, left: maxAttrs}
	off, ok, err := dw.find(w, fn)
	if err != nil || !ok {
		return err
	}
	e, r, err := w.at(off)
	if err != nil {
		return err
	}
	return w.function(r, e, fn, sig)
}

// find gives the entry of a function: in the units of its package, else in any.
func (dw *goDWARF) find(w *dwarfWalk, fn *Func) (dwarf.Offset, bool, error) {
	dw.mu.Lock()
	defer dw.mu.Unlock()
	pkg := packageOf(fn.Name)
	for _, mine := range []bool{true, false} {
		for i := range dw.units {
			u := &dw.units[i]
			if (u.name == pkg) != mine {
				continue
			}
			if err := dw.index(w, u); err != nil {
				return 0, false, err
			}
			if off, ok := u.funcs[fn.Addr]; ok {
				return off, true, nil
			}
		}
	}
	return 0, false, nil
}

// index lists the functions of a unit.
func (dw *goDWARF) index(w *dwarfWalk, u *dwarfUnit) error {
	if u.funcs != nil {
		return nil
	}
	funcs := map[uint64]dwarf.Offset{}
	err := w.unit(u.first, func(e *dwarf.Entry) error {
		if pc, ok := e.Val(dwarf.AttrLowpc).(uint64); ok && e.Tag == dwarf.TagSubprogram {
			funcs[pc] = e.Offset
		}
		if dw.known+len(funcs) > maxFuncs {
			return fmt.Errorf("more than %d functions: %w", maxFuncs, ErrLimit)
		}
		return nil
	})
	if err != nil {
		return err
	}
	u.funcs, dw.known = funcs, dw.known+len(funcs)
	return nil
}

// packageOf is the import path of a function's package, from its name.
func packageOf(name string) string {
	slash := strings.LastIndexByte(name[:strings.IndexAny(name+"([", "([")], '/') + 1
	dot := strings.IndexByte(name[slash:], '.')
	if dot < 0 {
		return ""
	}
	path := name[:slash+dot]
	if plain, ok := unescapeGo(path); ok {
		return plain
	}
	return path
}

// dwarfWalk reads entries, a bounded number of attributes.
type dwarfWalk struct {
	data *dwarf.Data
	left int
}

var errTooMuch = fmt.Errorf("more than %d attributes: %w", maxAttrs, ErrLimit)

// next reads one entry; nil at the end.
func (w *dwarfWalk) next(r *dwarf.Reader) (*dwarf.Entry, error) {
	e, err := r.Next()
	if e != nil {
		w.left -= 1 + len(e.Field)
	}
	if err == nil && w.left < 0 {
		err = errTooMuch
	}
	return e, err
}

// at reads the entry at an offset.
func (w *dwarfWalk) at(off dwarf.Offset) (*dwarf.Entry, *dwarf.Reader, error) {
	r := w.data.Reader()
	r.Seek(off)
	e, err := w.next(r)
	if err == nil && e == nil {
		err = fmt.Errorf("no entry at 0x%x", off)
	}
	return e, r, err
}

// unit visits the entries below that of a unit, and none below them.
func (w *dwarfWalk) unit(first dwarf.Offset, visit func(*dwarf.Entry) error) error {
	e, r, err := w.at(first)
	if err != nil || e.Tag != dwarf.TagCompileUnit || !e.Children {
		return err
	}
	return w.children(r, visit)
}

// children visits the entries below the one that was just read, and none below them. They
// may be cut off by the end of the unit.
func (w *dwarfWalk) children(r *dwarf.Reader, visit func(*dwarf.Entry) error) error {
	for depth := 1; depth > 0; {
		e, err := w.next(r)
		if err != nil || e == nil {
			return err
		}
		if e.Tag == 0 {
			depth--
			continue
		}
		if depth == 1 {
			if err := visit(e); err != nil {
				return err
			}
		}
		if e.Children {
			depth++
		}
	}
	return nil
}

// function reads the parameters of a function whose entry has just been read.
func (w *dwarfWalk) function(r *dwarf.Reader, e *dwarf.Entry, fn *Func, sig *Signature) error {
	sig.Typed = true
	if !e.Children {
		return nil
	}
	return w.children(r, func(e *dwarf.Entry) error {
		switch {
		case e.Tag == dwarf.TagFormalParameter:
			return w.param(e, sig)
		case e.Tag == dwarf.TagTypedef && e.Val(attrGoDictIndex) != nil:
			return genericError(fn)
		}
		return nil
	})
}

// param adds one parameter or result. That of a function which is also inlined refers to
// another entry, which has its name and type. Go 1.26 lists some twice, where a deferred
// function may change them: no two have one name.
func (w *dwarfWalk) param(e *dwarf.Entry, sig *Signature) error {
	if off, ok := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset); ok {
		var err error
		if e, _, err = w.at(off); err != nil {
			return err
		}
	}
	off, ok := e.Val(dwarf.AttrType).(dwarf.Offset)
	if !ok || len(sig.Params)+len(sig.Results) == maxParams {
		return fmt.Errorf("parameter at 0x%x: it has no type, or is one of more than %d", e.Offset, maxParams)
	}
	p := Param{}
	p.Name, _ = e.Val(dwarf.AttrName).(string)
	if err := w.typ(off, &p); err != nil {
		return fmt.Errorf("parameter %q: %w", p.Name, err)
	}
	list := &sig.Params
	if result, _ := e.Val(dwarf.AttrVarParam).(bool); result {
		list = &sig.Results
	}
	if !slices.ContainsFunc(*list, func(q Param) bool { return q.Name == p.Name && p.Name != "" }) {
		*list = append(*list, p)
	}
	return nil
}

// typ fills in a parameter's type: the name of the entry at off, the kind and size of the
// first that tells among it and what it is a typedef of.
func (w *dwarfWalk) typ(off dwarf.Offset, p *Param) error {
	for range maxTypedefs {
		e, _, err := w.at(off)
		if err != nil {
			return err
		}
		if name, ok := e.Val(dwarf.AttrName).(string); ok && p.Type == "" {
			p.Type = name
		}
		if k, ok := e.Val(attrGoKind).(int64); ok && p.Kind == reflect.Invalid && k > 0 && k <= int64(reflect.UnsafePointer) {
			p.Kind = reflect.Kind(k)
		}
		if e.Tag != dwarf.TagTypedef {
			p.Size = entrySize(e)
			return nil
		}
		var ok bool
		if off, ok = e.Val(dwarf.AttrType).(dwarf.Offset); !ok {
			break
		}
	}
	return fmt.Errorf("type %q is a typedef of nothing, or of more than %d others", p.Type, maxTypedefs)
}

// entrySize is the size of a type in bytes. Pointers, among which are channels, maps and
// unsafe.Pointer, come without one.
func entrySize(e *dwarf.Entry) int64 {
	if n, ok := e.Val(dwarf.AttrByteSize).(int64); ok {
		return n
	}
	if e.Tag == dwarf.TagPointerType || e.Tag == dwarf.TagSubroutineType {
		return 8
	}
	return 0
}

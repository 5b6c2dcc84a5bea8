package symbol

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// rawSym is one usable entry of a symbol table.
type rawSym struct {
	name       string
	addr, size uint64
	file       string
	ver        string // symbol version, "" if there is none
	typ        symType
	bind       symBind
	source     Source
	hidden     bool // version given with one '@': not the default
}

// symType and symBind are the halves of st_info, each in a byte: large programs have a million symbols.
type (
	symType uint8
	symBind uint8
)

// Types and bindings that count here.
const (
	symNone   = symType(0)
	symObject = symType(1)
	symFunc   = symType(2)
	symFile   = symType(4)
	symCommon = symType(5)
	symTLS    = symType(6)
	symIFunc  = symType(10)
	symLocal  = symBind(0)
	symGlobal = symBind(1)
)

// maxEntries bounds the symbols and functions of one table. Chrome with all symbols has
// 1.5 million.
const maxEntries = 4 << 20

// versions names the versions that an object defines.
type versions struct {
	ofSym []byte // DT_VERSYM: u16 a symbol, bit 15 hidden
	names map[uint16]string
}

// of gives the version of a symbol by its index.
func (v *versions) of(i int) (name string, hidden bool) {
	if v == nil || i*2+2 > len(v.ofSym) {
		return "", false
	}
	n := binary.LittleEndian.Uint16(v.ofSym[i*2:])
	return v.names[n&0x7fff], n&0x8000 != 0
}

// readVersions reads DT_VERSYM and DT_VERDEF for count symbols; nil if there are none.
func (f *elfFile) readVersions(d *dynamic, count uint64, strtab string) (*versions, error) {
	if d.versym == 0 || d.verdef == 0 {
		return nil, nil
	}
	b, err := f.vaddrBytes(d.versym, count*2, "DT_VERSYM")
	if err != nil {
		return nil, err
	}
	v := &versions{ofSym: b, names: map[uint16]string{}}
	at := d.verdef
	for range min(d.verdefnum, 1<<15) {
		def, err := f.vaddrBytes(at, 20, "DT_VERDEF")
		if err != nil {
			return v, err
		}
		c := &cursor{b: def, pos: 2}
		flags, ndx := c.u16(), c.u16()
		c.take(6)
		aux, next := c.u32(), c.u32()
		const base = 1 // VER_FLG_BASE: the object's own name, no version of a symbol
		if flags&base == 0 {
			if err := f.nameVersion(v, ndx, at+uint64(aux), strtab); err != nil {
				return v, err
			}
		}
		if next == 0 {
			break
		}
		at += uint64(next)
	}
	return v, nil
}

func (f *elfFile) nameVersion(v *versions, ndx uint16, at uint64, strtab string) error {
	aux, err := f.vaddrBytes(at, 4, "DT_VERDEF")
	if err != nil {
		return err
	}
	name, ok := cstring(strtab, uint64(binary.LittleEndian.Uint32(aux)))
	if !ok {
		return f.fail("DT_VERDEF", at, "name of version %d lies outside the string table", ndx)
	}
	v.names[ndx&0x7fff] = name
	return nil
}

// symbolStrings reads the string table of a symbol table.
func (f *elfFile) symbolStrings(t tableSpan, what string) (string, error) {
	return f.stringAt(t.strOff, t.strSize, what+" strings")
}

// eachSymbol calls fn for every defined, named symbol of a table.
func (f *elfFile) eachSymbol(t tableSpan, strs string, src Source, vers *versions, fn func(*rawSym)) error {
	if err := f.checkRange(t.symOff, t.symSize, src.String()); err != nil {
		return err
	}
	if err := f.checkCount(t.symSize/24, t.symOff, src.String()); err != nil {
		return err
	}
	const step = 24 * 8192
	file, index := "", 0
	for done := uint64(0); t.symSize-done >= 24; {
		n := min((t.symSize-done)/24*24, step)
		b, err := f.bytesAt(t.symOff+done, n, src.String())
		if err != nil {
			return err
		}
		for ; len(b) > 0; b, index = b[24:], index+1 {
			s, ok := parseSym(b, strs)
			if s.typ == symFile {
				file = s.name
				continue
			}
			if !ok || s.name == "" {
				continue
			}
			s.source = src
			if s.bind == symLocal {
				s.file = file
			}
			s.version(vers, index)
			fn(&s)
		}
		done += n
	}
	return nil
}

// checkCount refuses tables of more than maxEntries.
func (f *elfFile) checkCount(n, at uint64, what string) error {
	if n <= maxEntries {
		return nil
	}
	return &FormatError{Path: f.path, Off: at, What: what, Why: fmt.Sprintf("%d entries, at most %d are read", n, maxEntries), Err: ErrLimit}
}

// parseSym takes one symbol; ok is false if it is not defined in a section of the file.
func parseSym(b []byte, strs string) (s rawSym, ok bool) {
	c := &cursor{b: b[:24]}
	name := c.u32()
	info, _ := c.u8(), c.u8()
	shndx := c.u16()
	s.addr, s.size = c.u64(), c.u64()
	s.typ, s.bind = symType(info&0xf), symBind(info>>4)
	s.name, ok = cstring(strs, uint64(name))
	defined := shndx != indexUndef && shndx != indexAbs && shndx != indexCommon
	return s, ok && defined
}

// version splits the symbol's version off its name, or takes it from the version table.
func (s *rawSym) version(vers *versions, index int) {
	i := strings.IndexByte(s.name, '@')
	if i <= 0 {
		s.ver, s.hidden = vers.of(index)
		return
	}
	s.ver = s.name[i+1:]
	s.hidden = !strings.HasPrefix(s.ver, "@")
	s.ver = strings.TrimPrefix(s.ver, "@")
	s.name = s.name[:i]
}

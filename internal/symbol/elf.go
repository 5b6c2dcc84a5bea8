package symbol

import (
	"fmt"
	"io"
	"math"
	"sort"
	"strings"

	"kprobes.dev/kprobes/internal/arch/objfile"
	"kprobes.dev/kprobes/internal/interval"
)

// Limits on what a header may ask for. Real files stay far below: chrome has 60 sections,
// the largest programs a few dozen segments.
const (
	maxSegments = 4096
	maxSections = 1 << 16
	maxDynamic  = 1 << 14 // entries of PT_DYNAMIC
)

// maxOverlap bounds how often segments may map the same bytes of the file. Linkers map a
// page twice at most, where two segments meet; small files are one page.
const maxOverlap = 16

// maxVaddr bounds the addresses of programs: 57 bits with five levels of page tables, one
// for the kernel.
const maxVaddr = 1 << 56

// section is one section header, its name resolved.
type section struct {
	name      string
	typ       uint32
	flags     uint64
	addr, off uint64
	size      uint64
	link      uint32
	entsize   uint64
}

// elfFile is the skeleton of an ELF file: header, segments, sections, and bounded reads.
type elfFile struct {
	r     io.ReaderAt
	size  uint64
	path  string
	limit uint64 // bytes that one table may take

	kernel bool // see Options.Kernel

	typ       uint16
	machine   *objfile.Machine
	entry     uint64
	segs      []Segment
	dynOff    uint64 // PT_DYNAMIC
	dynSize   uint64
	ehHdr     uint64 // PT_GNU_EH_FRAME: link-time address, 0 if there is none
	ehHdrSize uint64
	notes     []interval.Range // PT_NOTE: file offsets
	interp    string
	hasInterp bool
	sects     []section
	sectErr   error // why section headers can not be used
}

// fail makes an error about this file.
func (f *elfFile) fail(what string, off uint64, format string, args ...any) error {
	return &FormatError{Path: f.path, Off: off, What: what, Why: fmt.Sprintf(format, args...), Err: ErrFormat}
}

// parseELF reads the headers. With detached, segments are not checked against the file:
// a separate debug file keeps the program headers of the file it was split from.
func parseELF(r io.ReaderAt, size int64, path string, o *Options, detached bool) (*elfFile, error) {
	f := &elfFile{r: r, size: uint64(max(size, 0)), path: path, limit: o.MaxSize, kernel: o.Kernel}
	hdr, err := f.bytesAt(0, 64, "header")
	if err != nil {
		return nil, err
	}
	if err := f.checkIdent(hdr); err != nil {
		return nil, err
	}
	c := &cursor{b: hdr, pos: 16}
	f.typ = c.u16()
	machine := objfile.ELF(c.u16())
	f.machine = objfile.Of(machine)
	c.u32()
	f.entry = c.u64()
	phoff, shoff := c.u64(), c.u64()
	c.take(6)
	phentsize, phnum := c.u16(), c.u16()
	shentsize, shnum, shstrndx := c.u16(), c.u16(), c.u16()
	if err := f.checkMachine(machine); err != nil {
		return nil, err
	}
	if err := f.readSegments(phoff, phentsize, phnum, detached); err != nil {
		return nil, err
	}
	f.sectErr = f.readSections(shoff, shentsize, uint64(shnum), uint32(shstrndx))
	if f.sectErr != nil {
		f.sects = nil
	}
	return f, nil
}

// checkIdent accepts ELF-64 little-endian files (gABI, e_ident).
func (f *elfFile) checkIdent(hdr []byte) error {
	switch {
	case string(hdr[:4]) != elfMagic:
		return f.fail("header", 0, "the file does not begin with \\x7fELF: give a program or a shared object")
	case hdr[eiClass] != elfClass64:
		return f.fail("header", eiClass, "not a 64-bit file: only 64-bit programs can be probed")
	case hdr[eiData] != elfData2LSB:
		return f.fail("header", eiData, "not little-endian: only little-endian programs can be probed")
	}
	return nil
}

func (f *elfFile) checkMachine(m objfile.ELF) error {
	if t := fileType(f.typ); t != typeExec && t != typeDyn {
		return f.fail("header", 16, "file type %v: only programs and shared objects have places to probe", t)
	}
	if f.machine == nil {
		return f.fail("header", 18, "made for %v: only %s are known", m, objfile.Names())
	}
	return nil
}

// bytesAt reads n bytes at a file offset.
func (f *elfFile) bytesAt(off, n uint64, what string) ([]byte, error) {
	if err := f.checkRange(off, n, what); err != nil {
		return nil, err
	}
	b := make([]byte, n)
	if err := f.readFull(b, off, what); err != nil {
		return nil, err
	}
	return b, nil
}

func (f *elfFile) checkRange(off, n uint64, what string) error {
	if off > f.size || n > f.size-off {
		return f.fail(what, off, "its %d bytes end behind the end of the file (%d bytes): the file is truncated or damaged", n, f.size)
	}
	if n > f.limit {
		return &FormatError{Path: f.path, Off: off, What: what, Why: fmt.Sprintf("%d bytes, at most %d are read: raise Options.MaxSize", n, f.limit), Err: ErrLimit}
	}
	return nil
}

func (f *elfFile) readFull(b []byte, off uint64, what string) error {
	n, err := f.r.ReadAt(b, int64(off))
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return &FormatError{Path: f.path, Off: off + uint64(n), What: what, Why: "can not be read", Err: err}
}

// stringAt reads n bytes at a file offset as a string, without a second copy.
func (f *elfFile) stringAt(off, n uint64, what string) (string, error) {
	if err := f.checkRange(off, n, what); err != nil {
		return "", err
	}
	var sb strings.Builder
	sb.Grow(int(n))
	buf := make([]byte, min(n, 1<<16))
	for n > 0 {
		b := buf[:min(n, uint64(len(buf)))]
		if err := f.readFull(b, off, what); err != nil {
			return "", err
		}
		sb.Write(b)
		off, n = off+uint64(len(b)), n-uint64(len(b))
	}
	return sb.String(), nil
}

func (f *elfFile) readSegments(phoff uint64, entsize, num uint16, detached bool) error {
	if num == 0 && detached {
		return nil
	}
	if num == 0 {
		return f.fail("header", 56, "no program headers: the file can not be run")
	}
	if entsize != 56 || num > maxSegments {
		return f.fail("header", 54, "%d program headers of %d bytes: expected at most %d of 56", num, entsize, maxSegments)
	}
	b, err := f.bytesAt(phoff, uint64(num)*56, "program headers")
	if err != nil {
		return err
	}
	for i := range int(num) {
		if err := f.addSegment(b[i*56:i*56+56], phoff+uint64(i)*56, detached); err != nil {
			return err
		}
	}
	sort.Slice(f.segs, func(i, j int) bool { return f.segs[i].Vaddr < f.segs[j].Vaddr })
	mapped := uint64(0)
	for _, s := range f.segs {
		mapped += s.Filesz / maxOverlap
	}
	if mapped > f.size && !detached {
		return f.fail("program headers", phoff, "the segments map the file more than %d times over", maxOverlap)
	}
	return nil
}

// addSegment takes one program header.
func (f *elfFile) addSegment(b []byte, at uint64, detached bool) error {
	c := &cursor{b: b}
	typ, flags := c.u32(), c.u32()
	off, vaddr := c.u64(), c.u64()
	c.u64()
	filesz, memsz := c.u64(), c.u64()
	switch typ {
	case segLoad:
		if err := f.checkLoad(off, vaddr, filesz, memsz, at, detached); err != nil {
			return err
		}
		f.segs = append(f.segs, Segment{
			Vaddr: vaddr, Memsz: memsz, Off: off, Filesz: filesz,
			Exec: flags&segExec != 0, Write: flags&segWrite != 0,
		})
	case segDynamic:
		f.dynOff, f.dynSize = off, filesz
	case segGNUEHFrame:
		f.ehHdr, f.ehHdrSize = vaddr, memsz
	case segNote:
		f.notes = append(f.notes, interval.Range{Start: off, End: off + filesz})
	case segInterp:
		f.hasInterp = true
		if p, err := f.bytesAt(off, min(filesz, 4096), "PT_INTERP"); err == nil {
			f.interp = strings.TrimRight(string(p), "\x00")
		}
	}
	return nil
}

func (f *elfFile) checkLoad(off, vaddr, filesz, memsz, at uint64, detached bool) error {
	top := uint64(maxVaddr)
	if f.kernel {
		top = math.MaxUint64
	}
	if vaddr > top || memsz > top-vaddr || memsz < filesz && !detached {
		return f.fail("segment", at, "%d bytes in memory, %d in the file, at address 0x%x: impossible", memsz, filesz, vaddr)
	}
	if !detached && (off > f.size || filesz > f.size-off) {
		return f.fail("segment", at, "file offsets 0x%x+0x%x end behind the end of the file (%d bytes): the file is truncated", off, filesz, f.size)
	}
	return nil
}

// readSections reads the section headers and their names. A file without any is no error.
func (f *elfFile) readSections(shoff uint64, entsize uint16, num uint64, strndx uint32) error {
	if shoff == 0 {
		return nil
	}
	if entsize != 64 {
		return f.fail("section headers", shoff, "%d bytes each: expected 64", entsize)
	}
	first, err := f.bytesAt(shoff, 64, "section headers")
	if err != nil {
		return err
	}
	zero := parseSection(first)
	if num == 0 {
		num = zero.size // gABI: the count does not fit into e_shnum
	}
	if strndx == indexXindex {
		strndx = zero.link
	}
	if num > maxSections {
		return f.fail("section headers", shoff, "%d of them: at most %d are read", num, maxSections)
	}
	b, err := f.bytesAt(shoff, num*64, "section headers")
	if err != nil {
		return err
	}
	for i := range int(num) {
		f.sects = append(f.sects, parseSection(b[i*64:]))
	}
	return f.nameSections(b, strndx)
}

// parseSection takes one section header; its name is not resolved yet.
func parseSection(b []byte) section {
	c := &cursor{b: b, pos: 4}
	var s section
	s.typ, s.flags = c.u32(), c.u64()
	s.addr, s.off, s.size = c.u64(), c.u64(), c.u64()
	s.link = c.u32()
	c.take(12)
	s.entsize = c.u64()
	return s
}

func (f *elfFile) nameSections(hdrs []byte, strndx uint32) error {
	if int(strndx) >= len(f.sects) {
		return f.fail("section headers", 62, "name table is section %d of %d", strndx, len(f.sects))
	}
	t := f.sects[strndx]
	names, err := f.stringAt(t.off, t.size, "section names")
	if err != nil {
		return err
	}
	for i := range f.sects {
		c := &cursor{b: hdrs, pos: i * 64}
		f.sects[i].name, _ = cstring(names, uint64(c.u32()))
	}
	return nil
}

// section gives the first section of a name, nil if there is none with contents.
func (f *elfFile) section(name string) *section {
	for i := range f.sects {
		if s := &f.sects[i]; s.name == name && s.typ != secNobits {
			return s
		}
	}
	return nil
}

// sectionOfType gives the first section of a type, nil if there is none.
func (f *elfFile) sectionOfType(t uint32) *section {
	for i := range f.sects {
		if f.sects[i].typ == t {
			return &f.sects[i]
		}
	}
	return nil
}

// segment gives the loadable segment of an address, nil if there is none.
func (f *elfFile) segment(vaddr uint64) *Segment {
	for i := range f.segs {
		if f.segs[i].Contains(vaddr) {
			return &f.segs[i]
		}
	}
	return nil
}

// fileRange is the file offset of an address and the bytes of its segment that follow it
// in the file.
func (f *elfFile) fileRange(vaddr uint64) (off, n uint64, ok bool) {
	s := f.segment(vaddr)
	if s == nil || vaddr-s.Vaddr >= s.Filesz {
		return 0, 0, false
	}
	d := vaddr - s.Vaddr
	return s.Off + d, s.Filesz - d, true
}

// vaddrBytes reads n bytes that stand at a link-time address.
func (f *elfFile) vaddrBytes(vaddr, n uint64, what string) ([]byte, error) {
	off, have, ok := f.fileRange(vaddr)
	if !ok || n > have {
		return nil, f.fail(what, vaddr, "its %d bytes lie in no segment's file contents", n)
	}
	return f.bytesAt(off, n, what)
}

// readVaddr fills b with what stands at a link-time address when the file has just been
// loaded: file contents, then zeros to the end of the segment.
func (f *elfFile) readVaddr(vaddr uint64, b []byte) error {
	for len(b) > 0 {
		s := f.segment(vaddr)
		if s == nil {
			return fmt.Errorf("file %q: address 0x%x: %w in any loadable segment", f.path, vaddr, ErrNotMapped)
		}
		d := vaddr - s.Vaddr
		n := int(min(uint64(len(b)), s.Memsz-d))
		if d < s.Filesz {
			n = int(min(uint64(n), s.Filesz-d))
			if err := f.readFull(b[:n], s.Off+d, "segment"); err != nil {
				return err
			}
		} else {
			clear(b[:n])
		}
		b, vaddr = b[n:], vaddr+uint64(n)
	}
	return nil
}

func cmpU64(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

package symbol

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"kprobes.dev/kprobes/internal/interval"
)

// Magic numbers of pclntabs that have function entries as offsets from the text start
// (internal/abi/symtab.go). Go 1.26 still writes the second.
const (
	pcln118   = 0xfffffff0 // Go 1.18 and 1.19
	pcln120   = 0xfffffff1 // Go 1.20 and later
	pclnOld   = 0xfffffffa // Go 1.16 and 1.17
	pclnElder = 0xfffffffb // up to Go 1.15
)

// funcFlagAsm in _func.flag: implemented in assembly (internal/abi.FuncFlagAsm).
const funcFlagAsm = 1 << 2

// goFunc is one function of a pclntab.
type goFunc struct {
	name  string
	entry uint64 // offset from the text start
	size  uint64
	args  int32 // bytes of the argument frame with its spill area, negative if unknown
	id    uint8
	asm   bool
	// argInfo is where the description of the arguments lies (goargs.go); told: it is known.
	argInfo uint32
	told    bool
	// foreign: not Go's, but of an object that the Go linker has taken in (cgo or the race detector
	// with internal linking). Go's compiler and assembler always give it a file and lines, which such
	// a function has not (cmd/link/internal/ld/pcln.go, writeFuncs, Go 1.23 to 1.26).
	foreign bool
}

// goTable is a Go program's function table.
//
//	pcHeader: u32 magic | u8 0 0 | u8 quantum | u8 ptrSize |
//	          u64 nfunc | nfiles | textStart (0 since 1.26) | funcnametab | cutab |
//	          filetab | pctab | pclntab: offsets from the header
//	pclntab:  nfunc × {u32 entry, u32 offset of _func}, u32 end of text; then the _funcs
//	_func:    u32 entry | i32 name | i32 args | u32 deferreturn | u32 pcsp | pcfile |
//	          pcln | npcdata | cuOffset | (1.20: i32 startLine) | u8 funcID | u8 flag
type goTable struct {
	vaddr     uint64         // of the pcHeader
	textStart uint64         // link-time address that entries count from
	text      interval.Range // link-time range of all functions
	funcs     []goFunc
	wrapper   int // funcID of generated wrappers, -1 if unknown
}

// pclnData is a pclntab being parsed.
type pclnData struct {
	b       []byte
	names   string
	files   string
	cus     []byte // of units, the files that they number: offsets in files
	pctab   []byte
	tab     []byte // functab and _funcs
	nfunc   int
	idOff   int // offset of funcID in _func
	quantum uint64
	hdrText uint64 // textStart of the header
}

// loadGo finds and reads the pclntab; nil without error if the file is no Go program.
func (f *elfFile) loadGo(d *dynamic, textSym uint64) (*goTable, error) {
	vaddr, b, err := f.findPclntab()
	if err != nil || b == nil {
		return nil, err
	}
	p, err := f.parsePclntab(vaddr, b)
	if err != nil {
		return nil, err
	}
	t := &goTable{vaddr: vaddr, wrapper: -1}
	if t.funcs, err = p.functions(f, vaddr); err != nil {
		return nil, err
	}
	if t.textStart, err = f.goTextStart(d, t, p, textSym); err != nil {
		return nil, err
	}
	first, last := t.funcs[0], t.funcs[len(t.funcs)-1]
	t.text = interval.Range{Start: t.textStart + first.entry, End: t.textStart + last.entry + last.size}
	t.findWrapperID()
	return t, nil
}

// findWrapperID learns the funcID of wrappers: it differs between versions, but is
// always the one after runtime.systemstack_switch's (internal/abi/symtab.go, Go 1.18 to
// 1.26), which is in every program.
func (t *goTable) findWrapperID() {
	for i := range t.funcs {
		if fn := &t.funcs[i]; fn.name == "runtime.systemstack_switch" && fn.id != 0 {
			t.wrapper = int(fn.id) + 1
			return
		}
	}
}

// findPclntab gives the bytes from the pclntab on, by its section, or by its magic in the
// segments: where section headers are missing, and in what another linker made of a Go program.
func (f *elfFile) findPclntab() (uint64, []byte, error) {
	for _, name := range []string{".gopclntab", ".data.rel.ro.gopclntab"} {
		if s := f.section(name); s != nil {
			b, err := f.bytesAt(s.off, s.size, name)
			return s.addr, b, err
		}
	}
	if len(f.sects) > 0 && f.section(".go.buildinfo") == nil {
		return 0, nil, nil
	}
	for _, s := range f.segs {
		if s.Exec && s.Write {
			continue
		}
		at, ok, err := f.scan(s, func(_ uint64, b []byte) bool { return isPclnHeader(b) })
		if err != nil {
			return 0, nil, err
		}
		if ok {
			b, err := f.bytesAt(s.Off+at, s.Filesz-at, "pclntab")
			return s.Vaddr + at, b, err
		}
	}
	return 0, nil, nil
}

// scanStep is what scan reads at once.
const scanStep = 1 << 20

// scan gives the first 8-aligned offset in a segment's file contents at which match says
// yes; match sees at least 64 bytes, fewer at the end only.
func (f *elfFile) scan(s Segment, match func(at uint64, b []byte) bool) (uint64, bool, error) {
	for base := uint64(0); base < s.Filesz; base += scanStep {
		b, err := f.bytesAt(s.Off+base, min(s.Filesz-base, scanStep+64), "segment")
		if err != nil {
			return 0, false, err
		}
		for i := -s.Vaddr & 7; i+8 <= uint64(len(b)) && i < scanStep; i += 8 {
			if match(base+i, b[i:]) {
				return base + i, true, nil
			}
		}
	}
	return 0, false, nil
}

// isPclnHeader recognises a pcHeader of a 64-bit little-endian program.
func isPclnHeader(b []byte) bool {
	if len(b) < 40 {
		return false
	}
	magic, names := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[32:])
	return (magic == pcln118 || magic == pcln120) && b[4] == 0 && b[5] == 0 &&
		(b[6] == 1 || b[6] == 4) && b[7] == 8 && (names == 72 || names == 96)
}

// parsePclntab checks the header and cuts the tables out.
func (f *elfFile) parsePclntab(vaddr uint64, b []byte) (*pclnData, error) {
	c := &cursor{b: b}
	magic := c.u32()
	c.take(2)
	quantum, ptr := c.u8(), c.u8()
	nfunc := c.u64()
	c.u64()
	p := &pclnData{b: b, idOff: 40, quantum: uint64(quantum), hdrText: c.u64()}
	nameOff := c.u64()
	cuOff := c.u64()
	fileOff, pcOff, tabOff := c.u64(), c.u64(), c.u64()
	switch {
	case magic == pclnOld || magic == pclnElder:
		return nil, f.fail("pclntab", vaddr, "written by a toolchain before Go 1.18: rebuild the program")
	case magic != pcln118 && magic != pcln120 || ptr != 8 || c.bad:
		return nil, f.fail("pclntab", vaddr, "header magic 0x%x, pointers of %d bytes: unknown", magic, ptr)
	}
	if magic == pcln118 {
		p.idOff = 36
	}
	n := uint64(len(b))
	if nameOff > cuOff || cuOff > fileOff || fileOff > pcOff || pcOff > tabOff || tabOff > n {
		return nil, f.fail("pclntab", vaddr, "its tables do not lie in order in its %d bytes", n)
	}
	if nfunc == 0 || nfunc > (n-tabOff)/8 {
		return nil, f.fail("pclntab", vaddr, "%d functions do not fit into %d bytes", nfunc, n-tabOff)
	}
	if err := f.checkCount(nfunc, vaddr, "pclntab"); err != nil {
		return nil, err
	}
	p.nfunc = int(nfunc)
	p.cus, p.files = b[cuOff:fileOff], string(b[fileOff:pcOff])
	p.names, p.pctab, p.tab = string(b[nameOff:cuOff]), b[pcOff:tabOff], b[tabOff:]
	return p, nil
}

// functions reads the function table.
func (p *pclnData) functions(f *elfFile, vaddr uint64) ([]goFunc, error) {
	if p.nfunc*8+4 > len(p.tab) {
		return nil, f.fail("pclntab", vaddr, "function table is cut off")
	}
	le := binary.LittleEndian
	fns := make([]goFunc, p.nfunc)
	for i := range fns {
		entry, next := uint64(le.Uint32(p.tab[i*8:])), uint64(le.Uint32(p.tab[i*8+8:]))
		off := uint64(le.Uint32(p.tab[i*8+4:]))
		if next < entry { // equal: -race lets two empty functions share an entry
			return nil, f.fail("pclntab", vaddr, "entries 0x%x and 0x%x of its functions %d and %d are not sorted", entry, next, i, i+1)
		}
		if off > uint64(len(p.tab)) || uint64(len(p.tab))-off < 44 {
			return nil, f.fail("pclntab", vaddr, "function %d lies outside", i)
		}
		fn, err := p.function(p.tab[off:], entry, next)
		if err != nil {
			return nil, f.fail("pclntab", vaddr, "function %d: %v", i, err)
		}
		fns[i] = fn
	}
	return fns, nil
}

// function reads one _func whose successor begins at next.
func (p *pclnData) function(b []byte, entry, next uint64) (goFunc, error) {
	le := binary.LittleEndian
	if e := uint64(le.Uint32(b)); e != entry {
		return goFunc{}, fmt.Errorf("entry 0x%x in one table, 0x%x in the other", entry, e)
	}
	name, ok := cstring(p.names, uint64(le.Uint32(b[4:])))
	if !ok {
		return goFunc{}, fmt.Errorf("name at 0x%x lies outside", le.Uint32(b[4:]))
	}
	fn := goFunc{name: name, entry: entry, args: int32(le.Uint32(b[8:])), id: b[p.idOff], asm: b[p.idOff+1]&funcFlagAsm != 0}
	if p.idOff == 40 {
		fn.argInfo, fn.told = argsOffset(b)
	}
	pcsp, pcfile, pcln := le.Uint32(b[16:]), le.Uint32(b[20:]), le.Uint32(b[24:])
	fn.size, fn.foreign = p.size(pcsp, pcln, next-entry), pcsp|pcfile|pcln == 0
	return fn, nil
}

// size is a function's size without the padding behind it: where its tables of stack
// heights and lines end.
func (p *pclnData) size(pcsp, pcln uint32, most uint64) uint64 {
	n := max(p.pcEnd(pcsp), p.pcEnd(pcln))
	if n == 0 || n > most {
		n = most
	}
	return max(n, 1)
}

// pcEnd gives the last pc, counted from the entry, of a pc-value table: pairs of a zigzag
// value delta and a pc delta, ended by a value delta of 0 that is not the first.
func (p *pclnData) pcEnd(off uint32) uint64 {
	if off == 0 || uint64(off) >= uint64(len(p.pctab)) {
		return 0
	}
	c := &cursor{b: p.pctab, pos: int(off)}
	pc := uint64(0)
	for first := true; ; first = false {
		if v := c.uleb(); v == 0 && !first || c.bad {
			return pc
		}
		pc += c.uleb() * p.quantum
		if c.bad {
			return 0
		}
	}
}

// goVersion reads the version string of .go.buildinfo (debug/buildinfo, format of Go 1.18
// and later): "\xff Go buildinf:", pointer size, flags; at 32 a counted string.
func (f *elfFile) goVersion() string {
	const inline = 2 // flags: strings follow instead of pointers to them
	b := f.buildInfo()
	if len(b) < 33 || !bytes.HasPrefix(b, buildInfoMagic) || b[15]&inline == 0 {
		return ""
	}
	c := &cursor{b: b, pos: 32}
	n := c.uleb()
	if n > 256 {
		return ""
	}
	return strings.ToValidUTF8(string(c.take(int(n))), "?")
}

var buildInfoMagic = []byte("\xff Go buildinf:")

func (f *elfFile) buildInfo() []byte {
	const most = 512
	if s := f.section(".go.buildinfo"); s != nil {
		b, _ := f.bytesAt(s.off, min(s.size, most), s.name)
		return b
	}
	for _, s := range f.segs {
		at, ok, err := f.scan(s, func(_ uint64, b []byte) bool { return bytes.HasPrefix(b, buildInfoMagic) })
		if err == nil && ok {
			b, _ := f.bytesAt(s.Off+at, min(s.Filesz-at, most), "build info")
			return b
		}
	}
	return nil
}

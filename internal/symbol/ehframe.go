package symbol

import (
	"encoding/binary"
	"sort"

	"kprobes.dev/kprobes/internal/arch/objfile"
)

// Pointer encodings of .eh_frame, .eh_frame_hdr and .gcc_except_table (LSB, "DWARF
// extensions": DW_EH_PE_*).
const (
	peAbsptr   = 0x00
	peUleb     = 0x01
	peUdata2   = 0x02
	peUdata4   = 0x03
	peUdata8   = 0x04
	peSleb     = 0x09
	peSdata2   = 0x0a
	peSdata4   = 0x0b
	peSdata8   = 0x0c
	pePcrel    = 0x10
	peTextrel  = 0x20
	peDatarel  = 0x30
	peFuncrel  = 0x40
	peAligned  = 0x50
	peIndirect = 0x80
	peOmit     = 0xff
)

// fde is one frame description: the bounds of a piece of code.
type fde struct {
	start, end uint64 // link-time addresses
	lsda       uint64 // link-time address of its exception table, 0 if there is none
	inner      bool   // its first rules are not those of a function's entry: a cold part
	odd        bool   // the code is not entered by a call: a signal's return, the start of a program or a thread
	signal     bool   // a signal frame: the code may begin one byte behind start
	pos        int    // of the description in .eh_frame
}

// ehBases are the addresses that encoded pointers are relative to.
type ehBases struct {
	vaddr      uint64 // link-time address of the bytes read from
	text, data uint64 // textrel and datarel; 0: not available
	machine    *objfile.Machine
}

// encoded reads a pointer. It gives false if the encoding is unknown or needs memory of
// the running program (indirect).
func (c *cursor) encoded(enc byte, b ehBases) (uint64, bool) {
	if enc == peOmit {
		return 0, false
	}
	if enc&0x70 == peAligned {
		c.take(int(-(b.vaddr + uint64(c.pos)) & 7))
		v := c.u64()
		return v, !c.bad
	}
	at := b.vaddr + uint64(c.pos)
	v, ok := c.encodedValue(enc & 0x0f)
	if !ok || c.bad {
		return 0, false
	}
	if v == 0 {
		return 0, true // a null pointer is not relative to anything
	}
	switch enc & 0x70 {
	case peAbsptr:
	case pePcrel:
		v += at
	case peTextrel:
		v += b.text
	case peDatarel:
		v += b.data
	default:
		return 0, false
	}
	return v, enc&peIndirect == 0
}

func (c *cursor) encodedValue(form byte) (uint64, bool) {
	switch form {
	case peAbsptr, peUdata8, peSdata8:
		return c.u64(), true
	case peUleb:
		return c.uleb(), true
	case peUdata2:
		return uint64(c.u16()), true
	case peUdata4:
		return uint64(c.u32()), true
	case peSleb:
		return uint64(c.sleb()), true
	case peSdata2:
		return uint64(int64(int16(c.u16()))), true
	case peSdata4:
		return uint64(int64(int32(c.u32()))), true
	}
	return 0, false
}

// cie is what FDEs need of their common part.
type cie struct {
	ok        bool
	enc, lsda byte
	hasAug    bool // augmentation data has a length
	signal    bool // a signal frame
	called    bool // at the start the return address is on top of the stack
}

// ehFrame parses the contents of .eh_frame. What is damaged ends the parse: everything
// before it counts, and err says where.
func (f *elfFile) ehFrame(b []byte, bases ehBases) (fdes []fde, err error) {
	bases.machine = f.machine
	cies := map[int]cie{}
	pos := 0
	for pos+4 <= len(b) {
		rec, idPos, next := ehRecord(b, pos)
		if next == 0 {
			if binary.LittleEndian.Uint32(b[pos:]) != 0 {
				err = f.fail(".eh_frame", bases.vaddr+uint64(pos), "a record ends behind the end of the table")
			}
			break
		}
		id := binary.LittleEndian.Uint32(b[idPos:])
		if id != 0 {
			if d, ok := parseFDE(b, rec, idPos, int(id), cies, bases); ok {
				d.pos = pos
				fdes = append(fdes, d)
			}
			if len(fdes) > maxEntries {
				err = f.checkCount(uint64(len(fdes)), bases.vaddr, ".eh_frame")
				break
			}
		}
		pos = next
	}
	sort.Slice(fdes, func(i, j int) bool { return fdes[i].start < fdes[j].start }) // less code in an importing program than slices.SortFunc of them
	return fdes, err
}

// ehRecord gives the record at pos, the position of its id field and the position of the
// next record, 0 at the terminator and past the end.
func ehRecord(b []byte, pos int) (rec []byte, idPos, next int) {
	n := uint64(binary.LittleEndian.Uint32(b[pos:]))
	idPos = pos + 4
	if n == 0xffffffff {
		if pos+12 > len(b) {
			return nil, 0, 0
		}
		n, idPos = binary.LittleEndian.Uint64(b[pos+4:]), pos+12
	}
	if n < 4 || n > uint64(len(b)-idPos) {
		return nil, 0, 0
	}
	next = idPos + int(n)
	return b[:next], idPos, next
}

// parseFDE takes the FDE whose CIE pointer stands at idPos; rec ends where it ends.
func parseFDE(b, rec []byte, idPos, id int, cies map[int]cie, bases ehBases) (fde, bool) {
	at := idPos - id // the CIE pointer counts back from its own place
	if at < 0 {
		return fde{}, false
	}
	ci, known := cies[at]
	if !known {
		ci = parseCIE(b, at, bases.machine)
		cies[at] = ci
	}
	if !ci.ok {
		return fde{}, false
	}
	c := &cursor{b: rec, pos: idPos + 4}
	start, ok := c.encoded(ci.enc, bases)
	size, ok2 := c.encodedValue(ci.enc & 0x0f)
	if !ok || !ok2 || c.bad || start == 0 || size == 0 || start+size < start {
		return fde{}, false
	}
	d := fde{start: start, end: start + size}
	if ci.hasAug {
		n := c.uleb()
		if n > uint64(len(rec)-c.pos) {
			return fde{}, false
		}
		end := c.pos + int(n)
		if n > 0 {
			d.lsda, _ = c.encoded(ci.lsda, bases)
		}
		c.pos = end
	}
	d.signal, d.odd = ci.signal, ci.signal || !ci.called
	d.inner = !ci.signal && movesCFA(c)
	return d, true
}

// parseCIE takes the CIE at pos.
func parseCIE(b []byte, pos int, m *objfile.Machine) cie {
	ci, c := openCIE(b, pos, &frameCIE{})
	ci.called = ci.ok && asCalled(c, m)
	return ci
}

// openCIE takes the CIE at pos up to its call frame instructions, where the cursor is then (LSB, "The Common Information
// Entry Format"). f gets the alignment factors.
func openCIE(b []byte, pos int, f *frameCIE) (cie, *cursor) {
	if pos+4 > len(b) {
		return cie{}, nil
	}
	rec, idPos, next := ehRecord(b, pos)
	if next == 0 || binary.LittleEndian.Uint32(rec[idPos:]) != 0 {
		return cie{}, nil
	}
	c := &cursor{b: rec, pos: idPos + 4}
	version := c.u8()
	aug := c.cstr()
	if version != 1 && version != 3 && version != 4 {
		return cie{}, nil
	}
	if version == 4 {
		c.take(2) // address and segment selector size
	}
	f.code, f.data = c.uleb(), c.sleb()
	if version == 1 {
		c.u8() // return address register
	} else {
		c.uleb()
	}
	ci := cie{ok: true, enc: peAbsptr, lsda: peOmit}
	ci.augmentation(c, aug)
	ci.ok = ci.ok && !c.bad
	return ci, c
}

// augmentation takes the letters of an augmentation string with their data.
func (ci *cie) augmentation(c *cursor, aug string) {
	if aug == "" {
		return
	}
	if aug[0] != 'z' {
		ci.ok = false // without lengths nothing after an unknown letter can be found
		return
	}
	ci.hasAug = true
	end := c.uleb()
	if end > uint64(len(c.b)-c.pos) {
		ci.ok = false
		return
	}
	after := c.pos + int(end)
	for _, l := range aug[1:] {
		switch l {
		case 'R':
			ci.enc = c.u8()
		case 'L':
			ci.lsda = c.u8()
		case 'P':
			enc := c.u8()
			c.encoded(enc&^peIndirect, ehBases{})
		case 'S':
			ci.signal = true
		}
	}
	c.pos = after
}

// asCalled reports whether a CIE's call frame instructions are those of code that is entered by a
// call: the CFA is the stack pointer and what a call pushes, and the return address stands below it (psABI,
// "Stack Unwind Algorithm").
func asCalled(c *cursor, m *objfile.Machine) bool {
	const defCFA, offset, nop = 0x0c, 0x80, 0x00
	cfa, ret := false, false
	for !c.bad && c.pos < len(c.b) {
		switch op := c.u8(); {
		case op == defCFA:
			cfa = c.uleb() == m.FrameSP && c.uleb() == m.Pushes
		case uint64(op) == offset|m.FrameReturn:
			ret = c.uleb() == 1 // times the data alignment, -8
		case op == nop:
		default:
			return false
		}
	}
	return cfa && ret && !c.bad
}

// movesCFA reports whether the call frame instructions set the CFA or a saved register
// before they advance the location: the code does not begin where a call arrives.
func movesCFA(c *cursor) bool {
	for !c.bad && c.pos < len(c.b) {
		op := c.u8()
		switch {
		case op&0xc0 == 0x80: // DW_CFA_offset
			return true
		case op == 0x0c || op == 0x0d || op == 0x0e || op == 0x0f: // DW_CFA_def_cfa…
			return true
		case op == 0x0a: // DW_CFA_remember_state
		case op == 0x00: // DW_CFA_nop
		default:
			return false
		}
	}
	return false
}

// loadFDEs reads the frame descriptions of .eh_frame.
func (f *elfFile) loadFDEs() ([]fde, error) {
	b, bases, err := f.ehFrameBytes()
	if err != nil || b == nil {
		return nil, err
	}
	fdes, err := f.ehFrame(b, bases)
	if f.section(".eh_frame") == nil {
		err = nil // without a section the table has no known end: what follows is not part of it
	}
	return fdes, err
}

// ehFrameBytes reads .eh_frame by its section or, without section headers, from where PT_GNU_EH_FRAME points; nil: there is
// none.
func (f *elfFile) ehFrameBytes() ([]byte, ehBases, error) {
	vaddr, off, size := uint64(0), uint64(0), uint64(0)
	if s := f.section(".eh_frame"); s != nil {
		vaddr, off, size = s.addr, s.off, s.size
	} else if f.ehHdr != 0 {
		v, err := f.ehFrameFromHdr()
		if err != nil {
			return nil, ehBases{}, err
		}
		var ok bool
		if off, size, ok = f.fileRange(v); !ok {
			return nil, ehBases{}, f.fail(".eh_frame_hdr", f.ehHdr, "points to 0x%x, which no segment holds", v)
		}
		vaddr = v
	}
	if size == 0 {
		return nil, ehBases{}, nil
	}
	b, err := f.bytesAt(off, size, ".eh_frame")
	return b, ehBases{vaddr: vaddr, machine: f.machine}, err
}

// ehFrameFromHdr gives the address of .eh_frame that .eh_frame_hdr holds:
//
//	u8 version 1 | u8 eh_frame_ptr enc | u8 fde_count enc | u8 table enc | eh_frame_ptr …
func (f *elfFile) ehFrameFromHdr() (uint64, error) {
	b, err := f.vaddrBytes(f.ehHdr, min(f.ehHdrSize, 16), ".eh_frame_hdr")
	if err != nil {
		return 0, err
	}
	c := &cursor{b: b}
	version, enc := c.u8(), c.u8()
	c.take(2)
	v, ok := c.encoded(enc, ehBases{vaddr: f.ehHdr, data: f.ehHdr})
	if version != 1 || !ok {
		return 0, f.fail(".eh_frame_hdr", f.ehHdr, "version %d, pointer encoding 0x%x: unknown", version, enc)
	}
	return v, nil
}

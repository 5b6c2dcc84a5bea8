package symbol

import (
	"encoding/binary"
)

// dynamic is what PT_DYNAMIC tells: addresses are link-time addresses.
type dynamic struct {
	symtab, strtab, strsz       uint64
	hash, gnuHash               uint64
	versym, verdef, verdefnum   uint64
	rela, relasz, jmprel, pltsz uint64
	flags1                      uint64
	soname                      uint64
	hasSoname, present          bool
	needed                      int
}

// readDynamic reads PT_DYNAMIC.
func (f *elfFile) readDynamic() (dynamic, error) {
	var d dynamic
	if f.dynSize == 0 {
		return d, nil
	}
	b, err := f.bytesAt(f.dynOff, min(f.dynSize, maxDynamic*16), "PT_DYNAMIC")
	if err != nil {
		return d, err
	}
	d.present = true
	fields := d.fields()
	for c := (&cursor{b: b}); ; {
		tag, val := c.u64(), c.u64()
		if c.bad || tag == dynNull {
			return d, nil
		}
		if p := fields[tag]; p != nil {
			*p = val
		}
		switch tag {
		case dynSoname:
			d.hasSoname = true
		case dynNeeded:
			d.needed++
		}
	}
}

// fields says where the values of tags go.
func (d *dynamic) fields() map[uint64]*uint64 {
	return map[uint64]*uint64{
		dynSymtab: &d.symtab, dynStrtab: &d.strtab, dynStrSz: &d.strsz,
		dynHash: &d.hash, dynGNUHash: &d.gnuHash, dynVersym: &d.versym,
		dynVerdef: &d.verdef, dynVerdefNum: &d.verdefnum, dynRela: &d.rela,
		dynRelaSz: &d.relasz, dynJmpRel: &d.jmprel, dynPltRelSz: &d.pltsz,
		dynFlags1: &d.flags1, dynSoname: &d.soname,
	}
}

// tableSpan is the part of a file that holds a symbol table and its strings, as file
// offsets.
type tableSpan struct {
	symOff, symSize uint64
	strOff, strSize uint64
}

// sectionSpan finds a symbol table by its section.
func (f *elfFile) sectionSpan(t uint32) (tableSpan, bool, error) {
	s := f.sectionOfType(t)
	if s == nil {
		return tableSpan{}, false, nil
	}
	if s.entsize != 24 || int(s.link) >= len(f.sects) {
		return tableSpan{}, false, f.fail(s.name, s.off, "entries of %d bytes, strings in section %d of %d", s.entsize, s.link, len(f.sects))
	}
	if s.flags&secCompressed != 0 {
		return tableSpan{}, false, f.fail(s.name, s.off, "compressed: objcopy --decompress-debug-sections makes it readable")
	}
	str := f.sects[s.link]
	return tableSpan{s.off, s.size, str.off, str.size}, true, nil
}

// dynamicSpan finds the dynamic symbols without section headers.
func (f *elfFile) dynamicSpan(d *dynamic) (tableSpan, bool, error) {
	if d.symtab == 0 || d.strtab == 0 {
		return tableSpan{}, false, nil
	}
	symOff, symMax, ok1 := f.fileRange(d.symtab)
	strOff, strMax, ok2 := f.fileRange(d.strtab)
	if !ok1 || !ok2 {
		return tableSpan{}, false, f.fail("DT_SYMTAB", d.symtab, "it or DT_STRTAB 0x%x lies in no segment's file contents", d.strtab)
	}
	n, err := f.dynCount(d)
	if err != nil {
		return tableSpan{}, false, err
	}
	return tableSpan{symOff, min(n*24, symMax/24*24), strOff, min(d.strsz, strMax)}, true, nil
}

// dynCount is the number of dynamic symbols, which only the hash tables tell.
func (f *elfFile) dynCount(d *dynamic) (uint64, error) {
	if d.gnuHash != 0 {
		return f.gnuHashCount(d.gnuHash)
	}
	if d.hash == 0 {
		return 0, f.fail("PT_DYNAMIC", f.dynOff, "neither DT_GNU_HASH nor DT_HASH: the number of symbols is unknown")
	}
	b, err := f.vaddrBytes(d.hash, 8, "DT_HASH")
	if err != nil {
		return 0, err
	}
	return uint64(binary.LittleEndian.Uint32(b[4:])), nil
}

// gnuHashCount walks the chain of the highest bucket to its end: chains are in symbol
// order, and the last entry of each has bit 0 set.
//
//	u32 nbuckets | u32 symoffset | u32 bloom words | u32 shift
//	u64 bloom[] | u32 buckets[nbuckets] | u32 chain[], from symbol symoffset on
func (f *elfFile) gnuHashCount(vaddr uint64) (uint64, error) {
	off, have, ok := f.fileRange(vaddr)
	if !ok {
		return 0, f.fail("DT_GNU_HASH", vaddr, "lies in no segment's file contents")
	}
	b, err := f.bytesAt(off, min(have, 16), "DT_GNU_HASH")
	if err != nil {
		return 0, err
	}
	c := &cursor{b: b}
	nb, symoff, bloom := uint64(c.u32()), uint64(c.u32()), uint64(c.u32())
	head := 16 + bloom*8 + nb*4
	if c.bad || head > have {
		return 0, f.fail("DT_GNU_HASH", vaddr, "%d buckets and %d bloom words do not fit into its segment", nb, bloom)
	}
	buckets, err := f.bytesAt(off+16+bloom*8, nb*4, "DT_GNU_HASH")
	if err != nil {
		return 0, err
	}
	last := uint64(0)
	for i := uint64(0); i < nb; i++ {
		last = max(last, uint64(binary.LittleEndian.Uint32(buckets[i*4:])))
	}
	if last < symoff {
		return symoff, nil // nothing is exported
	}
	return f.chainEnd(off+head, have-head, last-symoff, symoff)
}

// chainEnd follows the chain words from index i on and gives the number of symbols.
func (f *elfFile) chainEnd(off, have, i, symoff uint64) (uint64, error) {
	const step = 1024 // words read at once
	for i*4+4 <= have {
		n := min(step, (have-i*4)/4)
		b, err := f.bytesAt(off+i*4, n*4, "DT_GNU_HASH")
		if err != nil {
			return 0, err
		}
		for ; len(b) > 0; b, i = b[4:], i+1 {
			if b[0]&1 != 0 {
				return symoff + i + 1, nil
			}
		}
	}
	return 0, f.fail("DT_GNU_HASH", off, "its last chain has no end")
}

// rela is one relocation with addend.
type rela struct {
	off    uint64
	typ    uint32
	sym    uint32
	addend uint64
}

// eachRela calls fn for every entry of a relocation table until fn gives false. Tables
// are streamed: those of large programs take tens of megabytes.
func (f *elfFile) eachRela(vaddr, size uint64, what string, fn func(rela) bool) error {
	off, have, ok := f.fileRange(vaddr)
	if !ok || size > have {
		return f.fail(what, vaddr, "its %d bytes lie in no segment's file contents", size)
	}
	const step = 24 * 4096
	for size >= 24 {
		n := min(size/24*24, step)
		b, err := f.bytesAt(off, n, what)
		if err != nil {
			return err
		}
		for c := (&cursor{b: b}); c.pos < len(b); {
			r := rela{off: c.u64()}
			info := c.u64()
			r.sym, r.typ, r.addend = uint32(info>>32), uint32(info), c.u64()
			if !fn(r) {
				return nil
			}
		}
		off, size = off+n, size-n
	}
	return nil
}

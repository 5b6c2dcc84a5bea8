package symbol

import "slices"

// maxCallSites bounds the call-site table of one function in bytes. The largest of gdb
// takes 6 KB.
const maxCallSites = 4 << 20

// LandingPads gives the link-time addresses at which an exception enters a function and
// its cold parts, sorted: jumps that no instruction shows. They come from the LSDAs that
// .eh_frame names (.gcc_except_table). An exception table that can not be read is an
// error: then any address of the function may be one.
func (im *Image) LandingPads(fn *Func) ([]uint64, error) {
	t := im.table()
	var pads []uint64
	for _, p := range append([]*Func{fn}, im.Parts(fn)...) {
		for _, d := range t.fdesIn(p.Addr, p.End()) {
			if d.lsda == 0 {
				continue
			}
			var err error
			if pads, err = im.appendPads(pads, d); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(pads)
	return slices.Compact(pads), nil
}

// fdesIn gives the frame descriptions that begin in [start, end) or reach into it.
func (t *table) fdesIn(start, end uint64) []fde {
	i, _ := slices.BinarySearchFunc(t.fdes, start, func(d fde, a uint64) int { return cmpU64(d.start, a) })
	if i > 0 && t.fdes[i-1].end > start {
		i--
	}
	j := i
	for j < len(t.fdes) && t.fdes[j].start < end {
		j++
	}
	return t.fdes[i:j]
}

// appendPads reads one LSDA (Itanium C++ ABI: Exception Handling, "Exception Handling
// Tables"):
//
//	u8 lpstart enc [lpstart] | u8 ttype enc [uleb offset] | u8 call-site enc | uleb length
//	call sites: start, length, landing pad (0: none), uleb action
func (im *Image) appendPads(pads []uint64, d fde) ([]uint64, error) {
	const maxHead = 40
	_, have, ok := im.elf.fileRange(d.lsda)
	if !ok {
		return nil, im.elf.fail("exception table", d.lsda, "lies in no segment's file contents")
	}
	b, err := im.elf.vaddrBytes(d.lsda, min(have, maxHead), "exception table")
	if err != nil {
		return nil, err
	}
	c := &cursor{b: b}
	lpStart := d.start
	if enc := c.u8(); enc != peOmit {
		if lpStart, ok = c.encoded(enc, ehBases{vaddr: d.lsda}); !ok {
			return nil, im.elf.fail("exception table", d.lsda, "landing pad base with encoding 0x%x", enc)
		}
	}
	if c.u8() != peOmit {
		c.uleb()
	}
	enc, n := c.u8(), c.uleb()
	if c.bad || n > have-uint64(c.pos) || n > maxCallSites {
		return nil, im.elf.fail("exception table", d.lsda, "its %d bytes of call sites do not fit", n)
	}
	sites, err := im.elf.vaddrBytes(d.lsda+uint64(c.pos), n, "exception table")
	if err != nil {
		return nil, err
	}
	return im.callSites(pads, sites, enc, lpStart, d.lsda)
}

func (im *Image) callSites(pads []uint64, b []byte, enc byte, lpStart, lsda uint64) ([]uint64, error) {
	for c := (&cursor{b: b}); c.pos < len(b); {
		_, ok1 := c.encodedValue(enc & 0x0f)
		_, ok2 := c.encodedValue(enc & 0x0f)
		pad, ok3 := c.encodedValue(enc & 0x0f)
		c.uleb()
		if !ok1 || !ok2 || !ok3 || c.bad {
			return nil, im.elf.fail("exception table", lsda, "call site with encoding 0x%x at byte %d", enc, c.pos)
		}
		if pad != 0 && im.InText(lpStart+pad) {
			pads = append(pads, lpStart+pad)
		}
	}
	return pads, nil
}

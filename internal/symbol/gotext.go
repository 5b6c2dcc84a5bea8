package symbol

import (
	"encoding/binary"
)

// Offsets in runtime.moduledata, the same from Go 1.16 to 1.26: pcHeader, six slices of
// which pclntable and ftab are the last, findfunctab, minpc, maxpc, text.
const (
	mdHeader = 0
	mdMinpc  = 160
	mdMaxpc  = 168
	mdText   = 176
	mdSize   = 184
)

// maxModuledata bounds the places that may be the moduledata.
const maxModuledata = 64

// goTextStart finds the link-time address that function entries count from, runtime.text.
// It differs from .text in externally linked programs, and since Go 1.26 the pclntab does
// not tell it.
func (f *elfFile) goTextStart(d *dynamic, t *goTable, p *pclnData, textSym uint64) (uint64, error) {
	if textSym != 0 && f.textFits(t, textSym) {
		return textSym, nil
	}
	if v, ok := f.moduledataText(d, t); ok {
		return v, nil
	}
	guess := []uint64{p.hdrText}
	if s := f.section(".text"); s != nil {
		guess = append(guess, s.addr)
	}
	for _, v := range guess {
		if v != 0 && f.textFits(t, v) && f.padded(t, v) {
			return v, nil
		}
	}
	return 0, f.fail("pclntab", t.vaddr, "neither runtime.text nor a moduledata tells where its functions begin")
}

// textFits reports whether all functions would lie in one executable segment.
func (f *elfFile) textFits(t *goTable, start uint64) bool {
	last := t.funcs[len(t.funcs)-1]
	end := start + last.entry + last.size
	s := f.segment(start)
	return s != nil && s.Exec && end > start && end-s.Vaddr <= s.Memsz
}

// padded reports whether what stands between functions is padding, where the linker fills gaps with what nothing else
// has there. On other machines there is nothing to check.
func (f *elfFile) padded(t *goTable, start uint64) bool {
	const most = 256 // functions looked at
	if f.machine.Padding == 0 {
		return true
	}
	for i := range min(len(t.funcs)-1, most) {
		end, next := start+t.funcs[i].entry+t.funcs[i].size, start+t.funcs[i+1].entry
		if end == next {
			continue
		}
		gap := make([]byte, min(next-end, 64))
		if f.readVaddr(end, gap) != nil {
			return false
		}
		for _, b := range gap {
			if b != f.machine.Padding {
				return false
			}
		}
	}
	return true
}

// moduledataText finds the moduledata that points to the pclntab and gives its text
// field. In a position-independent program the pointers may stand in relocations only.
func (f *elfFile) moduledataText(d *dynamic, t *goTable) (uint64, bool) {
	for _, at := range f.moduledataPlaces(d, t.vaddr) {
		md, ok := f.moduledataWords(d, at)
		if !ok || md[mdHeader] != t.vaddr {
			continue
		}
		text := md[mdText]
		last := t.funcs[len(t.funcs)-1]
		if f.textFits(t, text) && md[mdMinpc] == text+t.funcs[0].entry && md[mdMaxpc] >= text+last.entry+last.size {
			return text, true
		}
	}
	return 0, false
}

// moduledataPlaces gives the addresses at which a moduledata may begin.
func (f *elfFile) moduledataPlaces(d *dynamic, pclntab uint64) []uint64 {
	if s := f.section(".go.module"); s != nil {
		return []uint64{s.addr}
	}
	var places []uint64
	f.eachRela(d.rela, d.relasz, "DT_RELA", func(r rela) bool {
		if f.isRelative(r.typ) && r.addend == pclntab {
			places = append(places, r.off)
		}
		return len(places) < maxModuledata
	})
	for _, s := range f.segs {
		if !s.Write {
			continue
		}
		_, _, err := f.scan(s, func(at uint64, b []byte) bool {
			if binary.LittleEndian.Uint64(b) == pclntab {
				places = append(places, s.Vaddr+at)
			}
			return len(places) >= maxModuledata
		})
		if err != nil {
			return places
		}
	}
	return places
}

// moduledataWords reads the fields that are compared, by offset, relocations applied.
func (f *elfFile) moduledataWords(d *dynamic, at uint64) (map[uint64]uint64, bool) {
	b, err := f.vaddrBytes(at, mdSize, "moduledata")
	if err != nil {
		return nil, false
	}
	words := map[uint64]uint64{}
	for _, off := range []uint64{mdHeader, mdMinpc, mdMaxpc, mdText} {
		words[off] = binary.LittleEndian.Uint64(b[off:])
	}
	f.eachRela(d.rela, d.relasz, "DT_RELA", func(r rela) bool {
		if _, ok := words[r.off-at]; ok && f.isRelative(r.typ) {
			words[r.off-at] = r.addend
		}
		return true
	})
	return words, true
}

func (f *elfFile) isRelative(typ uint32) bool {
	return typ == f.machine.Relative
}

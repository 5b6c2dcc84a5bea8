package symbol

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"kprobes.dev/kprobes/internal/interval"
)

// Readers tells who may read return addresses on the stack that lead into a file's code, beside
// an unwinder that goes by .eh_frame.
type Readers struct {
	// Runtime is software that does, and by what it is known; "": none is seen.
	Runtime string
	// Unknown is why it is not known that nobody does; nil: everything that the file shows
	// says so.
	Unknown error
}

// Readers looks for readers of return addresses. That there are none is taken for known where
//
//   - no name, section or compiler's mark is one of a runtime that reads them;
//   - compilers of C, C++ and Rust alone have left their mark (.comment), or none has;
//   - code that calls has frame descriptions (.eh_frame), so the unwinder is who looks there;
//   - no data names the places behind calls, as every table must by which a runtime finds a
//     frame by its return address.
//
// The answer is kept.
func (im *Image) Readers() Readers {
	im.readersOnce.Do(func() { im.readers = im.findReaders() })
	return im.readers
}

func (im *Image) findReaders() Readers {
	if r, mark := im.named(); r != nil {
		return Readers{Runtime: fmt.Sprintf("%s (%s)", r.name, mark)}
	}
	name, mark, unknown := im.made()
	if name != "" {
		return Readers{Runtime: fmt.Sprintf("%s (%s)", name, mark)}
	}
	s, err := im.scanCalls()
	if err != nil {
		return Readers{Unknown: err}
	}
	if s.tabled >= minTabled+s.callers/tabledShare {
		return Readers{Runtime: fmt.Sprintf("frame tables (its data names the places behind the calls of %d functions)", s.tabled)}
	}
	if unknown == nil && s.bare > minBare+s.sites/bareShare {
		unknown = fmt.Errorf("%d calls stand in code without frame descriptions (.eh_frame), of which it is not known who looks its frames up", s.bare)
	}
	return Readers{Unknown: unknown}
}

// Bounds between C's code and that of runtimes, as seen in some 1,900 programs and libraries of
// Debian 12. Data names the places behind three in four calls of a function in 47 of 100
// functions of OCaml, and by chance (tables of switches) in 23 of 10,325 functions of PostgreSQL, the
// largest share of all in C, C++ and Rust that are large. Calls without frame descriptions are 31 of libjpeg's and
// 58 of LLVM's, 941 in the smallest program of GHC's, 9,480 of 434,183 in node (V8's builtins).
const (
	minTabled   = 16
	tabledShare = 200 // of functions with calls
	minBare     = 16
	bareShare   = 2000 // of calls
	fewCalls    = 3    // functions with fewer are not counted as callers
)

// callScan is what a look at a file's calls has found.
type callScan struct {
	sites   int // direct calls
	bare    int // of these in code without frame descriptions
	callers int // functions with several
	tabled  int // of these such that data names the places behind most of their calls
}

// maxScan bounds the bytes of code and of data that are looked at, each.
const maxScan = 1 << 30

// code is a range of a file's code, with the places behind its direct calls, and which of these data
// names in each form: a table has one.
type code struct {
	interval.Range
	behind bitset
	named  [forms]bitset
}

// Forms in which data names a place in code.
const (
	byAddress  = iota // in four or eight bytes, or by a relocation
	byDistance        // from where it is said, in four bytes
	forms
)

type bitset []uint64

func (b bitset) set(i uint64)      { b[i/64] |= 1 << (i % 64) }
func (b bitset) has(i uint64) bool { return b[i/64]>>(i%64)&1 != 0 }

// scanCalls looks at all direct calls of a file.
func (im *Image) scanCalls() (callScan, error) {
	var s callScan
	if im.elf.machine.Calls == nil {
		return s, fmt.Errorf("code for %s is not looked through", im.elf.machine.Name)
	}
	var size, data uint64
	for _, r := range im.exec {
		size += r.End - r.Start
	}
	for _, g := range im.elf.segs {
		data += g.Filesz
	}
	if size > maxScan || data > 2*maxScan {
		return s, fmt.Errorf("%d bytes of code and data are more than are looked through", data)
	}
	codes, sites, err := im.callSitesIn()
	if err != nil {
		return s, err
	}
	if err := im.nameSites(codes); err != nil {
		return s, err
	}
	s.count(im.table().fdes, codes, sites)
	return s, nil
}

// callSitesIn lists the addresses behind direct calls to code of the same file.
func (im *Image) callSitesIn() (codes []code, sites []uint64, err error) {
	const step = 1 << 20
	machine := im.elf.machine
	call := uint64(machine.CallLen)
	buf := make([]byte, step+call-1)
	for _, r := range im.exec {
		n := (r.End-r.Start)/64 + 1
		c := code{r, make(bitset, n), [forms]bitset{make(bitset, n), make(bitset, n)}}
		for at := r.Start; at < r.End; at += step {
			b := buf[:min(step+call-1, r.End-at)]
			if err := im.elf.readVaddr(at, b); err != nil {
				return nil, nil, err
			}
			machine.Calls(b, at, func(behind, to uint64) {
				if to != behind && inRanges(im.exec, to) {
					c.behind.set(behind - r.Start)
					sites = append(sites, behind)
				}
			})
		}
		codes = append(codes, c)
	}
	slices.Sort(sites)
	return codes, sites, nil
}

// nameSites notes which places behind calls data names: by an address (of which the low half is
// looked at: files are linked below 4 GiB), by the distance from where it is said, or by a
// relocation.
func (im *Image) nameSites(codes []code) error {
	note := func(v uint64, form int) {
		for i := range codes {
			if c := &codes[i]; c.Contains(v) && c.behind.has(v-c.Start) {
				c.named[form].set(v - c.Start)
			}
		}
	}
	err := im.eachAddend(im.elf.machine.Relative, func(v uint64) { note(v, byAddress) })
	if err != nil {
		return err
	}
	lo, hi := uint64(1<<63), uint64(0)
	for _, c := range codes {
		lo, hi = min(lo, c.Start), max(hi, c.End)
	}
	return im.eachData(func(at uint64, b []byte) {
		for ; len(b) >= 4; at, b = at+4, b[4:] {
			w := binary.LittleEndian.Uint32(b)
			if v := uint64(w); v-lo < hi-lo {
				note(v, byAddress)
			}
			if v := at + uint64(int64(int32(w))); v-lo < hi-lo && w != 0 {
				note(v, byDistance)
			}
		}
	})
}

func (im *Image) eachAddend(typ uint32, fn func(uint64)) error {
	if im.dyn.rela == 0 || im.dyn.relasz == 0 {
		return nil
	}
	return im.elf.eachRela(im.dyn.rela, im.dyn.relasz, "DT_RELA", func(r rela) bool {
		if r.typ == typ {
			fn(r.addend)
		}
		return true
	})
}

// eachData gives what the file holds of its segments and is neither code nor what the unwinder goes by, in
// pieces that begin at multiples of 4.
func (im *Image) eachData(fn func(at uint64, b []byte)) error {
	const step = 1 << 20
	buf := make([]byte, step)
	holes := slices.Clone(im.exec)
	for _, name := range []string{".eh_frame", ".eh_frame_hdr", ".gcc_except_table"} {
		if s := im.elf.section(name); s != nil {
			holes = append(holes, interval.Range{Start: s.addr, End: s.addr + s.size})
		}
	}
	slices.SortFunc(holes, func(a, b interval.Range) int { return cmpU64(a.Start, b.Start) })
	for _, g := range im.elf.segs {
		for _, r := range without(interval.Range{Start: (g.Vaddr + 3) &^ 3, End: g.Vaddr + g.Filesz}, holes) {
			for at := (r.Start + 3) &^ 3; at < r.End; at += step {
				b := buf[:min(step, r.End-at)]
				if err := im.elf.readVaddr(at, b); err != nil {
					return err
				}
				fn(at, b)
			}
		}
	}
	return nil
}

// without gives what is left of a range outside sorted ones.
func without(r interval.Range, holes []interval.Range) (out []interval.Range) {
	for _, h := range holes {
		if h.End <= r.Start || h.Start >= r.End {
			continue
		}
		if h.Start > r.Start {
			out = append(out, interval.Range{Start: r.Start, End: h.Start})
		}
		r.Start = h.End
	}
	if r.Start < r.End {
		out = append(out, r)
	}
	return out
}

// count sums up by function. fdes and sites are sorted.
func (s *callScan) count(fdes []fde, codes []code, sites []uint64) {
	s.sites = len(sites)
	described := make(bitset, len(sites)/64+1)
	for _, d := range fdes {
		i := sort.Search(len(sites), func(i int) bool { return sites[i] > d.start })
		n, named := 0, [forms]int{}
		for ; i < len(sites) && sites[i] <= d.end; i++ {
			described.set(uint64(i))
			n++
			for j := range codes {
				c := &codes[j]
				for form := range named {
					if c.Contains(sites[i]) && c.named[form].has(sites[i]-c.Start) {
						named[form]++
					}
				}
			}
		}
		if n < fewCalls {
			continue
		}
		s.callers++
		if 4*max(named[byAddress], named[byDistance]) >= 3*n {
			s.tabled++
		}
	}
	for i := range sites {
		if !described.has(uint64(i)) {
			s.bare++
		}
	}
}

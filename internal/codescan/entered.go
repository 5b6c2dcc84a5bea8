package codescan

import (
	"cmp"
	"slices"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
)

// Code outside a function may jump into its middle: assembly that shares a tail (the C
// library's mempcpy goes on in memmove), and cold parts of functions in a file without names,
// which nothing ties to the function that they jump back to. A probe's jump over such an
// address would be entered in its middle.

// entered lists the link-time addresses inside a function at which code outside enters it.
// Go's compiler and assembler make no such jumps, and a kernel's code is not searched.
func (x *text) entered(fn *symbol.Func) []uint64 {
	if x.live || fn.Lang == symbol.LangGo {
		return nil
	}
	x.crossed.once.Do(x.findCrossings)
	i, _ := slices.BinarySearch(x.crossed.to, fn.Addr+1)
	j, _ := slices.BinarySearch(x.crossed.to, max(fn.End(), fn.Addr+1))
	return append(slices.Clone(x.crossed.to[i:j]), x.neighbours(fn)...)
}

// findCrossings searches the object's code once, byte by byte, for code has data in it, and nobody knows where. Bytes that are
// no jump lead into the code once in thousands of times. Most of these are told by mistaken; of the others a place is refused
// that would be good, and nothing worse.
func (x *text) findCrossings() {
	const step, overlap = 1 << 20, native.MaxInst
	buf := make([]byte, step+overlap)
	for _, r := range x.searched() {
		for at := r.Start; at < r.End; at += step {
			b := buf[:min(uint64(len(buf)), r.End-at)]
			if x.im.ReadAt(at, b) == nil {
				x.crossIn(at, b, step)
			}
		}
	}
	slices.Sort(x.crossed.to)
	x.crossed.to = slices.Compact(x.crossed.to)
}

// padding is more than is between two functions of Go's, in bytes.
const padding = 64

// searched is the object's code without Go's functions, and what is between them.
func (x *text) searched() []interval.Range {
	var out []interval.Range
	for _, r := range x.im.TextRanges() {
		at, others := r.Start, true // what is before the first function of Go's may be anybody's
		end := func(to uint64) {
			if others && to > at || to > at+padding {
				out = append(out, interval.Range{Start: at, End: to})
			}
			others = false
		}
		i, _ := slices.BinarySearchFunc(x.funcs, at, func(f *symbol.Func, a uint64) int { return cmp.Compare(f.Addr, a) })
		for _, f := range x.funcs[i:] {
			switch {
			case f.Addr >= r.End:
			case f.Lang != symbol.LangGo:
				others = true
			default:
				end(f.Addr)
				at = max(at, f.End())
			}
		}
		end(r.End)
	}
	return out
}

// crossIn notes the jumps that begin in the first step bytes of code.
func (x *text) crossIn(at uint64, b []byte, step int) {
	var own *symbol.Func // the function that the search is in
	for i, to := range native.LongBranches(b, at) {
		if i >= step {
			return
		}
		from := at + uint64(i)
		if own == nil || !own.Contains(from) {
			own, _, _ = x.im.At(from)
		}
		if own != nil && own.Contains(to) || !x.im.InText(to) {
			continue
		}
		if fn, off, ok := x.im.At(to); ok && off != 0 && !fn.Contains(from) && !x.mistaken(own, from, fn, to) {
			x.crossed.to = append(x.crossed.to, to)
		}
	}
}

// mistaken says whether bytes at from, which look like a jump to the byte to of fn, are none: they begin inside an instruction of
// own, and lead into one of fn. A jump would have to stand behind data in both functions that nobody tells from code.
func (x *text) mistaken(own *symbol.Func, from uint64, fn *symbol.Func, to uint64) bool {
	return own != nil && own.Contains(from) && x.inside(own, from) && x.inside(fn, to)
}

// inside says whether an address lies inside an instruction of a function; false if that is not known.
func (x *text) inside(fn *symbol.Func, addr uint64) bool {
	if addr-fn.Addr > maxInside {
		return false
	}
	b := make([]byte, min(addr-fn.Addr+native.MaxInst, fn.End()-fn.Addr))
	return x.read(fn.Addr, b) == nil && native.Inside(b, int(addr-fn.Addr))
}

// maxInside bounds the bytes that are decoded to say so.
const maxInside = 1 << 16

// shortWalk is how far before a function a walk over instructions begins, in bytes. A walk that
// begins anywhere meets the real instructions after a few.
const shortWalk = 1024

// neighbours lists the addresses inside a function that short jumps from around it lead to.
func (x *text) neighbours(fn *symbol.Func) []uint64 {
	lo := fn.Addr - min(shortWalk, fn.Addr)
	if p, _, ok := x.im.At(fn.Addr - 1); ok && p.Addr > lo {
		lo = min(p.Addr, fn.Addr-min(native.ShortReach, fn.Addr))
		if q, _, ok := x.im.At(lo); ok {
			lo = max(q.Addr, fn.Addr-min(shortWalk, fn.Addr))
		}
	}
	return append(x.shortJumps(lo, fn.Addr, fn), x.shortJumps(fn.End(), fn.End()+native.ShortReach, fn)...)
}

// shortJumps lists where the short jumps between lo and hi lead, inside fn.
func (x *text) shortJumps(lo, hi uint64, fn *symbol.Func) []uint64 {
	b := make([]byte, hi-lo)
	for len(b) > 0 && (!x.im.InText(lo+uint64(len(b))-1) || x.read(lo, b) != nil) {
		b = b[:len(b)-1]
	}
	var out []uint64
	for to := range native.ShortJumps(b, lo) {
		if to > fn.Addr && fn.Contains(to) {
			out = append(out, to)
		}
	}
	return out
}

package kprobes

import (
	"slices"

	"kprobes.dev/kprobes/symbol"
)

// text serves what an object's file holds, a window of each segment at a time: functions
// are analysed in the order of their addresses, and so are their jump tables read.
type text struct {
	im      *symbol.Image
	segs    []symbol.Segment
	windows []window       // one for each segment
	funcs   []*symbol.Func // sorted by address
}

// window is a piece of a segment's contents.
type window struct {
	at   uint64 // link-time address
	have []byte
}

// windowSize bounds a window, in bytes.
const windowSize = 64 << 10

// text gives the reader of an object's file.
func (c *Core) text(im *symbol.Image) *text {
	x := c.texts[im]
	if x == nil {
		x = &text{im: im, segs: im.Segments(), funcs: im.Funcs()}
		x.windows = make([]window, len(x.segs))
		if c.texts == nil {
			c.texts = map[*symbol.Image]*text{}
		}
		c.texts[im] = x
	}
	return x
}

// read fills b with what the file has at a link-time address.
func (x *text) read(vaddr uint64, b []byte) error {
	i := slices.IndexFunc(x.segs, func(s symbol.Segment) bool { return s.Contains(vaddr) })
	if i < 0 || len(b) > windowSize {
		return x.im.ReadAt(vaddr, b)
	}
	w := &x.windows[i]
	if w.copy(vaddr, b) {
		return nil
	}
	s := &x.segs[i]
	w.at = vaddr
	w.have = slices.Grow(w.have[:0], windowSize)[:min(windowSize, s.Vaddr+s.Memsz-vaddr)]
	if err := x.im.ReadAt(vaddr, w.have); err != nil {
		w.have = w.have[:0]
		return x.im.ReadAt(vaddr, b)
	}
	if w.copy(vaddr, b) {
		return nil
	}
	return x.im.ReadAt(vaddr, b)
}

// copy fills b if the window has all of it.
func (w *window) copy(vaddr uint64, b []byte) bool {
	off := vaddr - w.at
	if off > uint64(len(w.have)) || uint64(len(b)) > uint64(len(w.have))-off {
		return false
	}
	copy(b, w.have[off:])
	return true
}

// constant says whether n bytes at a link-time address never change while the program
// runs.
func (x *text) constant(vaddr uint64, n int) bool {
	i := slices.IndexFunc(x.segs, func(s symbol.Segment) bool { return s.Contains(vaddr) })
	return i >= 0 && !x.segs[i].Write && uint64(n) <= x.segs[i].Vaddr+x.segs[i].Memsz-vaddr
}

// next gives the address of the first function at or after one.
func (x *text) next(vaddr uint64) (uint64, bool) {
	i, _ := slices.BinarySearchFunc(x.funcs, vaddr, func(f *symbol.Func, a uint64) int {
		if f.Addr < a {
			return -1
		}
		return 1
	})
	if i == len(x.funcs) {
		return 0, false
	}
	return x.funcs[i].Addr, true
}

// after reads the bytes between the end of a function and the next one.
func (x *text) after(fn *symbol.Func) []byte {
	end := fn.End()
	n := uint64(maxAfter)
	if next, ok := x.next(end); ok {
		n = min(n, next-end)
	}
	b := make([]byte, n)
	for ; n > 0; n-- {
		if x.im.InText(end+n-1) && x.read(end, b[:n]) == nil {
			return b[:n]
		}
	}
	return nil
}

// maxAfter is more than any patch takes of the padding behind a function.
const maxAfter = 32

// constants reads the target's memory; what is constant is taken from the object's file.
func (c *Core) constants(addr uint64, b []byte) error {
	if m := c.t.Space().ModuleAt(addr); m != nil {
		if x, at := c.text(m.Image), m.Linktime(addr); x.constant(at, len(b)) {
			return x.read(at, b)
		}
	}
	return c.t.Read(addr, b)
}

package codescan

import (
	"slices"
	"sync"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// text serves what an object's file holds, a window of each segment at a time: functions
// are analysed in the order of their addresses, and so are their jump tables read. It may
// be used by several goroutines.
type text struct {
	im      *symbol.Image
	segs    []symbol.Segment
	funcs   []*symbol.Func // sorted by address
	keep    []keep         // sorted by address
	keepErr error
	live    bool // it is the target's memory, which changes
	mu      sync.Mutex
	windows []window // one for each segment
	slab    []byte   // what is left of memory for the code of small functions
	crossed crossings
}

// window is a piece of a segment's contents.
type window struct {
	at   uint64 // link-time address
	have []byte
}

// windowSize bounds a window, in bytes.
const windowSize = 64 << 10

// texts are the texts of objects whose memory changes, which one target alone has.
type texts struct {
	mu sync.Mutex
	of map[*symbol.Image]*text
}

// read fills b with what the file has at a link-time address.
func (x *text) read(vaddr uint64, b []byte) error {
	i := slices.IndexFunc(x.segs, func(s symbol.Segment) bool { return s.Contains(vaddr) })
	if i < 0 || len(b) > windowSize || x.live {
		return x.im.ReadAt(vaddr, b)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
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

// body reads a function's code, and behind it the bytes up to the next function, a few of them.
func (x *text) body(fn *symbol.Func) (b []byte, err error) {
	end := fn.End()
	n := uint64(maxAfter)
	if next, ok := x.next(end); ok {
		n = min(n, next-end)
	}
	b = x.memory(int(fn.Size + n))
	if n > 0 && x.im.InText(end+n-1) && x.read(fn.Addr, b) == nil {
		return b, nil
	}
	if err := x.read(fn.Addr, b[:fn.Size]); err != nil {
		return nil, err
	}
	for ; n > 0; n-- {
		if x.im.InText(end+n-1) && x.read(end, b[fn.Size:][:n]) == nil {
			break
		}
	}
	return b[:fn.Size+n], nil
}

// Memory for the code of functions, in bytes: that of small ones is taken from pieces.
const (
	slabSize  = 8 << 10
	smallCode = slabSize / 8
)

// memory gives n bytes.
func (x *text) memory(n int) []byte {
	if n > smallCode {
		return make([]byte, n)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.slab) < n {
		x.slab = make([]byte, slabSize)
	}
	b := x.slab[:n:n]
	x.slab = x.slab[n:]
	return b
}

// maxAfter is more than any patch takes of the padding behind a function.
const maxAfter = 32

// Scanner reads the code of one target. Its methods may be called by several goroutines at once.
type Scanner struct {
	t   target.Target
	can target.Capabilities // of t
	// around is what the analysis of any function may ask of the target; the rest of it is not set.
	around    arch.Func
	texts     texts
	unwinders unwinders
}

// keep is a restartable sequence with the last byte before it, or the signature before the
// place where one goes on when it was interrupted. The instruction that ends with that byte
// is the one that announces the sequence: a thread that is preempted behind it and not yet
// at the sequence has announced it in vain.
type keep struct {
	interval.Range
	abort uint64 // where it goes on
}

// crossings are the addresses inside functions that 32-bit jumps and calls from elsewhere in
// the object lead to.
type crossings struct {
	once sync.Once
	to   []uint64 // link-time addresses, sorted
}

// unwinders are those of the files that were asked for.
type unwinders struct {
	mu sync.Mutex
	of map[*symbol.Image]symbol.Unwinder
}

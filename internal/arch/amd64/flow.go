package amd64

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// maxFuncBytes bounds what one analysis takes, all parts together. The largest functions
// of real programs are below 1 MiB.
const maxFuncBytes = 4 << 20

// maxParts bounds the parts of one function. Compilers make two.
const maxParts = 64

// maxSweeps bounds how often code found by a sweep leads to more. Real functions need two.
const maxSweeps = 16

// ErrFunc says that what was given to Analyse is no function: no bytes, too many, or
// parts that overlap.
var ErrFunc = errors.New("function cannot be analysed")

// Part is a run of a function's code that stands apart from its main body, such as
// what gcc puts into NAME.cold.
type Part struct {
	Addr uint64
	Code []byte
}

// Func is what the analysis is given: the bytes of one function as they are in its
// file, without any patch of the engine's. Addresses, and the pointers that Mem reads, are of
// one address space, the file's or the process's.
type Func struct {
	Name string
	Addr uint64
	Code []byte // ends where the function ends; padding after it may be left out or not

	// Parts are analysed together with the body, as one function. A part that
	// is missing makes the jumps to it tail jumps, and a table without a bounds
	// check ends at the first entry that points there.
	Parts []Part

	// Entries are further addresses entered from outside that the bytes don't
	// show: landing pads of exceptions, other symbols inside, places that other
	// functions jump to. Those outside the function are left out.
	Entries []uint64

	Go bool // compiled by Go: no data in the code, no register survives a call

	// Scratch holds registers that carry nothing out of the function where it returns,
	// because its convention says so, and the flags if they carry nothing over its calls
	// either; 0: nothing is taken from a convention.
	Scratch RegSet

	// Mem reads the program's data at addr (jump tables). With nil nothing that
	// takes a table is resolved. In a position-independent program the pointers
	// in it must be relocated to the address space of Addr.
	Mem func(addr uint64, buf []byte) error

	// NoReturn says whether a call to target never comes back; nil: only what
	// the bytes show (a call with nothing behind it).
	NoReturn func(target uint64) bool

	// Inside gives the start of the function that an address outside belongs
	// to; nil: unknown. It separates function pointers from garbage behind a
	// jump table.
	Inside func(addr uint64) (start uint64, ok bool)

	// Returns says whether a jump to an address outside is a return; nil: none is.
	Returns func(target uint64) bool
}

// flowNode is one decoded instruction.
type flowNode struct {
	addr  uint64
	in    Inst
	next  int32 // node that it falls through to, or noNode
	jump  int32 // node that its direct branch goes to, or noNode
	falls bool  // control may go on after it
	swept bool  // found by the sweep, not by following the flow
}

func (n *flowNode) end() uint64 { return n.addr + uint64(n.in.Len) }

const noNode = int32(-1)

// What is known of a byte of code.
const (
	markTarget uint8 = 1 << iota // something goes here other than by falling through
	markEntry                    // entered from outside
	markBad                      // reached, and no instruction
)

// flowPart is a part of the function with a map of its bytes.
type flowPart struct {
	addr uint64
	code []byte
	at   []int32 // by offset: the node that starts there, plus 1
	mark []uint8 // by offset
}

func (p *flowPart) end() uint64 { return p.addr + uint64(len(p.code)) }

// Flow is the control flow of one function: its instructions, where its branches go,
// how it is left, and which registers are live where. It does not change after Analyse
// and may be used by several goroutines.
//
// If an indirect jump is unresolved (see Unresolved), every instruction of the function
// counts as a target.
type Flow struct {
	fn     Func
	parts  []flowPart // [0] is the body
	nodes  []flowNode // in the order found
	order  []int32    // nodes by part and address
	linked bool       // the edges between nodes are filled in
	jumps  []*indirect
	jumpAt map[int32]int // node to its place in jumps
	bad    []badPlace
	effort int // spent on indirect jumps

	exits      []Exit
	reason     error
	unresolved []uint64

	effs     []nodeEffects // by node, filled as needed while Analyse runs
	predIdx  []int32
	predList []int32

	linkOnce  sync.Once
	liveOnce  sync.Once
	live      []RegSet
	depthOnce sync.Once
	depth     []depth
}

// badPlace is a place that control reaches and that holds no instruction.
type badPlace struct {
	addr uint64
	err  error
}

// Analyse finds the control flow of a function. It fails, with ErrFunc, only for input
// that is no function; what cannot be found out is told by Exits and Unresolved.
func Analyse(f *Func) (*Flow, error) {
	fl, err := newFlow(f)
	if err != nil {
		return nil, err
	}
	fl.walk(fl.roots(), false)
	fl.resolveJumps()
	for n := 0; n < maxSweeps && fl.sweep(); n++ {
		fl.resolveJumps()
	}
	if len(fl.jumps) > 0 {
		fl.link()
		fl.settleJumps()
	}
	fl.sort()
	fl.findExits()
	return fl, nil
}

// flows holds what released flows were made of: fresh memory costs more than the rest of
// an analysis.
var flows = sync.Pool{New: func() any { return &Flow{jumpAt: map[int32]int{}} }}

// release gives the flow's memory to others. Nothing of it may be used any more, save
// bytes of the function's code.
func (fl *Flow) release() { flows.Put(fl) }

// reuse empties a flow for another function.
func (fl *Flow) reuse(f *Func) {
	clear(fl.jumpAt)
	*fl = Flow{
		fn: *f, parts: fl.parts[:0], nodes: fl.nodes[:0], order: fl.order[:0], jumpAt: fl.jumpAt,
		effs: fl.effs[:0], predIdx: fl.predIdx[:0], predList: fl.predList[:0], live: fl.live[:0], depth: fl.depth[:0],
	}
}

func newFlow(f *Func) (*Flow, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	fl := flows.Get().(*Flow)
	fl.reuse(f)
	fl.addPart(Part{f.Addr, f.Code})
	total := len(f.Code)
	for _, p := range f.Parts {
		fl.addPart(p)
		total += len(p.Code)
	}
	fl.nodes = slices.Grow(fl.nodes, total/4+8) // instructions take 4.2 bytes on average
	return fl, nil
}

// check says, by ErrFunc, why what is given is no function.
func (f *Func) check() error {
	if len(f.Parts) > maxParts {
		return fmt.Errorf("%w: %s has %d parts, at most %d are taken", ErrFunc, f.Name, len(f.Parts), maxParts)
	}
	all := []Part{{f.Addr, f.Code}}
	if len(f.Parts) > 0 {
		all = append(all, f.Parts...)
	}
	total := 0
	for i, p := range all {
		n := uint64(len(p.Code))
		if total += len(p.Code); total > maxFuncBytes {
			return fmt.Errorf("%w: %s is longer than %d bytes: check its bounds", ErrFunc, f.Name, maxFuncBytes)
		}
		if n == 0 || p.Addr+n < p.Addr {
			return fmt.Errorf("%w: %s at 0x%x has no bytes or wraps around", ErrFunc, f.Name, p.Addr)
		}
		for _, o := range all[:i] {
			if p.Addr < o.Addr+uint64(len(o.Code)) && o.Addr < p.Addr+n {
				return fmt.Errorf("%w: the parts of %s at 0x%x and 0x%x overlap", ErrFunc, f.Name, o.Addr, p.Addr)
			}
		}
	}
	return nil
}

func (fl *Flow) addPart(p Part) {
	n := uint64(len(p.Code))
	if len(fl.parts) == cap(fl.parts) {
		fl.parts = append(fl.parts, flowPart{})
	} else {
		fl.parts = fl.parts[:len(fl.parts)+1]
	}
	had := &fl.parts[len(fl.parts)-1] // its memory, if the flow was another's
	*had = flowPart{addr: p.Addr, code: p.Code, at: zeroed(had.at, int(n)), mark: zeroed(had.mark, int(n))}
}

// zeroed gives n zeros, in the memory of s if there is enough.
func zeroed[T any](s []T, n int) []T {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// roots marks where the function, and each of its parts, is entered, and returns that.
func (fl *Flow) roots() []uint64 {
	roots := append(slices.Clone(fl.fn.Entries), fl.fn.Addr)
	for _, a := range roots {
		fl.setMark(a, markTarget|markEntry)
	}
	for _, p := range fl.fn.Parts {
		fl.setMark(p.Addr, markTarget)
		roots = append(roots, p.Addr)
	}
	return roots
}

// place finds the part that holds addr, and addr's offset in it; nil if it is outside.
func (fl *Flow) place(addr uint64) (*flowPart, uint64) {
	for i := range fl.parts {
		if p := &fl.parts[i]; addr-p.addr < uint64(len(p.code)) {
			return p, addr - p.addr
		}
	}
	return nil, 0
}

func (fl *Flow) inside(addr uint64) bool {
	p, _ := fl.place(addr)
	return p != nil
}

func (fl *Flow) setMark(addr uint64, m uint8) {
	if p, off := fl.place(addr); p != nil {
		p.mark[off] |= m
	}
}

func (fl *Flow) marked(addr uint64, m uint8) bool {
	p, off := fl.place(addr)
	return p != nil && p.mark[off]&m != 0
}

// node gives the node that starts at addr, or noNode.
func (fl *Flow) node(addr uint64) int32 {
	p, off := fl.place(addr)
	if p == nil {
		return noNode
	}
	return p.at[off] - 1
}

// cover gives the address of the instruction that starts before addr and reaches over
// it.
func (fl *Flow) cover(addr uint64) (uint64, bool) {
	p, off := fl.place(addr)
	if p == nil {
		return 0, false
	}
	for d := uint64(1); d < MaxLen && d <= off; d++ {
		if id := p.at[off-d] - 1; id >= 0 && uint64(fl.nodes[id].in.Len) > d {
			return addr - d, true
		}
	}
	return 0, false
}

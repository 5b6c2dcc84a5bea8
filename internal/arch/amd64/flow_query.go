package amd64

import (
	"iter"
	"slices"
)

// Inst gives the instruction that starts at addr. It must not be changed.
func (fl *Flow) Inst(addr uint64) (*Inst, bool) {
	id := fl.node(addr)
	if id < 0 {
		return nil, false
	}
	return &fl.nodes[id].in, true
}

// All walks over the instructions, each part in the order of addresses.
func (fl *Flow) All() iter.Seq2[uint64, *Inst] {
	return func(yield func(uint64, *Inst) bool) {
		for _, id := range fl.order {
			if n := &fl.nodes[id]; !yield(n.addr, &n.in) {
				return
			}
		}
	}
}

// Next gives the first instruction that starts after addr in the same part.
func (fl *Flow) Next(addr uint64) (uint64, *Inst, bool) {
	p, off := fl.place(addr)
	if p == nil {
		return 0, nil, false
	}
	for off++; off < uint64(len(p.at)); off++ {
		if id := p.at[off] - 1; id >= 0 {
			return fl.nodes[id].addr, &fl.nodes[id].in, true
		}
	}
	return 0, nil, false
}

// Prev gives the instruction that ends where addr begins.
func (fl *Flow) Prev(addr uint64) (uint64, bool) {
	for d := uint64(1); d <= MaxLen && d <= addr; d++ {
		if id := fl.node(addr - d); id >= 0 && fl.nodes[id].end() == addr {
			return addr - d, true
		}
	}
	return 0, false
}

// Boundary says whether an instruction starts at addr that may be patched. If not,
// inside is the instruction whose bytes cover addr, or 0 if none does. A second
// instruction in the bytes of another (a jump past a lock prefix) is none of its own.
func (fl *Flow) Boundary(addr uint64) (ok bool, inside uint64) {
	if c, covered := fl.cover(addr); covered {
		return false, c
	}
	return fl.node(addr) >= 0, 0
}

// Reachable says whether the instruction at addr was found by following the flow. The
// others were found by decoding what lies between, and fit; they may be code that is
// entered in a way that the bytes don't show, or dead.
func (fl *Flow) Reachable(addr uint64) bool {
	id := fl.node(addr)
	return id >= 0 && !fl.nodes[id].swept
}

// Target says whether anything may go to addr other than by falling through or
// returning from a call: a branch, a jump table, an entry from outside, or an indirect
// jump that is not resolved.
func (fl *Flow) Target(addr uint64) bool {
	return fl.marked(addr, markTarget) || len(fl.unresolved) > 0 && fl.node(addr) >= 0
}

// leavesTo says whether a direct branch of the function goes to an address outside.
func (fl *Flow) leavesTo(addr uint64) bool {
	return slices.ContainsFunc(fl.nodes, func(n flowNode) bool {
		t, ok := branchTarget(&n)
		return ok && t == addr
	})
}

// Unresolved lists the indirect jumps that may go anywhere in the function, and the far
// jumps and returns.
func (fl *Flow) Unresolved() []uint64 { return slices.Clone(fl.unresolved) }

// Bytes gives the n bytes at addr, fewer if the part ends before, none if addr is
// outside.
func (fl *Flow) Bytes(addr uint64, n int) []byte {
	p, off := fl.place(addr)
	if p == nil || n <= 0 {
		return nil
	}
	return p.code[off:min(off+uint64(n), uint64(len(p.code)))]
}

// Addr is the function's first address.
func (fl *Flow) Addr() uint64 { return fl.fn.Addr }

// End is the address after the function's body; other parts are elsewhere.
func (fl *Flow) End() uint64 { return fl.parts[0].end() }

// PaddingAt counts the bytes from addr that are padding which nothing reaches.
func (fl *Flow) PaddingAt(addr uint64) int {
	p, off := fl.place(addr)
	if p == nil {
		return 0
	}
	if _, covered := fl.cover(addr); covered {
		return 0
	}
	end := off
	for end < uint64(len(p.code)) && p.at[end] == 0 && p.mark[end] == 0 {
		end++
	}
	return padding(p.code[off:end])
}

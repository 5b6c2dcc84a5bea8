package amd64

import (
	"encoding/binary"
	"slices"
)

// The target of an indirect jump is computed backwards: the definitions that reach the
// jump are looked up along all paths, and what they compute is put together to a
// constant, or to the entry of a table at a constant address. Only the few instructions
// that compilers use for this are understood; everything else is an unknown value,
// which may be the index of a table.

// valueKind tells what a tableValue stands for.
type valueKind uint8

const (
	valUnknown valueKind = iota
	valConst             // c
	valIndex             // c + mult * index
	valLoad              // c + the entry at table + mult * index; mult 0: no index
)

// tableValue is a value that a register has at some place.
type tableValue struct {
	kind   valueKind
	c      uint64
	ptr    bool // c holds an address, not just a displacement
	mult   uint64
	idx    locus // the index: its value before node at
	at     int32
	table  uint64
	width  uint8 // bytes of an entry
	signed bool
}

func unknownValue() []tableValue { return []tableValue{{}} }

// locus is where a value is kept: a register, or the memory at disp(reg,index,scale).
type locus struct {
	mem   bool
	reg   Reg
	index Reg
	scale uint8 // 0: no index
	disp  int32
}

// Limits of one value.
const (
	maxValueDepth = 12  // definitions behind each other
	maxValues     = 256 // alternatives of one value
)

// lookback finds the values of registers by looking back.
type lookback struct {
	fl   *Flow
	seen []int32 // by node: the last search that passed it
	gen  int32
	memo map[place][]tableValue
}

// place is where a value is asked for: before a node.
type place struct {
	l  locus
	at int32
}

func (fl *Flow) lookback() *lookback {
	return &lookback{fl: fl, seen: make([]int32, len(fl.nodes)), memo: map[place][]tableValue{}}
}

// addrForm is a memory operand: base + index*scale + disp.
type addrForm struct {
	base, index Reg
	hasBase     bool
	hasIndex    bool
	scale       uint64
	disp        uint64 // of a RIP-relative operand the address
	abs         bool   // disp is an address
}

// operand takes the memory operand of n apart. ok is false for what no jump table needs:
// segments, 32-bit addresses, the new registers.
func (fl *Flow) operand(n *flowNode) (a addrForm, ok bool) {
	in := &n.in
	if in.Prefix&(PrefixFS|PrefixGS|PrefixAddrSize) != 0 || in.Ext != 0 || !in.HasMem() {
		return a, false
	}
	if in.RIPMem {
		t, ok := in.Target(n.addr)
		return addrForm{disp: t, abs: true}, ok
	}
	a.disp = uint64(fl.displacement(n))
	a.scale = 1
	if !in.HasSIB {
		a.base, a.hasBase = Reg(in.RM()), true
		return a, true
	}
	if idx := in.SIB>>3&7 | in.Rex&2<<2; idx != byte(RSP) {
		a.index, a.hasIndex = Reg(idx), true
		a.scale = 1 << (in.SIB >> 6)
	}
	if rm := in.SIB & 7; rm != byte(RBP) || in.Mod() != 0 {
		a.base, a.hasBase = Reg(rm|in.Rex&1<<3), true
	}
	a.abs = !a.hasBase
	return a, true
}

func (fl *Flow) displacement(n *flowNode) int64 {
	b := fl.Bytes(n.addr+uint64(n.in.DispOff), int(n.in.DispLen))
	switch len(b) {
	case 1:
		return int64(int8(b[0]))
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	}
	return 0
}

// memOf gives the memory that a names, if a register is in it.
func memOf(a addrForm) (locus, bool) {
	l := locus{mem: true, reg: a.base, disp: int32(int64(a.disp))}
	if a.hasIndex {
		l.index, l.scale = a.index, uint8(a.scale)
	}
	return l, a.hasBase
}

// slotOf gives the stack slot that a names, if it names one.
func slotOf(a addrForm) (locus, bool) {
	l, ok := memOf(a)
	return l, ok && l.slot()
}

// slot says whether l is a place in the stack frame, which nothing but the function's
// own instructions changes.
func (l locus) slot() bool { return l.mem && l.scale == 0 && (l.reg == RSP || l.reg == RBP) }

// reg gives the values that register x may have before node at.
func (r *lookback) reg(x Reg, at int32, depth int) []tableValue {
	return r.value(locus{reg: x}, at, depth)
}

// value gives the values that l may have before node at: constants, table entries, and
// multiples of an index. Anything else is an index by itself, to be found at this place.
func (r *lookback) value(l locus, at int32, depth int) []tableValue {
	opaque := tableValue{kind: valIndex, mult: 1, idx: l, at: at}
	if depth > maxValueDepth || !l.mem && l.reg == RSP {
		return []tableValue{opaque}
	}
	if vs, ok := r.memo[place{l, at}]; ok {
		return slices.Clone(vs)
	}
	r.memo[place{l, at}] = []tableValue{opaque} // for what depends on itself
	out := r.collect(l, at, opaque, depth)
	r.memo[place{l, at}] = slices.Clone(out)
	return out
}

// collect joins what the definitions that reach node at set l to.
func (r *lookback) collect(l locus, at int32, opaque tableValue, depth int) []tableValue {
	defs, open := r.defs(l, at)
	var out []tableValue
	for _, d := range defs {
		for _, v := range r.define(l, d, depth+1) {
			if !v.telling() {
				open = true
				continue
			}
			out = addValue(out, v)
		}
		if len(out) > maxValues {
			return []tableValue{opaque}
		}
	}
	if open || len(out) == 0 {
		out = append(out, opaque)
	}
	return out
}

// telling says whether v says more than that it is some number.
func (v *tableValue) telling() bool {
	switch v.kind {
	case valConst:
		return v.ptr
	case valIndex:
		return v.ptr || v.mult != 1
	}
	return v.kind == valLoad
}

// minAddress is the least constant taken for an address (Linux maps nothing below
// vm.mmap_min_addr, 64 KiB by default).
const minAddress = 0x10000

func constant(c uint64) tableValue {
	return tableValue{kind: valConst, c: c, ptr: int64(c) >= minAddress}
}

func addValue(vs []tableValue, v tableValue) []tableValue {
	for _, o := range vs {
		if o == v {
			return vs
		}
	}
	return append(vs, v)
}

// defs looks back from node at for the instructions that set l last. open says that l
// may also be as it was at the function's entry, or a call's result.
func (r *lookback) defs(l locus, at int32) (defs []int32, open bool) {
	r.gen++
	work := []int32{at}
	for len(work) > 0 {
		id := work[len(work)-1]
		work = work[:len(work)-1]
		if r.fl.nodes[id].addr == r.fl.fn.Addr {
			open = true
		}
		for _, p := range r.fl.preds(id) {
			if r.seen[p] == r.gen {
				continue
			}
			r.seen[p] = r.gen
			if !r.fl.spend(1) {
				return nil, true
			}
			switch r.fl.passes(l, p) {
			case passDefines:
				defs = append(defs, p)
			case passUnknown:
				open = true
			case passThrough:
				work = append(work, p)
			}
		}
	}
	return defs, open
}

// passing is what an instruction does to a locus.
type passing uint8

const (
	passThrough passing = iota
	passDefines
	passUnknown // may change it, in a way that the bytes don't show
)

func (fl *Flow) passes(l locus, id int32) passing {
	n := &fl.nodes[id]
	switch n.in.Kind {
	case KindCall, KindCallInd, KindSyscall, KindFar, KindInt:
		return fl.passesCall(l)
	}
	eff := fl.effects(id)
	writes := eff.writes
	if !l.mem {
		if writes.Has(l.reg) {
			return passDefines
		}
		return passThrough
	}
	if writes.Has(l.reg) || l.scale != 0 && writes.Has(l.index) {
		return passUnknown
	}
	if a, ok := fl.operand(n); ok {
		if m, ok := memOf(a); ok && m == l && eff.memWrite {
			return passDefines
		}
	}
	return passThrough
}

// passesCall says what becomes of l in a call. A register other than the results that a
// compiled function reads after a call is one that the call left alone: it is callee-saved,
// or gcc knew that this callee doesn't write it, or the call never comes back.
func (fl *Flow) passesCall(l locus) passing {
	switch {
	case l.slot() || l.reg == RSP && !l.mem:
		return passThrough
	case l.mem || fl.fn.Go || l.reg == RAX || l.reg == RDX:
		return passUnknown
	}
	return passThrough
}

// opSize is the operand size in bytes of a legacy instruction that is not of the byte
// forms.
func opSize(in *Inst) uint8 {
	switch {
	case in.W():
		return 8
	case in.Prefix&PrefixOpSize != 0:
		return 2
	}
	return 4
}

package amd64

import "encoding/binary"

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

// Limits of one resolution.
const (
	maxValueDepth  = 12      // definitions behind each other
	maxValues      = 256     // alternatives of one value
	maxResolveStep = 400_000 // nodes looked at for one jump
)

// resolver finds the values of registers by looking back.
type resolver struct {
	fl    *Flow
	seen  []int32 // by node: the last search that passed it
	gen   int32
	steps int
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
	rm := in.ModRM & 7
	if !in.HasSIB {
		a.base, a.hasBase = Reg(in.RM()), true
		return a, true
	}
	if idx := in.SIB>>3&7 | in.Rex&2<<2; idx != byte(RSP) {
		a.index, a.hasIndex = Reg(idx), true
		a.scale = 1 << (in.SIB >> 6)
	}
	if rm = in.SIB & 7; rm != byte(RBP) || in.Mod() != 0 {
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
func (r *resolver) reg(x Reg, at int32, depth int) []tableValue {
	return r.value(locus{reg: x}, at, depth)
}

// value gives the values that l may have before node at: constants, table entries, and
// multiples of an index. Anything else is an index by itself, to be found at this place.
func (r *resolver) value(l locus, at int32, depth int) []tableValue {
	opaque := tableValue{kind: valIndex, mult: 1, idx: l, at: at}
	if depth > maxValueDepth || !l.mem && l.reg == RSP {
		return []tableValue{opaque}
	}
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
func (r *resolver) defs(l locus, at int32) (defs []int32, open bool) {
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
			if r.steps++; r.steps > maxResolveStep {
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
	passDead    // destroys it: compiled code doesn't read it afterwards
)

func (fl *Flow) passes(l locus, id int32) passing {
	n := &fl.nodes[id]
	switch n.in.Kind {
	case KindCall, KindCallInd, KindSyscall, KindFar, KindInt:
		return fl.passesCall(l)
	}
	writes := fl.effects(id).writes
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
		if m, ok := memOf(a); ok && m == l && writesMem(&n.in) {
			return passDefines
		}
	}
	return passThrough
}

// calleeSaved are the registers that survive a call (System V psABI 3.2.1).
var calleeSaved = Set(RBX, RSP, RBP, R12, R13, R14, R15)

// passesCall says what becomes of l in a call. A register that a C function reads after
// a call without setting it is a result, or the call did not come back: gcc reads
// others only where it knows that the callee leaves them alone, and then the value
// comes from other paths too.
func (fl *Flow) passesCall(l locus) passing {
	switch {
	case l.slot() || l.reg == RSP && !l.mem:
		return passThrough
	case l.mem:
		return passUnknown
	case fl.fn.Go || l.reg == RAX || l.reg == RDX:
		return passUnknown
	case calleeSaved.Has(l.reg):
		return passThrough
	}
	return passDead
}

// writesMem says whether an instruction with a memory operand may write it. Those that
// only read and are common beside stack slots are known.
func writesMem(in *Inst) bool {
	if in.Enc != EncLegacy {
		return true
	}
	switch in.Map {
	case MapOne:
		switch op := in.Opcode; {
		case op < 0x40: // arithmetic: 0-1 write memory, 2-3 read it; all of cmp reads
			return op&7 < 2 && op < 0x38
		case op == 0x80, op == 0x81, op == 0x83:
			return in.ModRM>>3&7 != 7
		case op == 0x8b, op == 0x8d, op == 0x63, op == 0x84, op == 0x85, op == 0x69, op == 0x6b, op == 0x8a:
			return false
		case op == 0xf6, op == 0xf7:
			return in.ModRM>>3&7 == 2 || in.ModRM>>3&7 == 3
		case op == 0xff:
			return in.ModRM>>3&7 < 2
		}
	case Map0F:
		switch op := in.Opcode; {
		case op == 0xb6, op == 0xb7, op == 0xbe, op == 0xbf, op == 0xaf, op>>4 == 4:
			return false
		case op == 0x10, op == 0x28, op == 0x6e, op == 0x6f, op == 0x2a, op == 0x2e, op == 0x2f, op == 0x54, op == 0x57, op == 0x58, op == 0x59, op == 0x5c, op == 0x5e:
			return false
		}
	}
	return true
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

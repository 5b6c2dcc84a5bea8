package amd64

import (
	"math"
	"slices"
)

// An indirect jump that is no table is a tail call where the stack is as it was at the
// function's entry, since a callee must find its return address there.

// Special stack depths.
const (
	depthNone     = math.MinInt32     // not reached
	depthUnknown  = math.MinInt32 + 1 // moved by an amount that the bytes don't show
	depthSwitched = math.MinInt32 + 2 // another stack
)

// depth is rsp, and rbp where it holds a copy of it, counted from rsp at the entry.
type depth struct{ sp, bp int32 }

// depths computes the stack depth before each node.
func (fl *Flow) depths() []depth {
	ds := slices.Grow(fl.depth[:0], len(fl.nodes))[:len(fl.nodes)]
	for i := range ds {
		ds[i] = depth{depthNone, depthNone}
	}
	var work []int32
	enter := func(id int32, d depth) {
		if id >= 0 && ds[id].meet(d) {
			work = append(work, id)
		}
	}
	for i := range fl.nodes {
		if a := fl.nodes[i].addr; a == fl.fn.Addr {
			enter(int32(i), depth{0, depthUnknown})
		} else if fl.marked(a, markEntry) {
			enter(int32(i), depth{depthUnknown, depthUnknown})
		}
	}
	for len(work) > 0 {
		id := work[len(work)-1]
		work = work[:len(work)-1]
		d := fl.moveStack(id, ds[id])
		for s := range fl.succs(id) {
			enter(s, d)
		}
	}
	return ds
}

// RetAt gives the distance from the stack pointer to the return address of the call in
// progress, in bytes, before the instruction at addr runs. ok is false where it is not
// proven: behind code that aligns or switches the stack, where the flow is not known, at
// landing pads. Calls count as leaving the stack pointer as it was.
func (fl *Flow) RetAt(addr uint64) (bytes int, ok bool) {
	id := fl.node(addr)
	if id < 0 {
		return 0, false
	}
	if addr == fl.fn.Addr {
		return 0, true
	}
	fl.depthOnce.Do(func() {
		fl.linkOnce.Do(fl.linkLate)
		fl.depth = fl.depths()
	})
	n := &fl.nodes[id]
	known := !n.swept && len(fl.unresolved) == 0 && !fl.unsafeHere(n)
	switch sp := fl.depth[id].sp; {
	case known && sp <= 0 && sp > depthSwitched:
		return int(-sp), true
	case n.in.Kind == KindRet && (!known || sp <= depthSwitched):
		return 0, true
	}
	return 0, false
}

// meet merges what comes along another path and says whether that changed d.
func (d *depth) meet(o depth) bool {
	old := *d
	d.sp, d.bp = meetDepth(d.sp, o.sp), meetDepth(d.bp, o.bp)
	return *d != old
}

func meetDepth(a, b int32) int32 {
	switch {
	case a == depthNone || a == b:
		return b
	case b == depthNone:
		return a
	}
	return depthUnknown
}

func addDepth(d, n int32) int32 {
	if d <= depthSwitched || d+n < -maxFuncBytes || d+n > maxFuncBytes {
		return min(d, depthSwitched)
	}
	return d + n
}

// moveStack gives the depth behind node id.
func (fl *Flow) moveStack(id int32, d depth) depth {
	n := &fl.nodes[id]
	in := &n.in
	writes := fl.effects(id).writes
	if in.Kind == KindCall || in.Kind == KindCallInd || in.Kind == KindSyscall || in.Enc != EncLegacy {
		return d
	}
	if n, ok := pushed(in); ok {
		if writes.Has(RBP) {
			d.bp = depthUnknown
		}
		if d.sp = addDepth(d.sp, n); n > 0 && writes.Has(RSP) && popsRSP(in) {
			d.sp = depthSwitched
		}
		return d
	}
	switch {
	case writes.Has(RSP):
		d.sp = fl.newSP(n, d)
		if in.Map == MapOne && in.Opcode == 0xc9 { // leave
			d.bp = depthUnknown
		}
	case writes.Has(RBP):
		d.bp = depthUnknown
		if in.Map == MapOne && (in.Opcode == 0x89 && in.Reg() == byte(RSP) || in.Opcode == 0x8b && in.Mod() == 3 && in.RM() == byte(RSP)) && in.W() {
			d.bp = d.sp
		} else if a, ok := fl.operand(n); ok && in.Map == MapOne && in.Opcode == 0x8d && a.hasBase && !a.hasIndex && a.base == RSP {
			d.bp = addDepth(d.sp, int32(int64(a.disp)))
		}
	}
	return d
}

// newSP is rsp behind an instruction, other than push and pop, that sets it.
func (fl *Flow) newSP(n *flowNode, d depth) int32 {
	in := &n.in
	if in.Map != MapOne || !in.W() && in.Opcode != 0xc9 {
		return depthUnknown
	}
	switch op, ext := in.Opcode, in.ModRM>>3&7; {
	case (op == 0x81 || op == 0x83) && ext == 0:
		return addDepth(d.sp, int32(in.Imm))
	case (op == 0x81 || op == 0x83) && ext == 5:
		return addDepth(d.sp, -int32(in.Imm))
	case op == 0xc9:
		return addDepth(d.bp, 8)
	case op == 0x8d:
		return fl.leaSP(n, d)
	case op == 0x89 && in.Reg() == byte(RBP) || op == 0x8b && in.Mod() == 3 && in.RM() == byte(RBP):
		return d.bp
	case op == 0x89, op == 0x8b:
		return depthSwitched
	}
	return depthUnknown
}

func (fl *Flow) leaSP(n *flowNode, d depth) int32 {
	a, ok := fl.operand(n)
	switch {
	case !ok || !a.hasBase || a.hasIndex:
		return depthUnknown
	case a.base == RSP:
		return addDepth(d.sp, int32(int64(a.disp)))
	case a.base == RBP:
		return addDepth(d.bp, int32(int64(a.disp)))
	}
	return depthUnknown
}

// pushed says by how much a push or pop moves rsp.
func pushed(in *Inst) (int32, bool) {
	n := int32(8)
	if in.Prefix&PrefixOpSize != 0 {
		n = 2
	}
	op, ext := in.Opcode, in.ModRM>>3&7
	switch in.Map {
	case MapOne:
		switch {
		case op>>3 == 0x50>>3, op == 0x68, op == 0x6a, op == 0x9c, op == 0xff && ext == 6:
			return -n, true
		case op>>3 == 0x58>>3, op == 0x9d, op == 0x8f && ext == 0:
			return n, true
		}
	case Map0F:
		switch op {
		case 0xa0, 0xa8:
			return -n, true
		case 0xa1, 0xa9:
			return n, true
		}
	}
	return 0, false
}

func popsRSP(in *Inst) bool { return in.Map == MapOne && in.Opcode == 0x5c && in.Rex&1 == 0 }

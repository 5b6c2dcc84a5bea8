package amd64

import "encoding/binary"

// settleJumps decides what the jumps that are no tables are.
func (fl *Flow) settleJumps() {
	var ds []depth
	for _, j := range fl.jumps {
		if j.state != jumpUnknown {
			continue
		}
		if ds == nil {
			ds = fl.depths()
		}
		switch {
		case fl.isTail(j, ds):
			j.state = jumpTail
		case len(j.targets) > 0 && j.labels && fl.effort <= maxEffort:
			j.state = jumpTable
		default:
			fl.unresolved = append(fl.unresolved, fl.nodes[j.node].addr)
		}
	}
}

// isTail says whether an indirect jump without a known table leaves the function. A
// notrack prefix marks a switch (SDM vol. 1 section 17.3.3: compilers put it on jumps
// whose targets have no endbr64).
func (fl *Flow) isTail(j *indirect, ds []depth) bool {
	n := &fl.nodes[j.node]
	if n.in.Prefix&PrefixDS != 0 || fl.effort > maxEffort {
		return false
	}
	if j.shape == shapeGlobal {
		return true
	}
	switch sp := ds[j.node].sp; {
	case sp == depthSwitched:
		return true
	case j.shape == shapePointers:
		return sp == 0 || fl.leavesFrame(j.node)
	case j.shape == shapeOffsets || fl.computed(j):
		return false
	case sp == 0:
		return j.shape == shapeOther || fl.leavesFrame(j.node)
	case sp == depthUnknown || sp == depthNone:
		return fl.leavesFrame(j.node)
	}
	return false
}

// computed says whether the jump's target was made by arithmetic, as for a table of
// offsets whose base was not found, or in Go, which calls no functions out of tables,
// taken out of a table.
func (fl *Flow) computed(j *indirect) bool {
	n := &fl.nodes[j.node]
	if n.in.HasMem() {
		return fl.fn.Go && indexed(&n.in)
	}
	r := fl.lookback()
	return r.computed(Reg(n.in.RM()), j.node, 0)
}

func (r *lookback) computed(x Reg, at int32, depth int) bool {
	if depth > maxValueDepth {
		return true
	}
	defs, _ := r.defs(locus{reg: x}, at)
	for _, d := range defs {
		src, moves := pointerSource(&r.fl.nodes[d].in)
		if !moves || r.fl.fn.Go && indexed(&r.fl.nodes[d].in) || src != noReg && r.computed(src, d, depth+1) {
			return true
		}
	}
	return false
}

// noReg is no register.
const noReg Reg = 0xff

// pointerSource says whether in is one of the instructions that a pointer to a function is
// got by without adding: loads, moves, and the xor
// by which glibc hides pointers. For a move between registers src is where from.
func pointerSource(in *Inst) (src Reg, ok bool) {
	op := in.Opcode
	switch {
	case in.Enc != EncLegacy:
		return noReg, true
	case in.Map == Map0F:
		// cmov, movq from xmm, cmpxchg, xadd
		return noReg, op>>4 == 4 || op == 0x7e || op == 0xb1 || op == 0xc1
	case in.Map != MapOne:
		return noReg, false
	}
	switch {
	case op == 0x89:
		return Reg(in.Reg()), true
	case op == 0x8b && in.Mod() == 3:
		return Reg(in.RM()), true
	case op == 0x8b:
		return noReg, true
	case op == 0x8d:
		return noReg, in.RIPMem
	case op == 0x33:
		return noReg, in.Prefix&PrefixFS != 0
	}
	return noReg, op>>3 == 0x58>>3 || op>>3 == 0xb8>>3 || op>>3 == 0x90>>3 || op == 0xc7 || op == 0x87 || op == 0x8f
}

// indexed says whether a memory operand has an index that is scaled.
func indexed(in *Inst) bool {
	return in.HasSIB && in.SIB>>6 != 0 && in.SIB>>3&7|in.Rex&2<<2 != byte(RSP)
}

// maxEpilogue is how many instructions before a tail call are looked at for the end of
// the frame.
const maxEpilogue = 12

// leavesFrame says whether the code before node id, in a straight line, gives up a
// stack frame: pop, leave, or rsp raised.
func (fl *Flow) leavesFrame(id int32) bool {
	a := fl.nodes[id].addr
	for range maxEpilogue {
		prev, ok := fl.Prev(a)
		if !ok || fl.marked(a, markTarget) {
			return false
		}
		n := &fl.nodes[fl.node(prev)]
		if !n.falls || n.in.Kind != KindPlain {
			return false
		}
		if d, ok := pushed(&n.in); ok {
			return d > 0
		}
		if fl.effects(fl.node(prev)).writes.Has(RSP) {
			before := depth{-maxFuncBytes / 2, -maxFuncBytes / 2}
			return fl.newSP(n, before) > before.sp || n.in.Opcode == 0x8d
		}
		a = prev
	}
	return false
}

// followLabels gives the unresolved jumps the labels whose addresses the function takes,
// for computed gotos through pointers. It says whether that brought new targets.
func (fl *Flow) followLabels() bool {
	var labels []uint64
	looked, changed := false, false
	for _, j := range fl.jumps {
		if j.state != jumpUnknown || j.shape != shapeOther {
			continue
		}
		if !looked {
			labels, looked = fl.labels(), true
		}
		if len(labels) > 0 && fl.spend(len(labels)) {
			j.labels = true
			changed = j.merge(&tableReader{in: labels}) || changed
		}
	}
	return changed
}

// labels collects the addresses inside the function that its code, or data that it
// names, holds.
func (fl *Flow) labels() []uint64 {
	var out []uint64
	seen := map[uint64]bool{}
	for i := range fl.nodes {
		t, ok := fl.names(&fl.nodes[i])
		if !ok || t == fl.fn.Addr || seen[t] {
			continue
		}
		seen[t] = true
		if fl.inside(t) {
			out = append(out, t)
			continue
		}
		out = fl.labelTable(out, t)
		if len(out) > maxTableEntries {
			break
		}
	}
	return sortedSet(out)
}

// names gives the address that an instruction takes, or whose data it reads.
func (fl *Flow) names(n *flowNode) (uint64, bool) {
	in := &n.in
	if in.RIPMem {
		t, _ := in.Target(n.addr)
		return t, in.Opcode == 0x8d && in.Map == MapOne || !fl.inside(t)
	}
	if a, ok := fl.operand(n); ok && a.abs {
		return a.disp, true
	}
	isMov := in.Enc == EncLegacy && in.Map == MapOne && (in.Opcode>>3 == 0xb8>>3 || in.Opcode == 0xc7)
	return uint64(in.Imm), isMov && in.ImmLen >= 4 && in.Imm > 0
}

// labelTable appends the pointers into the function that stand at t.
func (fl *Flow) labelTable(out []uint64, t uint64) []uint64 {
	if fl.fn.Mem == nil {
		return out
	}
	var b [8]byte
	for range maxTableEntries {
		if fl.fn.Mem(t, b[:]) != nil {
			break
		}
		l := binary.LittleEndian.Uint64(b[:])
		if l == fl.fn.Addr || !fl.spend(entryEffort) || !fl.plausible(l) {
			break
		}
		out = append(out, l)
		t += 8
	}
	return out
}

package amd64

// bound is what is known of an index's size.
type bound struct {
	known  bool
	strict bool   // from a comparison, not from the width of a type or a mask
	max    uint64 // the greatest value, inclusive
}

// limit says that what locus holds, in its low bits, is at most max.
type limit struct {
	l    locus
	bits uint8 // 0: no limit
	max  uint64
}

// noCond stands for no condition.
const noCond = 0xff

// boundState is a place of the search: what is looked for before node, and what the path
// from there to the jump has shown.
type boundState struct {
	node int32
	l    locus
	bits uint8    // the low bits of l that matter
	cap  uint64   // bound by width or mask, if not 0
	cc   uint8    // condition that holds of the flags set last, or noCond
	lims [2]limit // of other places
}

// maxBoundStates bounds the search for one bounds check, stateEffort is what one state
// costs.
const (
	maxBoundStates = 4096
	stateEffort    = 32
)

// bound looks back along all paths from node at for what limits the value of l there:
// the comparison and branch of a bounds check, a mask, or a load of a byte. One path
// without a limit makes the bound unknown.
func (r *lookback) bound(l locus, at int32) bound {
	b := boundSearch{fl: r.fl, res: r, seen: map[boundState]bool{}, found: bound{known: true, strict: true}}
	b.push(boundState{node: at, l: l, bits: 64, cc: noCond})
	for len(b.work) > 0 && b.found.known {
		st := b.work[len(b.work)-1]
		b.work = b.work[:len(b.work)-1]
		b.back(st)
	}
	if b.ends == 0 || b.found.max >= maxTableEntries {
		return bound{}
	}
	return b.found
}

type boundSearch struct {
	fl    *Flow
	res   *lookback
	seen  map[boundState]bool
	work  []boundState
	found bound
	ends  int
}

func (b *boundSearch) push(st boundState) {
	if b.seen[st] {
		return
	}
	if len(b.seen) >= maxBoundStates || !b.fl.spend(stateEffort) {
		b.found = bound{}
		return
	}
	b.seen[st] = true
	b.work = append(b.work, st)
}

// end closes a path with a limit.
func (b *boundSearch) end(limit uint64, strict bool) {
	b.ends++
	b.found.max = max(b.found.max, limit)
	b.found.strict = b.found.strict && strict
}

// fail closes a path on which no comparison was found.
func (b *boundSearch) fail(st boundState) {
	if st.cap == 0 {
		b.found = bound{}
		return
	}
	b.end(st.cap, false)
}

// back goes on to the predecessors of st.
func (b *boundSearch) back(st boundState) {
	if b.fl.marked(b.fl.nodes[st.node].addr, markEntry) {
		b.fail(st)
	}
	for _, p := range b.fl.preds(st.node) {
		s := st
		s.node = p
		b.pass(st.node, s)
	}
}

// pass carries st, which holds behind its node on the way to succ, to before the node.
func (b *boundSearch) pass(succ int32, st boundState) {
	n := &b.fl.nodes[st.node]
	if n.in.Kind == KindJcc {
		if cc := edgeCond(n, succ); cc != noCond && (st.cc == noCond || !upper(st.cc)) {
			st.cc = cc
		}
		b.push(st)
		return
	}
	if n.in.Kind != KindPlain && n.in.Kind != KindJmp {
		st.cc = noCond
	}
	if st.cc != noCond && b.fl.effects(st.node).writes&Flags != 0 {
		if lim := b.compared(st.node, st.cc); lim.bits != 0 && b.learn(&st, lim) {
			return
		}
		st.cc = noCond
	}
	switch b.fl.passes(st.l, st.node) {
	case passUnknown:
		b.fail(st)
		return
	case passDefines:
		b.define(n, st)
		return
	}
	b.push(b.forget(st))
}

// edgeCond gives the condition that holds on the way from the branch n to succ.
func edgeCond(n *flowNode, succ int32) uint8 {
	switch {
	case n.jump == n.next:
		return noCond
	case n.jump == succ:
		return n.in.Opcode & 0xf
	}
	return n.in.Opcode&0xf ^ 1
}

// Conditions that limit the left side of a comparison from above (SDM vol. 1
// appendix B).
const (
	condB  = 0x2
	condE  = 0x4
	condBE = 0x6
	condL  = 0xc
	condLE = 0xe
)

func upper(cc uint8) bool {
	switch cc {
	case condB, condE, condBE, condL, condLE:
		return true
	}
	return false
}

// compared gives what a comparison at node id limits if cc holds behind it.
func (b *boundSearch) compared(id int32, cc uint8) limit {
	n := &b.fl.nodes[id]
	in := &n.in
	if !upper(cc) || in.Enc != EncLegacy || in.Map != MapOne || in.Ext != 0 {
		return limit{}
	}
	lim := limit{bits: opSize(in) * 8}
	val := uint64(in.Imm)
	switch op := in.Opcode; {
	case op == 0x80 && in.ModRM>>3&7 == 7, op == 0x3c:
		lim.bits = 8
		if op == 0x80 && in.Mod() == 3 && highByte(in, in.RM()) {
			return limit{}
		}
	case (op == 0x81 || op == 0x83) && in.ModRM>>3&7 == 7, op == 0x3d:
	case op == 0x39: // cmp r, rm
		vs := b.res.reg(Reg(in.Reg()), id, maxValueDepth-2)
		if len(vs) != 1 || vs[0].kind != valConst {
			return limit{}
		}
		val = vs[0].c
	default:
		return limit{}
	}
	var ok bool
	if lim.l, ok = b.left(n); !ok {
		return limit{}
	}
	lim.max = val & (1<<lim.bits - 1)
	if cc == condB || cc == condL {
		if lim.max == 0 {
			return limit{}
		}
		lim.max--
	}
	if lim.max >= maxTableEntries {
		return limit{}
	}
	return lim
}

// left is the left operand of a comparison: the accumulator, a register, a stack slot.
func (b *boundSearch) left(n *flowNode) (locus, bool) {
	switch {
	case !n.in.HasModRM:
		return locus{reg: RAX}, true
	case n.in.Mod() == 3:
		return locus{reg: Reg(n.in.RM())}, true
	}
	a, ok := b.fl.operand(n)
	if !ok {
		return locus{}, false
	}
	return memOf(a)
}

// learn uses a limit. It says whether that closes the path.
func (b *boundSearch) learn(st *boundState, lim limit) bool {
	if lim.l == st.l && (lim.bits >= st.bits || lim.bits >= 32) {
		b.end(lim.max, true)
		return true
	}
	st.lims[1] = st.lims[0]
	st.lims[0] = lim
	return false
}

// forget drops what st's node makes untrue of the values before it.
func (b *boundSearch) forget(st boundState) boundState {
	for i := range st.lims {
		if st.lims[i].bits != 0 && b.fl.passes(st.lims[i].l, st.node) != passThrough {
			st.lims[i] = limit{}
		}
	}
	return st
}

// narrow sets how many bits matter, and says whether a limit found on the way closes
// the path.
func (b *boundSearch) narrow(st *boundState, bits uint8) bool {
	st.bits = min(st.bits, bits)
	for _, lim := range st.lims {
		if lim.bits != 0 && lim.l == st.l && (lim.bits >= st.bits || lim.bits >= 32) {
			b.end(lim.max, true)
			return true
		}
	}
	return false
}

// origin is where a node takes a value from.
type origin struct {
	kind originKind
	l    locus // fromLocus: what it copies
	from uint8 // fromLocus: how many bits of it
	bits uint8 // how many bits it sets; those above are 0 or the sign
}

type originKind uint8

const (
	fromNowhere originKind = iota // nothing that helps
	fromLocus
	fromConst
	fromZero
)

// define goes on at node n, which sets what is looked for.
func (b *boundSearch) define(n *flowNode, st boundState) {
	o := b.origin(n, &st)
	if b.narrow(&st, o.bits) {
		return
	}
	switch o.kind {
	case fromNowhere:
		b.fail(st)
	case fromConst:
		b.end(uint64(uint32(n.in.Imm)), true)
	case fromZero:
		b.end(0, true)
	case fromLocus:
		st.l = o.l
		if st = b.forget(st); !b.narrow(&st, o.from) {
			b.push(st)
		}
	}
}

// origin says what n sets the locus of st to. A mask or a shift by a constant is noted
// in st.
func (b *boundSearch) origin(n *flowNode, st *boundState) origin {
	in := &n.in
	bits := opSize(in) * 8
	switch {
	case in.Enc != EncLegacy || in.Ext != 0:
		return origin{bits: 64}
	case in.Map == Map0F:
		return b.originTwo(n, st, bits)
	case in.Map != MapOne:
		return origin{bits: 64}
	}
	isDst := in.HasModRM && in.Mod() == 3 && !st.l.mem && Reg(in.RM()) == st.l.reg
	switch op := in.Opcode; {
	case op == 0x8b:
		return b.operandOrigin(n, bits, bits)
	case op == 0x63:
		return b.operandOrigin(n, 32, 32)
	case op == 0x89:
		return origin{fromLocus, locus{reg: Reg(in.Reg())}, bits, bits}
	case op == 0x88 && st.l.mem && !highByte(in, in.Reg()):
		return origin{fromLocus, locus{reg: Reg(in.Reg())}, 8, 8}
	case op == 0x98:
		return origin{fromLocus, locus{reg: RAX}, bits / 2, bits / 2}
	case op>>3 == 0xb8>>3, op == 0xc7:
		return origin{kind: fromConst, bits: bits}
	case (op == 0x31 || op == 0x33) && isDst && in.Reg() == in.RM():
		return origin{kind: fromZero, bits: bits}
	case (op == 0x81 || op == 0x83) && isDst && in.ModRM>>3&7 == 4, op == 0x25: // and
		st.cap = capped(st.cap, uint64(in.Imm))
	case op == 0xc1 && isDst && in.ModRM>>3&7 == 5 && bits >= 32: // shr
		st.cap = capped(st.cap, (1<<bits-1)>>(uint64(in.Imm)&uint64(bits-1)))
	}
	return origin{bits: bits}
}

// originTwo is origin for the opcodes behind 0F: movzx and movsx.
func (b *boundSearch) originTwo(n *flowNode, st *boundState, bits uint8) origin {
	from := uint8(8)
	switch n.in.Opcode {
	case 0xb7, 0xbf:
		from = 16
	case 0xb6, 0xbe:
		if n.in.Mod() == 3 && highByte(&n.in, n.in.RM()) {
			return origin{bits: bits}
		}
	default:
		return origin{bits: bits}
	}
	if n.in.Opcode < 0xb8 { // zero-extended
		st.cap = capped(st.cap, 1<<from-1)
	}
	return b.operandOrigin(n, from, from)
}

// operandOrigin is a copy of the r/m operand.
func (b *boundSearch) operandOrigin(n *flowNode, from, bits uint8) origin {
	o := origin{fromLocus, locus{reg: Reg(n.in.RM())}, from, bits}
	if n.in.Mod() == 3 {
		return o
	}
	o.kind = fromNowhere
	if a, ok := b.fl.operand(n); ok {
		if m, ok := memOf(a); ok {
			o.kind, o.l = fromLocus, m
		}
	}
	return o
}

// highByte says whether r, a byte operand, is ah, ch, dh or bh (SDM vol. 2A section
// 3.1.1.1: without REX).
func highByte(in *Inst, r byte) bool { return in.Rex == 0 && r >= 4 }

// capped is the smaller of two bounds, of which 0 is none.
func capped(a, b uint64) uint64 {
	if a == 0 || b < a {
		return b
	}
	return a
}

package amd64

// define gives what node d sets l to.
func (r *lookback) define(l locus, d int32, depth int) []tableValue {
	n := &r.fl.nodes[d]
	in := &n.in
	if in.Enc != EncLegacy || in.Ext != 0 || in.Prefix&PrefixLock != 0 {
		return unknownValue()
	}
	if l.mem {
		return r.defineSlot(n, d, depth)
	}
	size := opSize(in)
	if size < 4 {
		return unknownValue()
	}
	var vs []tableValue
	switch in.Map {
	case MapOne:
		vs = r.defineOne(l.reg, n, d, depth)
	case Map0F:
		vs = r.defineTwo(l.reg, n, d, depth)
	}
	return cut(vs, size)
}

// cut keeps of vs what an operation of size bytes leaves.
func cut(vs []tableValue, size uint8) []tableValue {
	if size == 8 {
		return vs
	}
	for i := range vs {
		switch v := &vs[i]; {
		case v.kind == valConst:
			v.c = uint64(uint32(v.c))
		case v.kind == valLoad && v.c == 0 && v.width <= size && !v.signed, v.kind == valIndex:
		default:
			*v = tableValue{}
		}
	}
	return vs
}

// defineSlot understands mov of a register or constant to a stack slot of 8 bytes.
func (r *lookback) defineSlot(n *flowNode, d int32, depth int) []tableValue {
	switch in := &n.in; {
	case in.Map != MapOne || !in.W():
		return unknownValue()
	case in.Opcode == 0x89:
		return r.reg(Reg(in.Reg()), d, depth)
	case in.Opcode == 0xc7:
		return []tableValue{constant(uint64(in.Imm))}
	}
	return unknownValue()
}

// defineOne understands the one-byte opcodes.
func (r *lookback) defineOne(x Reg, n *flowNode, d int32, depth int) []tableValue {
	in := &n.in
	op, ext := in.Opcode, in.ModRM>>3&7
	isReg, isRM := in.HasModRM && Reg(in.Reg()) == x, in.Mod() == 3 && Reg(in.RM()) == x
	switch {
	case op>>3 == 0xb8>>3: // mov $imm, r
		return []tableValue{constant(uint64(in.Imm))}
	case op == 0xc7 && isRM:
		return []tableValue{constant(uint64(in.Imm))}
	case op == 0x89 && isRM: // mov r, rm
		return r.reg(Reg(in.Reg()), d, depth)
	case op == 0x8b && isReg: // mov rm, r
		return r.rm(n, d, opSize(in), false, depth)
	case op == 0x63 && isReg && in.W(): // movslq
		return extend(r.rm(n, d, 4, true, depth))
	case op == 0x98 && in.W(): // cltq
		return extend(r.reg(RAX, d, depth))
	case op == 0x8d && isReg: // lea
		return r.lea(n, d, depth)
	case (op == 0x31 || op == 0x33) && in.Mod() == 3 && in.Reg() == in.RM():
		return []tableValue{constant(0)}
	case op == 0x01 && isRM: // add r, rm
		return sums(r.reg(x, d, depth), r.reg(Reg(in.Reg()), d, depth))
	case op == 0x03 && isReg: // add rm, r
		return sums(r.reg(x, d, depth), r.rm(n, d, opSize(in), false, depth))
	case (op == 0x81 || op == 0x83) && isRM && (ext == 0 || ext == 5), op == 0x05, op == 0x2d:
		return sums(r.reg(x, d, depth), immediate(in))
	case op == 0xc1 && isRM && ext == 4 && uint64(in.Imm) < 8: // shl
		return times(r.reg(x, d, depth), 1<<uint64(in.Imm))
	case op == 0xd1 && isRM && ext == 4:
		return times(r.reg(x, d, depth), 2)
	case (op == 0x69 || op == 0x6b) && isReg && in.Imm > 0: // imul
		return times(r.rm(n, d, opSize(in), false, depth), uint64(in.Imm))
	}
	return unknownValue()
}

// immediate is the constant that add or sub adds.
func immediate(in *Inst) []tableValue {
	c := uint64(in.Imm)
	if in.Opcode == 0x2d || in.Opcode != 0x05 && in.ModRM>>3&7 == 5 {
		c = -c
	}
	return []tableValue{constant(c)}
}

// defineTwo understands the opcodes behind 0F.
func (r *lookback) defineTwo(x Reg, n *flowNode, d int32, depth int) []tableValue {
	in := &n.in
	if Reg(in.Reg()) != x {
		return unknownValue()
	}
	if in.Opcode>>4 == 4 { // cmov
		return append(r.reg(x, d, depth), r.rm(n, d, opSize(in), false, depth)...)
	}
	return unknownValue()
}

// rm gives the values of the r/m operand of n, read with width bytes.
func (r *lookback) rm(n *flowNode, d int32, width uint8, signed bool, depth int) []tableValue {
	if n.in.Mod() == 3 {
		return r.reg(Reg(n.in.RM()), d, depth)
	}
	a, ok := r.fl.operand(n)
	if !ok {
		return unknownValue()
	}
	if s, ok := slotOf(a); ok {
		if width != 8 {
			return unknownValue()
		}
		return r.value(s, d, depth)
	}
	return r.loadAt(a, d, width, signed, depth)
}

// load gives the values at a memory operand of node d.
func (r *lookback) load(a addrForm, d int32, width uint8, signed bool) []tableValue {
	if s, ok := slotOf(a); ok {
		return r.value(s, d, 0)
	}
	return r.loadAt(a, d, width, signed, 0)
}

func (r *lookback) loadAt(a addrForm, d int32, width uint8, signed bool, depth int) []tableValue {
	vs := r.address(a, d, true, depth)
	for i := range vs {
		v := &vs[i]
		if v.kind != valConst && (v.kind != valIndex || !v.ptr) {
			*v = tableValue{}
			continue
		}
		v.kind, v.table, v.c = valLoad, v.c, 0
		v.width, v.signed, v.ptr = width, signed, false
	}
	return vs
}

// address computes the address of a memory operand. Of base and index one may be the
// address of a table; if it is loaded from, the other counts as an index, whatever else
// is known of it.
func (r *lookback) address(a addrForm, d int32, loads bool, depth int) []tableValue {
	vs := []tableValue{constant(a.disp)}
	vs[0].ptr = vs[0].ptr || a.abs
	var base, index []tableValue
	if a.hasBase {
		base = r.reg(a.base, d, depth+1)
	}
	switch {
	case !a.hasIndex:
	case a.scale != 1:
		index = asIndex(nil, a.index, d)
	default:
		index = r.reg(a.index, d, depth+1)
		if loads && (a.abs || allAddresses(base)) {
			index = asIndex(index, a.index, d)
		} else if loads && allAddresses(index) {
			base = asIndex(base, a.base, d)
		}
	}
	if a.hasIndex {
		vs = sums(vs, times(index, a.scale))
	}
	if a.hasBase {
		vs = sums(base, vs)
	}
	return vs
}

func allAddresses(vs []tableValue) bool {
	for i := range vs {
		if vs[i].kind != valConst {
			return false
		}
	}
	return len(vs) > 0
}

// asIndex keeps what vs, the values of x before node d, says of an index.
func asIndex(vs []tableValue, x Reg, d int32) []tableValue {
	opaque := tableValue{kind: valIndex, mult: 1, idx: locus{reg: x}, at: d}
	if len(vs) == 0 {
		return []tableValue{opaque}
	}
	out := vs[:0]
	for _, v := range vs {
		if v.kind != valIndex || v.c != 0 {
			v = opaque
		}
		out = addValue(out, v)
	}
	return out
}

// lea is the address itself.
func (r *lookback) lea(n *flowNode, d int32, depth int) []tableValue {
	a, ok := r.fl.operand(n)
	if !ok {
		return unknownValue()
	}
	return r.address(a, d, false, depth)
}

// sums adds each of a to each of b.
func sums(a, b []tableValue) []tableValue {
	if len(a)*len(b) > maxValues {
		return unknownValue()
	}
	var out []tableValue
	for _, x := range a {
		for _, y := range b {
			out = append(out, x.plus(y))
		}
	}
	return out
}

func (x tableValue) plus(y tableValue) tableValue {
	if x.kind == valConst {
		x, y = y, x
	}
	if y.kind != valConst || x.kind == valUnknown {
		return tableValue{}
	}
	x.c += y.c
	x.ptr = x.ptr || y.ptr
	return x
}

// times multiplies by k.
func times(vs []tableValue, k uint64) []tableValue {
	if k == 1 {
		return vs
	}
	for i := range vs {
		switch v := &vs[i]; v.kind {
		case valConst, valIndex:
			v.c *= k
			v.mult *= k
			v.ptr = false
		default:
			*v = tableValue{}
		}
	}
	return vs
}

// extend sign-extends from 4 bytes to 8.
func extend(vs []tableValue) []tableValue {
	for i := range vs {
		switch v := &vs[i]; {
		case v.kind == valConst:
			v.c = uint64(int64(int32(v.c)))
		case v.kind == valLoad && v.width == 4 && v.c == 0:
			v.signed = true
		case v.kind == valIndex:
		default:
			*v = tableValue{}
		}
	}
	return vs
}

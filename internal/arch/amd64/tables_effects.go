package amd64

// Single registers, as constants.
const (
	setAX RegSet = 1 << RAX
	setCX RegSet = 1 << RCX
	setDX RegSet = 1 << RDX
	setBX RegSet = 1 << RBX
	setSP RegSet = 1 << RSP
	setBP RegSet = 1 << RBP
	setSI RegSet = 1 << RSI
	setDI RegSet = 1 << RDI
)

// roleTable has the roles of the opcodes of a map.
type roleTable [256]roles

// put gives opcodes their roles.
func (t *roleTable) put(do roles, opcodes ...byte) *roleTable {
	for _, op := range opcodes {
		t[op] = known | do
	}
	return t
}

// ops joins spans of opcodes, given as pairs of first and last.
func ops(pairs ...byte) []byte {
	var s []byte
	for i := 0; i+1 < len(pairs); i += 2 {
		s = append(s, span(pairs[i], pairs[i+1])...)
	}
	return s
}

// makeOneByteRoles makes the roles of the one-byte map. What is missing is unknown: software
// interrupts, far transfers.
func makeOneByteRoles() *roleTable {
	return new(roleTable).
		arithmetic().
		transfers().
		accumulator().
		stackAndFlow().
		put(extra|aR|narrow|mW, 0xaa). // stos
		put(extra|aR|mW, 0xab).
		put(extra|aW|narrow|mR, 0xac). // lods; rep lods may run zero times
		put(extra|grouped|aW|mR, 0xad).
		put(extra|grouped|fK|mR, 0xa6, 0xa7).           // cmps
		put(extra|grouped|aR|narrow|fK|mR, 0xae, 0xaf). // scas
		put(extra|mR|mW, 0xa4, 0xa5).                   // movs
		put(extra|mW|faults, 0x6c, 0x6d).               // ins
		put(extra|mR|faults, 0x6e, 0x6f).               // outs
		put(xR|xW|faults|grouped, span(0xd8, 0xdf)...)  // x87
}

// arithmetic adds what computes on general registers.
func (t *roleTable) arithmetic() *roleTable {
	for op := range byte(8) {
		do := fK | grouped
		if op == 2 || op == 3 { // adc, sbb
			do |= fR
		}
		dst := roles(0)
		if op != 7 { // cmp
			dst = ^dst
		}
		base := op << 3
		t.put(do|eR|gR|narrow|dst&eW, base)
		t.put(do|eR|gR|dst&eW, base+1)
		t.put(do|eR|gR|narrow|dst&gW, base+2)
		t.put(do|eR|gR|dst&gW, base+3)
		t.put(do&^grouped|aR|narrow|dst&aW, base+4)
		t.put(do&^grouped|aR|dst&aW, base+5)
	}
	return t.
		put(eR|narrow|grouped, 0x80, 0xc0, 0xd0, 0xd2, 0xf6, 0xfe).
		put(eR|grouped, 0x81, 0x83, 0xc1, 0xd1, 0xd3, 0xf7, 0xff).
		put(eR|gR|fK|narrow, 0x84). // test
		put(eR|gR|fK, 0x85).
		put(aR|fK|narrow, 0xa8).
		put(aR|fK, 0xa9).
		put(eR|gW|fW, 0x69, 0x6b) // imul
}

// transfers adds moves and exchanges.
func (t *roleTable) transfers() *roleTable {
	return t.
		put(eR|gW, 0x63, 0x8b). // movsxd, mov
		put(eR|gW|narrow, 0x8a).
		put(gR|eW|narrow, 0x88).
		put(gR|eW, 0x89).
		put(eR|eW|gR|gW|narrow, 0x86). // xchg
		put(eR|eW|gR|gW, 0x87).
		put(eW|keeps, 0x8c).          // mov from a segment register
		put(eR|faults, 0x8e).         // mov to a segment register
		put(gW|onlyAddr, 0x8d).       // lea
		put(eW|narrow|grouped, 0xc6). // mov, xabort
		put(eW|grouped, 0xc7).        // mov, xbegin
		put(zW|narrow, span(0xb0, 0xb7)...).
		put(zW, span(0xb8, 0xbf)...).
		put(grouped, 0x90). // nop, xchg with r8
		put(zR|zW|aR|aW, span(0x91, 0x97)...)
}

// accumulator adds what works on rax, and on flags alone.
func (t *roleTable) accumulator() *roleTable {
	return t.
		put(aR|aW, 0x98).                    // cbw, cwde, cdqe
		put(aR|extra, 0x99).                 // cwd, cdq, cqo
		put(fW|aR|narrow, 0x9e).             // sahf: of stays
		put(fR|aW|narrow, 0x9f).             // lahf
		put(aW|narrow|mR, 0xa0).             // mov from moffs
		put(aW|mR, 0xa1).                    //
		put(aR|narrow|mW, 0xa2).             // mov to moffs
		put(aR|mW, 0xa3).                    //
		put(aR|aW|narrow|mR|extra, 0xd7).    // xlat
		put(aW|narrow|faults, 0xe4).         // in
		put(aW|faults, 0xe5).                //
		put(aR|narrow|faults, 0xe6).         // out
		put(aR|faults, 0xe7).                //
		put(aW|narrow|faults|extra, 0xec).   // in, out with dx
		put(aW|faults|extra, 0xed).          //
		put(aR|narrow|faults|extra, 0xee).   //
		put(aR|faults|extra, 0xef).          //
		put(fR|fW, 0xf5).                    // cmc
		put(fW, 0xf8, 0xf9).                 // clc, stc
		put(faults, 0x9b, 0xf4, 0xfa, 0xfb). // fwait, hlt, cli, sti
		put(0, 0xfc, 0xfd)                   // cld, std
}

// stackAndFlow adds the stack instructions and near transfers of control.
func (t *roleTable) stackAndFlow() *roleTable {
	return t.
		put(stack|mW|zR, span(0x50, 0x57)...). // push
		put(stack|mR|zW, span(0x58, 0x5f)...). // pop
		put(stack|mR|eW, 0x8f).
		put(stack|mW, 0x68, 0x6a).
		put(stack|mW|fR, 0x9c).        // pushf
		put(stack|mR|fK|faults, 0x9d). // popf
		put(mR|mW|stack|extra, 0xc8).  // enter
		put(mR|extra, 0xc9).           // leave
		put(stack|mR, 0xc2, 0xc3).     // ret
		put(stack|mW, 0xe8).           // call
		put(0, 0xe9, 0xeb).            // jmp
		put(fR, span(0x70, 0x7f)...).  // jcc
		put(extra|fR, 0xe0, 0xe1).     // loopnz, loopz
		put(extra, 0xe2, 0xe3)         // loop, jrcxz
}

// implicit adds the registers that the instruction uses without naming them.
func (r *resolver) implicit() {
	switch {
	case r.in.Map == MapOne:
		r.implicitOne()
	case r.in.Map == Map0F:
		r.implicit0F()
	default:
		r.implicitVector()
	}
}

// use adds registers that are read and registers that are overwritten as a whole.
func (r *resolver) use(reads, kills RegSet) {
	r.Reads |= reads
	r.Writes |= kills
	r.Kills |= kills
}

func (r *resolver) implicitOne() {
	switch op := r.in.Opcode; op {
	case 0x99: // the 16-bit form leaves the rest of rdx
		r.sized(setDX)
	case 0xd7:
		r.Reads |= setBX
	case 0xc8:
		r.Reads |= setBP
		r.Writes |= setBP
	case 0xc9:
		r.Reads |= setBP
		r.sized(setBP | setSP)
	case 0xe0, 0xe1, 0xe2:
		r.Reads |= setCX
		r.Writes |= setCX
	case 0xe3:
		r.Reads |= setCX
	case 0xec, 0xed, 0xee, 0xef:
		r.Reads |= setDX
	case 0xf6, 0xf7:
		r.mulDiv()
	case 0xd2, 0xd3:
		r.Reads |= setCX
	case 0xdf: // fnstsw ax
		r.Writes |= setAX
	default:
		r.stringOp(op)
	}
}

// sized adds registers written with the operand size.
func (r *resolver) sized(s RegSet) {
	r.Writes |= s
	if r.whole() {
		r.Kills |= s
	}
}

// mulDiv adds rdx:rax, or ax for bytes.
func (r *resolver) mulDiv() {
	r.Reads |= setAX
	if r.in.Opcode == 0xf6 {
		r.Writes |= setAX
		return
	}
	if r.in.ModRM>>3&7 >= 6 { // div, idiv
		r.Reads |= setDX
	}
	r.sized(setAX | setDX)
}

// stringRegs has the pointers that string instructions read and move on.
var stringRegs = [256]RegSet{
	0x6c: setDI, 0x6d: setDI,
	0x6e: setSI, 0x6f: setSI,
	0xa4: setSI | setDI, 0xa5: setSI | setDI,
	0xa6: setSI | setDI, 0xa7: setSI | setDI,
	0xaa: setDI, 0xab: setDI,
	0xac: setSI, 0xad: setSI,
	0xae: setDI, 0xaf: setDI,
}

func (r *resolver) stringOp(op byte) {
	s := stringRegs[op]
	if r.in.Prefix&(PrefixRep|PrefixRepne) != 0 {
		s |= setCX
	}
	r.Reads |= s
	r.Writes |= s
	if op < 0x70 {
		r.Reads |= setDX
	}
}

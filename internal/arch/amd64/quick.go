package amd64

import (
	"sync"

	"kprobes.dev/kprobes/internal/arch"
)

// A probe at a function's entry needs little of the function: its first instructions, and
// that nothing goes into the bytes of the jump. One pass over the bytes (survey) tells that
// of most functions, and costs a tenth of the analysis (Analyse). Where it is in doubt the
// analysis is made.
//
// A pass is believed only if the bytes of the body and of each part decode as one run of
// instructions to the end, no instruction jumps indirectly, and each branch that stays
// inside goes to where an instruction of the run starts. Then all that the analysis can find
// are instructions of the run: it begins at the same places, goes on behind an instruction
// or at a branch's target, and its sweep begins behind one of them. So whatever is no target
// for the pass is none for the analysis.

// surveyed is what the pass found.
type surveyed struct {
	done bool   // the pass was made
	ok   bool   // it may be believed
	wide bool   // see Flow.wide
	near uint64 // bit i: something goes i bytes behind the entry's first instruction
}

// survey passes over the function's bytes, once.
func (fn *function) survey() *surveyed {
	if !fn.seen.done {
		s := surveyors.Get().(*surveyor)
		in := fn.input()
		fn.seen = s.function(&in, fn.entry)
		fn.seen.done = true
		surveyors.Put(s)
	}
	return &fn.seen
}

// surveyor is the memory of a pass.
type surveyor struct {
	starts  []uint64 // bit by byte of all parts, one behind the other: an instruction starts there
	targets []int    // bytes that a branch goes to
}

var surveyors = sync.Pool{New: func() any { return new(surveyor) }}

// function passes over a function and tells what goes to the bytes from near on.
func (s *surveyor) function(f *Func, near uint64) (v surveyed) {
	total := len(f.Code)
	for _, p := range f.Parts {
		total += len(p.Code)
	}
	s.starts, s.targets = zeroed(s.starts, total/64+1), s.targets[:0]
	for _, a := range f.Entries {
		s.aim(f, a)
	}
	at := 0
	for i := -1; i < len(f.Parts); i++ {
		p := Part{f.Addr, f.Code}
		if i >= 0 {
			p = f.Parts[i]
		}
		wide, ok := s.part(f, p, at)
		if !ok {
			return surveyed{}
		}
		v.wide = v.wide || wide
		at += len(p.Code)
	}
	for _, t := range s.targets {
		if s.starts[t/64]>>(t%64)&1 == 0 {
			return surveyed{}
		}
		if d := f.Addr + uint64(t) - near; t < len(f.Code) && d < 64 {
			v.near |= 1 << d
		}
	}
	v.ok = true
	return v
}

// part passes over one run of code, the first byte of which is the function's byte at.
func (s *surveyor) part(f *Func, p Part, at int) (wide, ok bool) {
	for o := 0; o < len(p.Code); {
		m, ok := measure(p.Code[o:])
		if !ok || m.kind == KindJmpInd || m.kind == KindFar {
			return false, false
		}
		s.starts[(at+o)/64] |= 1 << ((at + o) % 64)
		o += m.len
		switch m.kind {
		case KindJmp, KindJcc, KindLoop, KindXbegin, KindCall:
			s.aim(f, p.Addr+uint64(o)+uint64(m.rel))
		}
		wide = wide || m.wide
	}
	return wide, true
}

// aim notes that something goes to an address, if that is inside the function.
func (s *surveyor) aim(f *Func, a uint64) {
	if off := a - f.Addr; off < uint64(len(f.Code)) {
		s.targets = append(s.targets, int(off))
		return
	}
	at := len(f.Code)
	for _, p := range f.Parts {
		if off := a - p.Addr; off < uint64(len(p.Code)) {
			s.targets = append(s.targets, at+int(off))
			return
		}
		at += len(p.Code)
	}
}

// measured is what a pass needs of an instruction.
type measured struct {
	len  int
	kind Kind
	wide bool  // see Inst.wide
	rel  int64 // a direct branch's displacement
}

// measure is Decode for those who want no more. The commonest encodings are taken apart
// here: those without a prefix but REX, of the one-byte map and of parts of that behind 0F.
func measure(code []byte) (measured, bool) {
	layouts.need(makeLayouts)
	if len(code) >= MaxLen {
		if m, ok := measureCommon(code[:MaxLen]); ok {
			return m, true
		}
	}
	in, err := Decode(code)
	if err != nil {
		return measured{}, false
	}
	m := measured{len: int(in.Len), kind: in.Kind, wide: in.wide()}
	if !in.RIPMem {
		m.rel = in.Rel
	}
	return m, true
}

// measureCommon says no where the instruction is none of the common ones. code has MaxLen
// bytes, more than it looks at.
func measureCommon(code []byte) (m measured, ok bool) {
	i, size := 0, 0
	if code[0]&0xf0 == 0x40 {
		i, size = 1, int(code[0]>>2&2) // the columns of immSizes: 2 with REX.W
	}
	l := common[code[i]]
	i++
	if l == escape {
		l = common0F[code[i]]
		i++
	}
	if l&isGroup != 0 {
		l = commonGroup(l, code[i-1], code[i])
	}
	if l&isBad != 0 {
		return m, false
	}
	if l&hasModRM != 0 {
		i += operandLen(code[i], code[i+1])
	}
	m.kind = l.kind()
	n := 0
	if form := l & immMask; form != immNone {
		n = int(immSizes[form][size])
		if form >= immRel8 {
			m.rel = signed(code[i : i+n])
		}
	}
	m.len = i + n
	return m, true
}

// operandLen is the number of bytes from ModRM to the displacement (SDM vol. 2A, tables 2-2
// and 2-3); sib is the byte behind ModRM.
func operandLen(modrm, sib byte) int {
	if modrm >= 0xc0 {
		return 1
	}
	n, base := 1, modrm&7
	if base == 4 {
		n, base = 2, sib&7
	}
	switch {
	case modrm >= 0x80 || modrm < 0x40 && base == 5:
		return n + 4
	case modrm >= 0x40:
		return n + 1
	}
	return n
}

// commonGroup settles the common ones among the opcodes whose meaning hangs on ModRM.
func commonGroup(l layout, op, modrm byte) layout {
	reg := modrm >> 3 & 7
	switch {
	case op == 0x8d && modrm < 0xc0: // lea
		return hasModRM
	case op == 0xc7 && reg == 0: // mov
		return hasModRM | immZ
	case op == 0xc6 && reg == 0:
		return hasModRM | immByte
	case op == 0xf6 || op == 0xf7:
		if reg < 2 {
			return hasModRM | testImm[op&1]
		}
		return l
	case op == 0xff && (reg == 2 || reg == 4): // call, jmp
		return hasModRM.with(groupFFKinds[reg])
	case op == 0xff && reg&1 == 0 || op == 0xfe && reg < 2: // inc, push
		return hasModRM
	}
	return isBad
}

// escape stands for the first byte of the two-byte map.
const escape = isBad | hasModRM

// makeCommon makes the tables of the opcodes that measureCommon knows, of the one-byte and the
// two-byte map.
func makeCommon(one, two *table) (common, common0F *table) {
	common = commonOf(one, func(op int) bool { return op != 0x9b && op&0xf8 != 0xd8 && op&0xfc != 0xa0 })
	common[0x0f] = escape
	common0F = commonOf(two, func(op int) bool {
		return op >= 0x10 && op < 0x20 || op == 0x28 || op == 0x29 || op == 0x2e || op == 0x2f ||
			op >= 0x40 && op < 0x60 || op >= 0x80 && op < 0xa0 || op == 0xaf || op == 0xb6 || op == 0xb7 || op == 0xbe || op == 0xbf
	})
	return common, common0F
}

// commonOf is a table with those opcodes that take says, without x87, addresses in place of
// immediates, and groups other than commonGroup's.
func commonOf(t *table, take func(op int) bool) *table {
	out := same(isBad)
	for op, l := range t {
		if l&(isPrefix|isBad|noMem) == 0 && take(op) {
			out[op] = l
		}
	}
	return out
}

// entryRegion is the region of a jump at the entry where a pass over the bytes is enough to
// see that it is safe; else nil. It is the one that the analysis would find.
func (fn *function) entryRegion(points []uint64, policy *arch.Policy) []arch.Region {
	p := policy
	if fn.fl != nil || len(points) != 1 || points[0] != fn.entry || p.Force != "" && p.Force != arch.TacticJump ||
		len(p.Unoptimised)+len(p.Held)+len(fn.f.Keep)+fn.f.Reserved > 0 || fn.entry%pageSize > pageSize-JumpLen {
		return nil
	}
	var ins [JumpLen]Inst
	n := fn.entrySteps(&ins)
	if n == 0 {
		return nil
	}
	if s := fn.survey(); !s.ok || s.near&(1<<JumpLen-2) != 0 {
		return nil
	}
	m := new(entryRoom)
	steps, kept := m.steps[:], m.ins[:]
	if n > len(steps) {
		steps, kept = make([]Step, n), make([]Inst, n)
	}
	copy(kept, ins[:n])
	r := &m.r
	r.Addr, r.Steps = fn.entry, steps[:n]
	for i := range r.Steps {
		in, off := &kept[i], r.End()-fn.f.Addr
		r.Steps[i] = Step{Addr: r.End(), Inst: in, Code: fn.code[off:][:in.Len]}
		r.Len += uint64(in.Len)
		r.Ends = endsFlow(in)
	}
	m.all[0] = r
	return m.all[:]
}

// entryRoom is the memory of an entry's region.
type entryRoom struct {
	r     Region
	all   [1]arch.Region
	steps [3]Step // as many as most have
	ins   [3]Inst
}

// entrySteps decodes the instructions that a jump at the entry takes the place of, and gives their
// number; 0: one of them, or that there is none, is not for the pass to judge.
func (fn *function) entrySteps(ins *[JumpLen]Inst) (n int) {
	for a := fn.entry; a < fn.entry+JumpLen; n++ {
		in, code, ok := fn.bodyInst(a)
		if !ok || n > 0 && (isCall(&ins[n-1]) || endsFlow(&ins[n-1])) || !plainEntry(&in) || Relocatable(&in, code) != nil {
			return 0
		}
		ins[n] = in
		a += uint64(in.Len)
	}
	return n
}

func isCall(in *Inst) bool { return in.Kind == KindCall || in.Kind == KindCallInd }

// plainEntry says whether nothing special holds for an instruction in a region.
func plainEntry(in *Inst) bool {
	switch in.Kind {
	case KindPlain, KindJmp, KindJcc, KindCall, KindCallInd, KindRet:
		return true
	}
	return false
}

// measureAt measures the instruction at an address of the function's body.
func (fn *function) measureAt(a uint64) (m measured, ok bool) {
	off := a - fn.f.Addr
	if off >= uint64(len(fn.code)) {
		return m, false
	}
	return measure(fn.code[off:])
}

// bodyInst decodes the instruction at an address of the function's body.
func (fn *function) bodyInst(a uint64) (in Inst, code []byte, ok bool) {
	off := a - fn.f.Addr
	if off >= uint64(len(fn.code)) {
		return in, nil, false
	}
	in, err := Decode(fn.code[off:])
	return in, fn.code[off:][:in.Len], err == nil
}

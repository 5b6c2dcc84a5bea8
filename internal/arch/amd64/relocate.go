package amd64

import (
	"encoding/binary"
	"fmt"
)

// AddrPair ties one instruction of a copy to the original. A thread that is about to
// run the instruction at Copy is in the state in which the original code would be about
// to run the one at Orig, but for its stack pointer, which is SP bytes too low: it can
// be moved there, and a fault there is the original's fault. The first pair of each
// original instruction has SP 0: a thread that is about to run the original goes there.
type AddrPair struct {
	Orig    uint64
	Copy    uint64
	CopyEnd uint64 // the end of the copied instruction; its literal, if any, not included
	SP      uint64 // bytes to add to the stack pointer on the way back to Orig: 0 or 8
}

// RelocOptions change how instructions are moved. nil is the default.
type RelocOptions struct {
	// RealCalls moves calls as calls, which return to the copy. By default the return
	// address of the original is pushed and the callee jumped to, so that unwinders,
	// Go's runtime and code that looks at its return address see what they know, and
	// no address of a copy outlives it on a stack. Needed with shadow stacks.
	RealCalls bool
	// AllowUndef moves ud0, ud1 and ud2, for targets whose SIGILL handler sees the
	// original address.
	AllowUndef bool
}

// defaultReloc changes nothing.
var defaultReloc RelocOptions

// baseIsRSP says whether the memory operand counts from the stack pointer.
func (in *Inst) baseIsRSP() bool {
	return in.HasSIB && in.SIB&7 == 4 && in.Rex&1 == 0 && in.Ext&1 == 0
}

// disp is the displacement of the memory operand.
func (in *Inst) disp(code []byte) int64 {
	if in.DispLen == 0 {
		return 0
	}
	return signed(code[in.DispOff : in.DispOff+in.DispLen])
}

// Relocate appends a copy of one instruction to a that does what the instruction at addr
// does. code starts with its bytes, in is what Decode says about them. Control that the
// original would hand to the next instruction runs out of the copy's end, an emulated
// call apart, which returns to the original's next instruction.
//
// The pairs describe the instructions that the copy consists of. The error is a
// *RelocError, and then nothing is appended: ErrReach if a is too far from what the
// instruction names, ErrImmovable if it can be moved nowhere.
//
// Left different are the instruction pointer that x87 remembers (fnstenv) and the value
// of rcx after a syscall: both tell the copy's address. An emulated call through memory
// expects its operand outside the 8 bytes below the stack pointer, which a call is about
// to overwrite; where the encoding tells that it lies there, it is refused. If both the
// operand and the stack fault, the stack's fault is the one reported.
func Relocate(a *Asm, in *Inst, code []byte, addr uint64, opt *RelocOptions) ([]AddrPair, error) {
	return relocateInto(nil, a, in, code, addr, opt)
}

// relocateInto is Relocate that appends the pairs to some.
func relocateInto(pairs []AddrPair, a *Asm, in *Inst, code []byte, addr uint64, opt *RelocOptions) ([]AddrPair, error) {
	if opt == nil {
		opt = &defaultReloc
	}
	if err := relocatable(in, code, opt); err != nil {
		return nil, err
	}
	m := mover{Asm: a, in: in, code: code[:in.Len], addr: addr, opt: opt, pairs: pairs}
	if err := m.move(); err != nil {
		return nil, err
	}
	return m.pairs, nil
}

// mover moves one instruction.
type mover struct {
	*Asm
	in    *Inst
	code  []byte
	addr  uint64
	opt   *RelocOptions
	pairs []AddrPair
}

func (m *mover) move() error {
	target, _ := m.in.Target(m.addr)
	switch m.in.Kind {
	case KindJmp:
		m.jump(m.addr, target)
		return nil
	case KindJcc:
		m.jcc(Cond(m.in.Opcode&0xf), target)
		return nil
	case KindLoop:
		m.loop(target)
		return nil
	case KindCall:
		return m.call(target)
	case KindCallInd:
		if !m.opt.RealCalls {
			return m.callInd()
		}
	}
	return m.plain()
}

// next is the address of the instruction after the original.
func (m *mover) next() uint64 { return m.addr + uint64(m.in.Len) }

// put records what emit appends as one instruction that stands for the one at orig.
func (m *mover) put(orig, sp uint64, emit func()) {
	start := m.Addr()
	emit()
	m.pairs = append(m.pairs, AddrPair{orig, start, m.Addr(), sp})
}

// near says whether a branch of n bytes written here reaches target.
func (m *mover) near(target uint64, n int) bool {
	_, ok := rel32(m.Addr()+uint64(n), target)
	return ok
}

// jump goes to target; the instruction stands for the one at orig.
func (m *mover) jump(orig, target uint64) {
	if m.near(target, 5) {
		m.put(orig, 0, func() { m.JmpAddr(target) })
		return
	}
	lit := m.Label()
	m.put(orig, 0, func() { m.JmpM(AtLabel(lit, 0)) })
	m.literal(lit, target)
}

// jcc goes to target if c holds; out of reach, it jumps over a far jump if not.
func (m *mover) jcc(c Cond, target uint64) {
	if m.near(target, 6) {
		m.put(m.addr, 0, func() { m.JccAddr(c, target) })
		return
	}
	over := m.Label()
	m.put(m.addr, 0, func() { m.JccShort(c^1, over) })
	m.jump(target, target)
	m.Bind(over)
}

// loop keeps the instruction, which has no long form and, but for loopz and loopnz, no
// opposite:
//
//	loop taken
//	jmp  next
//	taken: jmp target
//	next:
func (m *mover) loop(target uint64) {
	taken, next := m.Label(), m.Label()
	m.put(m.addr, 0, func() {
		m.Raw(m.code[:m.in.OpOff]...) // AMD takes f2 e1 for loopnz
		m.short(m.in.Opcode, taken)
	})
	m.put(m.next(), 0, func() { m.JmpShort(next) })
	m.Bind(taken)
	m.jump(target, target)
	m.Bind(next)
}

// call moves a direct call.
func (m *mover) call(target uint64) error {
	switch {
	case target == m.next():
		m.pushPC()
	case !m.opt.RealCalls:
		lit := m.pushReturn()
		m.jump(target, target)
		m.literal(lit, m.next())
	case m.near(target, 5):
		m.put(m.addr, 0, func() { m.CallAddr(target) })
	default:
		return m.farAway("call", target)
	}
	return nil
}

// pushPC stands for a call of the next instruction, which old code uses to learn where
// it is. The stack is written before its pointer moves, so that up to then nothing has
// happened. Such a call leaves shadow stacks alone (SDM vol. 2A, CALL), as this does.
func (m *mover) pushPC() {
	pc := m.next()
	if int64(pc) == int64(int32(pc)) {
		m.put(m.addr, 0, func() { m.PushI(int32(pc)) })
		return
	}
	m.put(m.addr, 0, func() { m.MovMI(4, At(RSP, -8), int32(pc)) })
	m.put(m.addr, 0, func() { m.MovMI(4, At(RSP, -4), int32(pc>>32)) })
	m.put(m.addr, 0, func() { m.Lea(RSP, At(RSP, -8)) })
}

// pushReturn pushes the original's return address in one instruction and touches
// neither registers nor flags. An address that no immediate holds is a literal, for
// which the label is: two stores of four bytes would stall the callee's return.
func (m *mover) pushReturn() (lit Label) {
	pc := m.next()
	if int64(pc) == int64(int32(pc)) {
		m.put(m.addr, 0, func() { m.PushI(int32(pc)) })
		return -1
	}
	lit = m.Label()
	m.put(m.addr, 0, func() { m.PushM(AtLabel(lit, 0)) })
	return lit
}

// literal appends an address that code asked for by a label; none if that is negative. It is
// aligned, for a program may have alignment checks on.
func (m *mover) literal(lit Label, addr uint64) {
	if lit < 0 {
		return
	}
	for m.Addr()%8 != 0 {
		m.Int3()
	}
	m.Bind(lit)
	m.Data64(addr)
}

// callInd emulates a call through a register or memory: push, then the same operand
// jumped through.
func (m *mover) callInd() error {
	b := m.jumpForm()
	if !m.in.RIPMem {
		lit := m.pushReturn()
		m.put(m.addr, 8, func() { m.Raw(b...) })
		m.literal(lit, m.next())
		return nil
	}
	for _, push := range []uint64{2, 6} { // the lengths that the push can have
		if err := m.setDisp(b, m.Addr()+push); err != nil {
			return err
		}
	}
	lit := m.pushReturn()
	err := m.setDisp(b, m.Addr())
	m.put(m.addr, 8, func() { m.Raw(b...) })
	m.literal(lit, m.next())
	return err
}

// jumpForm turns the bytes of an indirect call (FF /2) into those of a jump (FF /4) with
// the stack pointer 8 lower.
func (m *mover) jumpForm() []byte {
	in := m.in
	b := append([]byte(nil), m.code...)
	b[in.ModRMOff] = b[in.ModRMOff]&^0x38 | 4<<3
	if !in.HasMem() || !in.baseIsRSP() {
		return b
	}
	disp := in.disp(m.code) + 8
	b = b[:in.ModRMOff+2]
	if disp == int64(int8(disp)) {
		b[in.ModRMOff] = b[in.ModRMOff]&0x3f | 0x40
		return append(b, byte(disp))
	}
	b[in.ModRMOff] = b[in.ModRMOff]&0x3f | 0x80
	return binary.LittleEndian.AppendUint32(b, uint32(disp))
}

// plain moves an instruction as it is, its PC-relative field set anew.
func (m *mover) plain() error {
	var room [MaxLen]byte
	b := room[:copy(room[:], m.code)]
	if m.in.RelLen != 0 {
		if err := m.setDisp(b, m.Addr()); err != nil {
			return m.lea(err)
		}
	}
	m.put(m.addr, 0, func() { m.Raw(b...) })
	return nil
}

// setDisp makes the 4-byte PC-relative field of b, whose first byte will stand at addr,
// name what the original names. With an address-size prefix the address is cut to 32
// bits, and every place reaches it.
func (m *mover) setDisp(b []byte, addr uint64) error {
	target, _ := m.in.Target(m.addr)
	end := addr + uint64(len(b))
	d, ok := rel32(end, target)
	if !ok && !(m.in.RIPMem && m.in.Prefix&PrefixAddrSize != 0) {
		what := "operand"
		if !m.in.RIPMem {
			what = "target"
		}
		return m.farAway(what, target)
	}
	binary.LittleEndian.PutUint32(b[m.in.RelOff:], uint32(d))
	return nil
}

func (m *mover) farAway(what string, target uint64) error {
	return &RelocError{m.code, ErrReach, fmt.Sprintf("%s at %#x is %d bytes from %#x", what, target, int64(target-m.Addr()), m.Addr())}
}

// lea moves what only computes an address that is out of reach: the address becomes a
// constant. Others keep the error.
func (m *mover) lea(err error) error {
	in := m.in
	if in.Enc != EncLegacy || in.Map != MapOne || in.Opcode != 0x8d || !in.W() {
		return err
	}
	target, _ := in.Target(m.addr)
	m.put(m.addr, 0, func() { m.MovRI(Reg(in.Reg()), target) })
	return nil
}

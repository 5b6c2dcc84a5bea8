package amd64

import (
	"math"
	"math/bits"
)

// entered emits the decision at an entry.
func (m *sampling) entered() {
	m.self()
	m.slot()
	another, first, in, same := m.Label(), m.Label(), m.Label(), m.Label()
	m.OpMR(OpCmp, 8, At(m.s1(), sampleOwner), m.s2())
	m.Jcc(CondNE, another)
	mine := m.Here()
	m.depth(RAX)
	m.words()
	m.MovRM(8, RDX, At(m.s1(), sampleState))
	m.TestRR(8, RDX, RDX)
	m.Jcc(CondE, first)
	m.beyond(in, same)
	m.Jcc(CondB, first)
	m.Bind(in)
	m.keeps()
	m.after(func() {
		m.Bind(another)
		m.belong()
		m.Jmp(mine)
		m.Bind(same)
		m.other()
		m.Jcc(CondE, first)
		m.TestRI(1, RDX, sampleStub)
		m.Jcc(CondNE, in)
		m.Bind(first)
		m.begins()
	})
}

// beyond emits the comparison of the depth in RAX with that of the state in RDX: a deeper one goes on at in, and an equal one at same.
// Else the condition below says whether they are of one stack. It clobbers S2.
func (m *sampling) beyond(in, same Label) {
	m.MovRR(8, m.s2(), RDX)
	m.ShiftRI(Shr, 8, m.s2(), sampleDepth)
	m.OpRR(OpSub, 8, m.s2(), RAX)
	m.Jcc(CondB, in)
	m.Jcc(CondE, same)
	m.OpRI(OpCmp, 8, m.s2(), sampleSame)
}

// other emits the comparison of the function of the state in RDX with that of the hit. It clobbers S2.
func (m *sampling) other() {
	m.MovRR(4, m.s2(), RDX)
	m.OpRI(OpAnd, 4, m.s2(), sampleFuncMask)
	m.OpRI(OpCmp, 4, m.s2(), m.function())
}

// begins emits the decision of an outermost call, whose depth is in RAX: of the numbers that the counter gives out those are
// kept that Every divides.
func (m *sampling) begins() {
	state := sampleIn | m.function()
	if replaces(m.miss) {
		state |= sampleStub
	}
	m.ShiftRI(Shl, 8, RAX, sampleDepth)
	m.OpRI(OpOr, 8, RAX, state)
	if !m.Always && m.Every > 1 {
		not := m.Label()
		m.MovRI(m.s2(), m.Table+sampleCounter)
		m.MovRI(RDX, 1)
		m.Lock().Xadd(8, At(m.s2(), 0), RDX)
		m.divides(m.Every)
		m.Jcc(CondA, not)
		m.after(func() {
			m.Bind(not)
			m.MovMR(8, At(m.s1(), sampleState), RAX)
			m.Jmp(m.drop)
		})
	}
	m.OpRI(OpOr, 8, RAX, sampleKept)
	m.MovMR(8, At(m.s1(), sampleState), RAX)
	m.Jmp(m.pass)
}

// divides emits a comparison that says "below or equal" if n divides the number in RDX, without a division, which takes long: the
// product with the inverse of n's odd part, turned by the number of its zeros, is the quotient then, and greater else (Hacker's Delight,
// 10-17). It clobbers RDX and S2.
func (m *sampling) divides(n uint64) {
	zeros := bits.TrailingZeros64(n)
	odd := n >> zeros
	inverse := odd // right in 3 bits, and in twice as many after each step
	for range 5 {
		inverse *= 2 - odd*inverse
	}
	m.MovRI(m.s2(), inverse)
	m.ImulRR(8, RDX, m.s2())
	if zeros > 0 {
		m.ShiftRI(Ror, 8, RDX, uint8(zeros))
	}
	m.MovRI(m.s2(), math.MaxUint64/n)
	m.OpRR(OpCmp, 8, RDX, m.s2())
}

// returned emits the decision at a return.
func (m *sampling) returned() {
	m.self()
	m.look()
	in, same, left := m.Label(), m.Label(), m.Label()
	m.depth(RAX)
	m.words()
	m.beyond(in, same)
	m.Jcc(CondB, left)
	m.Bind(in)
	m.keeps()
	m.after(func() {
		m.Bind(same)
		other := m.Label()
		m.other()
		m.Jcc(CondNE, other)
		m.MovMI(8, At(m.s1(), sampleState), 0)
		m.Jmp(in)
		m.Bind(other)
		m.TestRI(1, RDX, sampleStub)
		m.Jcc(CondNE, in)
		m.Bind(left)
		m.MovMI(8, At(m.s1(), sampleState), 0)
		m.Jmp(m.drop)
	})
}

// ended emits the decision at the end of a goroutine. Its slot belongs to nobody when its g serves again.
func (m *sampling) ended() {
	m.self()
	m.look()
	m.keeps()
}

// goroutine emits RAX = the g that argument i of the program begins with, and S2 = its goroutine. What is none goes on at m.drop.
func (m *sampling) goroutine(s *storing, i int) {
	a := &s.w.Prog.Args[i]
	m.argBase(RAX, a, a.Base, s, m.drop)
	m.TestRR(8, RAX, RAX)
	m.Jcc(CondE, m.drop)
	m.load(spaceAny, 8, m.s2(), At(RAX, m.w.Go.GoID), m.drop)
	m.TestRR(8, m.s2(), m.s2())
	m.Jcc(CondE, m.drop)
}

// created emits that a new goroutine is in what its creator is in.
func (m *sampling) created(s *storing) {
	m.goroutine(s, 0)
	m.look()
	m.OpRI(OpAnd, 4, RDX, sampleIn|sampleKept)
	m.MovMR(8, m.tempAt(tempEnd), RDX)
	m.goroutine(s, 1)
	m.slot()
	m.belong()
	m.MovRM(8, RDX, m.tempAt(tempEnd))
	m.MovMR(8, At(m.s1(), sampleState), RDX)
	m.keeps()
}

// recovered emits that calls were left by a panic, the outermost one perhaps among them.
func (m *sampling) recovered(s *storing) {
	const sp, high = 2, 3
	for _, i := range []int{sp, high} {
		m.evaluateArg(s, i)
		s.loaded = append(s.loaded, i)
	}
	m.goroutine(s, 0)
	m.look()
	m.MovRM(8, RAX, m.tempAt(s.temps[high]))
	m.OpRM(OpSub, 8, RAX, m.tempAt(s.temps[sp]))
	m.words()
	on := m.Label()
	m.MovRR(8, m.s2(), RDX)
	m.ShiftRI(Shr, 8, m.s2(), sampleDepth)
	m.OpRR(OpCmp, 8, m.s2(), RAX)
	m.JccShort(CondBE, on)
	m.MovMI(8, At(m.s1(), sampleState), 0)
	m.Bind(on)
	m.keeps()
}

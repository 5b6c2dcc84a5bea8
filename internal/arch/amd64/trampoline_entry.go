package amd64

import (
	"math/bits"

	"kprobes.dev/kprobes/internal/arch"
)

// stub emits the choice of a stub for the return address in RAX: the frame's mark becomes its
// address, or 0 if the return address is to stay, since it leads to a stub of this function
// already; then RAX becomes what that stub stands for. The instance in S1 is kept. none is
// where a call goes for which there is no stub.
func (f *frame) stub(t *arch.Trampoline, none Label) {
	nested, fresh, found, done := f.Label(), f.Label(), f.Label(), f.Label()
	f.isStub(t, RAX, f.s2())
	f.Jcc(CondE, nested)
	f.Bind(fresh)
	if t.Off != 0 {
		f.MovRI(RDX, t.Off)
		f.OpMI(OpCmp, 4, At(RDX, 0), 0)
		f.Jcc(CondNE, none)
	}
	other := f.Label()
	f.MovRI(f.s2(), t.Table+firstStub)
	f.OpMR(OpCmp, 8, At(f.s2(), 0), RAX)
	f.Jcc(CondNE, other)
	f.Bind(found)
	f.OpRI(OpSub, 8, f.s2(), TrampolineDist)
	f.MovMR(8, At(RSP, f.mark), f.s2())
	f.Bind(done)
	f.after(func() { f.otherStub(t, other, found, none) })
	f.after(func() { f.nestedStub(t, nested, fresh, done) })
}

// isStub emits a comparison: equal (CondE) says that reg lies in the room of trampolines. It
// clobbers tmp.
func (f *frame) isStub(t *arch.Trampoline, reg, tmp Reg) {
	bits := bits.TrailingZeros64(t.Size)
	f.MovRR(8, tmp, reg)
	f.ShiftRI(Shr, 8, tmp, uint8(bits))
	f.OpRI(OpCmp, 8, tmp, int32(t.Lo>>bits))
}

// otherStub emits the search of the tables for the return address in RAX, from the second word
// on; S2 leads to the first. A free word becomes its own, and the first table is used up before the
// second. Words never change again.
func (f *frame) otherStub(t *arch.Trampoline, other, found, none Label) {
	few, many, try := f.Label(), f.Label(), f.Label()
	f.Bind(other)
	for range fewCalls - 1 {
		f.OpRI(OpAdd, 8, f.s2(), stubSize)
		f.OpMR(OpCmp, 8, At(f.s2(), 0), RAX)
		f.Jcc(CondE, found)
	}
	f.OpMI(OpCmp, 8, At(f.s2(), 0), 0)
	f.Jcc(CondE, few)
	f.Bind(many)
	f.hashed(t)
	f.OpMR(OpCmp, 8, At(f.s2(), 0), RAX)
	f.Jcc(CondE, found)
	f.MovMI(8, At(RSP, f.mark), maxProbe)
	loop := f.Here()
	f.MovRM(8, RDX, At(f.s2(), 0))
	f.OpRR(OpCmp, 8, RDX, RAX)
	f.Jcc(CondE, found)
	f.TestRR(8, RDX, RDX)
	f.Jcc(CondE, try)
	f.OpRI(OpAdd, 8, f.s2(), stubSize)
	f.OpMI(OpSub, 4, At(RSP, f.mark), 1)
	f.Jcc(CondNE, loop)
	f.MovRI(RDX, t.Table+TrampolineHead)
	f.OpRR(OpCmp, 8, f.s2(), RDX)
	f.Jcc(CondE, many) // others have used the first table up meanwhile
	f.Jmp(none)
	f.Bind(few)
	f.MovRI(f.s2(), t.Table+firstStub)
	f.MovMI(8, At(RSP, f.mark), fewCalls)
	f.Jmp(loop)
	f.Bind(try)
	f.MovRR(8, RDX, RAX)
	f.MovRI(RAX, 0)
	f.Lock().Cmpxchg(8, At(f.s2(), 0), RDX)
	f.MovRR(8, RAX, RDX)
	f.Jcc(CondE, found)
	f.Jmp(loop) // somebody else was faster: the word is looked at once more
}

// hashed emits S2 = the word of the second table from which on the return address in RAX is
// searched: one of 449, so that there are maxProbe words from each.
func (f *frame) hashed(t *arch.Trampoline) {
	f.MovRI(RDX, hashFactor)
	f.ImulRR(8, RDX, RAX)
	f.ShiftRI(Shr, 8, RDX, 64-9)
	f.MovRR(8, f.s2(), RDX)
	f.ShiftRI(Shr, 8, f.s2(), 3)
	f.OpRR(OpSub, 8, RDX, f.s2())
	f.MovRI(f.s2(), t.More+TrampolineDist)
	f.Lea(f.s2(), AtIndex(f.s2(), RDX, 8, 0))
}

// nestedStub emits what is done where the return address is that of a stub. One of this
// function's own comes of a second event, or of a call that ended in a jump to the function
// itself; it may also stand behind those of others, where functions end in jumps to one another.
// Such a return is seen when the own stub is reached, so that stubs never pile up. Else the
// other function's stub is a return address like any.
func (f *frame) nestedStub(t *arch.Trampoline, nested, fresh, done Label) {
	own := f.Label()
	f.Bind(nested)
	f.walk(t, own)
	f.MovRM(8, RAX, At(RSP, f.drop))
	f.Jmp(fresh)
	f.Bind(own)
	f.MovRM(8, RAX, At(RAX, 0))
	f.MovMI(8, At(RSP, f.mark), 0)
	f.Jmp(done)
}

// walk emits a jump to own if the return address in RAX is one of the function's own stubs, or a stub
// that stands for such a one; RAX is the address of that stub's word then. It clobbers RAX, RDX and S2.
func (f *frame) walk(t *arch.Trampoline, own Label) {
	none := f.Label()
	walk := f.Here()
	f.wordOf(t, f.s2(), none)
	for _, part := range []struct {
		at   uint64
		size int32
	}{{t.Table, TrampolineHead}, {t.More + TrampolineDist, trampolineMore}} {
		f.MovRI(RDX, part.at)
		f.MovRR(8, f.s2(), RAX)
		f.OpRR(OpSub, 8, f.s2(), RDX)
		f.OpRI(OpCmp, 8, f.s2(), part.size)
		f.Jcc(CondB, own)
	}
	f.MovRM(8, RAX, At(RAX, 0))
	f.Jmp(walk)
	f.Bind(none)
}

// wordOf emits RAX = the address of the word of the stub in RAX, or a jump to none if that is no address
// of a stub; RAX has TrampolineDist too much then. It clobbers tmp.
//
// Where all is taken out the tracer puts stubs back in registers, as they are (target/process): between any
// two instructions a register with a stub's address may get the real one. No such register is ever
// compared first and used then.
func (f *frame) wordOf(t *arch.Trampoline, tmp Reg, none Label) {
	f.OpRI(OpAdd, 8, RAX, TrampolineDist)
	f.isStub(t, RAX, tmp)
	f.Jcc(CondNE, none)
	f.TestRI(4, RAX, TrampolineDist)
	f.Jcc(CondE, none)
}

// replace emits the replacing of the return address by the stub that was chosen.
func (f *frame) replace() {
	keep := f.Label()
	f.MovRM(8, RAX, At(RSP, f.mark))
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondE, keep)
	f.MovMR(8, At(RSP, f.drop), RAX)
	f.Bind(keep)
}

// matched notes at a trampoline's return that an event has found the call's instance: the mark's
// lower half is not 0 then. The upper half says that there are more (reenter.go).
func (f *frame) matched(w *arch.ProbeOp) {
	if w.Trampoline != nil {
		f.MovMI(4, At(RSP, f.mark), 1)
	}
}

// stray emits the counting of a return that belonged to no call of any event.
func (f *frame) stray(t *arch.Trampoline) {
	none, done := f.Label(), f.Label()
	f.OpMI(OpCmp, 4, At(RSP, f.mark), 0)
	f.Jcc(CondE, none)
	f.Bind(done)
	f.after(func() {
		f.Bind(none)
		f.MovRI(RDX, t.Table)
		f.Lea(RAX, At(RSP, f.drop))
		f.MovMR(8, At(RDX, tableSlot), RAX)
		f.Lock().IncM(8, At(RDX, tableStray))
		f.Jmp(done)
	})
}

// returnsOf gives the trampoline of the works at a return; nil: it is none's.
func returnsOf(ws []arch.ProbeOp) *arch.Trampoline {
	for i := range ws {
		if ws[i].Role == arch.RoleExit && ws[i].Trampoline != nil {
			return ws[i].Trampoline
		}
	}
	return nil
}

// Offset of the return address of a frame from the address that is handed to
// _Unwind_Find_FDE, in struct _Unwind_Context of libgcc (unwind-dw2.c, GCC 3.0 to 15):
// ra and lsda stand before bases.
const unwindRA = -16

// unwind emits the work at the entry of _Unwind_Find_FDE(pc, bases), which libgcc's unwinder
// asks about every frame: where the frame's code address is that of a stub, it becomes the
// one that the stub stands for, in the argument and, if it is there, in the unwinder's context
// of the frame. So whoever walks the stack sees the callers that there are. pc is the return
// address less one, or that of an instruction that a signal has interrupted.
func (f *frame) unwind(t *arch.Trampoline) {
	hit, done := f.Label(), f.Label()
	f.Lea(RAX, At(RDI, 1+TrampolineDist))
	f.MovRR(8, f.s2(), RAX)
	f.OpRI(OpAnd, 8, RAX, -stubSize)
	f.isStub(t, RAX, f.s1())
	f.Jcc(CondE, hit)
	f.Bind(done)
	f.after(func() {
		f.Bind(hit)
		f.mappedWord(t, done)
		f.OpRI(OpAnd, 4, f.s2(), stubSize-1)
		f.Lea(f.s1(), At(RAX, -TrampolineDist))
		real, skip := f.Label(), f.Label()
		follow := f.Here()
		f.MovRM(8, RAX, At(RAX, 0))
		f.TestRR(8, RAX, RAX)
		f.Jcc(CondE, done) // a stub that was never used
		f.wordOf(t, RDX, real)
		f.Jmp(follow)
		f.Bind(real)
		f.OpRI(OpSub, 8, RAX, TrampolineDist)
		f.OpMR(OpCmp, 8, At(RSI, unwindRA), f.s1())
		f.Jcc(CondNE, skip)
		f.MovMR(8, At(RSI, unwindRA), RAX)
		f.Bind(skip)
		f.Lea(RDI, AtIndex(RAX, f.s2(), 1, -1))
		f.Jmp(done)
	})
}

// mappedWord emits a jump to no, unless the address in RAX, which is in the room of trampolines and
// divided by 8, is that of the word of a stub that is mapped. It clobbers RDX and S1.
func (f *frame) mappedWord(t *arch.Trampoline, no Label) {
	yes := f.Label()
	f.MovRI(RDX, t.Lo)
	f.MovRR(8, f.s1(), RAX)
	f.OpRR(OpSub, 8, f.s1(), RDX)
	f.MovRI(RDX, t.Mapped)
	f.OpMR(OpCmp, 8, At(RDX, 0), f.s1())
	f.Jcc(CondBE, no)
	f.TestRI(4, f.s1(), TrampolineDist)
	f.Jcc(CondE, no)
	f.OpRI(OpAnd, 4, f.s1(), TrampolineDist-1)
	f.OpRI(OpCmp, 4, f.s1(), trampolineHeads)
	f.Jcc(CondAE, yes)
	f.OpRI(OpAnd, 4, f.s1(), TrampolineHead-1)
	f.OpRI(OpCmp, 4, f.s1(), firstStub)
	f.Jcc(CondB, no)
	f.Bind(yes)
}

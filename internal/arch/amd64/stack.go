package amd64

import (
	"slices"

	"kprobes.dev/kprobes/internal/arch/objfile"
	"kprobes.dev/kprobes/internal/fetch"
)

// The walk over the stack runs at the hit, when the record has its room, or for a histogram's key: it stores the return addresses of the calls in progress,
// the innermost first. Each step looks up the rule for the code that the return address leads to, which says where the next one
// is. What it reads is the program's, and may be anything: every load may fault, the stack pointer only rises, but where a signal
// has interrupted the program or Go code has changed stacks, and each step counts against the most that are made.

// walkRegs is how many registers the walk uses beside the scratch ones.
const walkRegs = 6

// Offsets from the stack pointer in the frame that the kernel makes for a signal (struct ucontext, asm/sigcontext.h), when the
// handler has returned.
const (
	contextBP = 120
	contextSP = 160
	contextIP = 168
)

// walker is the walk being emitted, with its registers.
type walker struct {
	*frame
	out, sp, bp, pc, obj, left Reg   // where the next address goes, the frame, the object that pc was found in, steps left
	last                       int32 // offset from rec behind the last address that it has room for
	rec                        Reg

	step, find, apply, unread, bad, unknown, finish Label
}

// stack emits the storing of the stack, of at most n callers, at byte at behind rec: their number and why it ends, and their
// addresses. It keeps all registers but RAX, RDX and S1.
func (f *frame) stack(s *storing, rec Reg, at int32, n int) {
	var regs []Reg
	for _, r := range []Reg{R8, R9, R10, R11, RDI, RSI, RCX, RBX, R12, R13} {
		if !slices.Contains(f.scratch[:], r) {
			regs = append(regs, r)
		}
	}
	for i, r := range regs[:walkRegs] {
		f.MovMR(8, f.tempAt(s.walk+i), r)
	}
	w := &walker{frame: f, out: regs[0], sp: regs[1], bp: regs[2], pc: regs[3], obj: regs[4], left: regs[5]}
	for _, l := range []*Label{&w.step, &w.find, &w.apply, &w.unread, &w.bad, &w.unknown, &w.finish} {
		*l = f.Label()
	}
	w.rec, w.last = rec, at+8+8*int32(n)
	f.MovRR(8, w.bp, RBP)
	f.Lea(w.sp, At(RSP, f.drop))
	f.Lea(w.out, At(rec, at+8))
	f.MovRI(w.left, 2*uint64(n)) // a stub of a trampoline takes a step more
	f.MovRI(w.obj, 0)
	f.MovRI(RDX, uint64(UnwindRule(s.w.Frame)))
	f.Jmp(w.apply)
	w.loop()
	f.Bind(w.finish)
	f.OpRR(OpSub, 8, w.out, rec)
	f.OpRI(OpSub, 8, w.out, at+8)
	f.ShiftRI(Shr, 8, w.out, 3)
	f.ShiftRI(Shl, 8, RDX, 32)
	f.OpRR(OpOr, 8, RDX, w.out)
	f.MovMR(8, At(rec, at), RDX)
	for i, r := range regs[:walkRegs] {
		f.MovRM(8, r, f.tempAt(s.walk+i))
	}
}

// end emits the end of the walk for a reason.
func (w *walker) end(why fetch.StackEnd) {
	w.MovRI(RDX, uint64(why))
	w.Jmp(w.finish)
}

// loop emits the steps. A step begins with the return address in pc.
func (w *walker) loop() {
	whole, full, object := w.Label(), w.Label(), w.Label()
	w.Bind(w.step)
	w.TestRR(8, w.pc, w.pc)
	w.Jcc(CondE, whole)
	w.take(w.pc, full)
	w.DecR(8, w.pc) // the call, which may be the last instruction that a rule holds for
	w.Bind(w.find)
	w.TestRR(8, w.obj, w.obj)
	w.Jcc(CondE, object)
	w.inObject()
	w.Jcc(CondAE, object)
	found := w.Here()
	w.rule()
	w.Bind(w.apply)
	w.caller(whole)
	w.after(func() {
		w.Bind(object)
		w.search()
		w.Jmp(found)
	})
	w.Bind(whole)
	w.end(fetch.StackWhole)
	w.Bind(full)
	w.end(fetch.StackFull)
	w.Bind(w.bad)
	w.end(fetch.StackBad)
	w.Bind(w.unread)
	w.end(fetch.StackUnread)
	w.Bind(w.unknown)
	w.end(fetch.StackUnknown)
}

// take emits the storing of an address. It clobbers RDX.
func (w *walker) take(pc Reg, full Label) {
	w.Lea(RDX, At(w.rec, w.last))
	w.OpRR(OpCmp, 8, w.out, RDX)
	w.Jcc(CondE, full)
	w.DecR(8, w.left)
	w.Jcc(CondE, full)
	w.MovMR(8, At(w.out, 0), pc)
	w.OpRI(OpAdd, 8, w.out, 8)
}

// inObject emits RAX = pc's offset in obj; below (CondB) says that it is in there.
func (w *walker) inObject() {
	w.MovRR(8, RAX, w.pc)
	w.OpRM(OpSub, 8, RAX, At(w.obj, 0))
	w.OpRM(OpCmp, 8, RAX, At(w.obj, 8))
}

// search emits obj = the object that pc lies in, and RAX = its offset there.
func (w *walker) search() {
	done := w.Label()
	w.MovRI(RDX, w.w.Unwind)
	w.MovRM(8, RDX, At(RDX, 0))
	w.TestRR(8, RDX, RDX)
	w.Jcc(CondE, w.unknown)
	w.MovRM(8, w.obj, At(RDX, 0))
	w.ShiftRI(Shl, 8, w.obj, 5)
	w.OpRR(OpAdd, 8, w.obj, RDX)
	next := w.Here()
	w.OpRR(OpCmp, 8, w.obj, RDX)
	w.Jcc(CondE, w.unknown)
	w.inObject()
	w.Jcc(CondB, done)
	w.OpRI(OpSub, 8, w.obj, unwindEntry)
	w.Jmp(next)
	w.Bind(done)
}

// rule emits EDX = the rule for the offset RAX in obj.
func (w *walker) rule() {
	stub := w.Label()
	w.MovRM(8, RDX, At(w.obj, 16))
	w.TestRR(8, RDX, RDX)
	w.Jcc(CondE, stub)
	w.MovRR(4, w.s1(), RAX)
	w.ShiftRI(Shr, 4, w.s1(), unwindShift)
	w.MovRM(4, RDX, AtIndex(RDX, w.s1(), 4, 4))
	w.MovRM(8, w.s1(), At(w.obj, 24))
	back := w.Here()
	w.DecR(4, RDX)
	w.OpRM(OpCmp, 4, RAX, AtIndex(w.s1(), RDX, 8, 0))
	w.Jcc(CondB, back)
	w.MovRM(4, RDX, AtIndex(w.s1(), RDX, 8, 4))
	w.after(func() {
		w.Bind(stub) // of a trampoline: its word holds the return address
		w.IncR(8, w.pc)
		w.OpRI(OpAnd, 8, w.pc, -stubSize)
		w.word(w.pc, At(w.pc, TrampolineDist))
		w.OpRI(OpSub, 8, w.out, 8)
		w.Jmp(w.step)
	})
}

// word emits dst = the word at m.
func (w *walker) word(dst Reg, m Mem) { w.load(spaceAny, 8, dst, m, w.unread) }

// caller emits the way to the caller's frame by the rule in EDX.
func (w *walker) caller(whole Label) {
	link, other, byFP, have := w.Label(), w.Label(), w.Label(), w.Label()
	cfa := w.s1()
	w.MovRR(4, RAX, RDX)
	w.OpRI(OpAnd, 4, RAX, 1<<ruleFP-1)
	w.Jcc(CondE, w.unknown)
	w.OpRI(OpCmp, 4, RAX, int32(objfile.FrameLink))
	w.Jcc(CondE, link)
	w.Jcc(CondA, other)
	w.MovSXR(4, cfa, RDX)
	w.ShiftRI(Sar, 8, cfa, ruleOff)
	w.OpRI(OpCmp, 4, RAX, int32(objfile.FrameBySP))
	w.Jcc(CondNE, byFP)
	w.Lea(cfa, AtIndex(w.sp, cfa, 8, 0))
	w.Bind(have)
	w.OpRR(OpCmp, 8, cfa, w.sp)
	w.Jcc(CondBE, w.bad)
	w.TestRI(4, cfa, 7)
	w.Jcc(CondNE, w.bad)
	w.callersFP(cfa)
	w.MovRR(8, w.sp, cfa)
	w.word(w.pc, At(w.sp, -8))
	w.Jmp(w.step)
	w.after(func() {
		w.Bind(byFP)
		w.Lea(cfa, AtIndex(w.bp, cfa, 8, 0))
		w.OpRI(OpCmp, 4, RAX, int32(objfile.FrameByFP))
		w.Jcc(CondE, have)
		w.word(cfa, At(cfa, 0))
		w.Jmp(have)
		w.Bind(other)
		w.OpRI(OpCmp, 4, RAX, int32(objfile.FrameEnd))
		w.Jcc(CondE, whole)
		w.interrupted()
	})
	w.Bind(link)
	w.TestRR(8, w.bp, w.bp)
	w.Jcc(CondE, whole)
	w.TestRI(4, w.bp, 7)
	w.Jcc(CondNE, w.bad)
	w.word(w.pc, At(w.bp, 8))
	w.Lea(w.sp, At(w.bp, 16))
	w.word(w.bp, At(w.bp, 0))
	w.Jmp(w.step)
}

// callersFP emits bp = the caller's frame pointer; 0 where it can not be read: no frame may need it. Compilers tell nothing of its
// return into the register where a frame was aligned. It clobbers RAX and RDX.
func (w *walker) callersFP(cfa Reg) {
	same, atFP, lost := w.Label(), w.Label(), w.Label()
	w.MovRR(4, RAX, RDX)
	w.ShiftRI(Shr, 4, RAX, ruleFP)
	w.OpRI(OpAnd, 4, RAX, 1<<(ruleFPOff-ruleFP)-1)
	w.Jcc(CondE, same)
	w.ShiftRI(Shl, 4, RDX, 32-ruleOff)
	w.ShiftRI(Sar, 4, RDX, 32-ruleOff+ruleFPOff)
	w.MovSXR(4, RDX, RDX)
	w.OpRI(OpCmp, 4, RAX, int32(objfile.FPAtCFA))
	w.Jcc(CondNE, atFP)
	w.load(spaceAny, 8, w.bp, AtIndex(cfa, RDX, 8, 0), lost)
	w.Bind(same)
	w.after(func() {
		w.Bind(atFP)
		w.OpRI(OpCmp, 4, RAX, int32(objfile.FPLost))
		w.Jcc(CondE, lost)
		w.load(spaceAny, 8, w.bp, AtIndex(w.bp, RDX, 8, 0), lost)
		w.Jmp(same)
		w.Bind(lost)
		w.MovRI(w.bp, 0)
		w.Jmp(same)
	})
}

// interrupted emits the step to what a signal has interrupted: its address is that of an instruction, and no return address.
func (w *walker) interrupted() {
	full := w.Label()
	w.word(w.pc, At(w.sp, contextIP))
	w.word(w.bp, At(w.sp, contextBP))
	w.word(w.sp, At(w.sp, contextSP))
	w.MovRI(RAX, fetch.Interrupted)
	w.OpRR(OpOr, 8, RAX, w.pc)
	w.take(RAX, full)
	w.Jmp(w.find)
	w.Bind(full)
	w.end(fetch.StackFull)
}

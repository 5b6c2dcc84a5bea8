package amd64

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// A probe may stand in the functions that the code calls, or in what serves their faults. There
// its own reading would hit it again without end. So a frame that calls sets a word of its CPU's
// table (ring.ShGuard) to a number for the task and the kind of interrupt that it runs in, and one
// that finds its own number set has been called by it: its hits are missed and counted (also
// those in the scheduler that takes the CPU away from it there). Tasks that fall on the same word
// may clear each other's, if one takes the CPU from the other there: then one more level is
// entered. What runs on top of one another on a CPU without a change of the task, softirqs,
// interrupts and NMIs, has different words.
const (
	guardWords = 64
	guardShift = 8 // tasks are some KB apart
)

// guardContext are the bits of a preemption count that tell of interrupts, softirqs and NMIs. The
// highest, which tells something else, is not among them.
func guardContext(shift uint8) int32 {
	return int32((preemptServing | uint32(0xff)<<shift) &^ (1 << 31))
}

// guard emits the setting of the word. It clobbers RAX, RDX and S1.
func (f *frame) guard(ws []arch.ProbeOp, skip Label) {
	again := f.Label()
	f.kernelShard()
	f.MovRM(4, RAX, AtGS(f.w.Kernel.Preempt))
	shift := hardirqShift(f.w.Kernel)
	f.OpRI(OpAnd, 4, RAX, guardContext(shift))
	f.OpRM(OpAdd, 8, RAX, AtGS(f.w.Kernel.Current))
	f.MovRR(4, RDX, RAX)
	f.ShiftRI(Shr, 4, RDX, shift-8) // an interrupt's bit onto a softirq's
	f.OpRR(OpAdd, 4, RDX, RAX)
	f.ShiftRI(Shr, 4, RDX, guardShift-3)
	f.OpRI(OpAnd, 4, RDX, 8*(guardWords-1))
	word := f.inShard(ring.ShGuard)
	word.Index, word.Scale = RDX, 1
	f.Lea(RDX, word)
	f.OpMR(OpCmp, 8, At(RDX, 0), RAX)
	f.Jcc(CondE, again)
	f.MovMR(8, At(RDX, 0), RAX)
	f.MovMR(8, f.tempAt(tempGuard), RDX)
	f.after(func() {
		f.Bind(again)
		for i := range ws {
			f.countMissed(&ws[i])
		}
		f.Jmp(skip)
	})
}

// countMissed emits the counting of work that is left out. A return gives back the instance that
// its entry has taken; one whose entry was missed is counted already.
func (f *frame) countMissed(w *arch.ProbeOp) {
	if w.Role != arch.RoleExit || w.Pool == nil {
		f.bump(w.Event, ring.CtrMissed)
		return
	}
	none := f.Label()
	f.salted(w.Instance, none)
	f.seek(w.Pool, none)
	f.giveBack(w.Pool)
	f.bump(w.Event, ring.CtrMissed)
	f.Bind(none)
}

// unguard emits the clearing of the word. It clobbers RDX.
func (f *frame) unguard() {
	f.MovRM(8, RDX, f.tempAt(tempGuard))
	f.MovMI(8, At(RDX, 0), 0)
}

// space is whose memory a load in a kernel reads.
type space uint8

const (
	spaceAny    space = iota // the user's below Kernel.UserEnd, else the kernel's
	spaceKernel              // the kernel's
	spaceUser                // the user's
)

// spaceOf is the space of an argument's load i (see fetch.Arg.User).
func spaceOf(a *fetch.Arg, i int) space {
	if a.User>>i&1 != 0 {
		return spaceUser
	}
	return spaceAny
}

// stringSpace is where the characters of an argument's strings are.
func stringSpace(a *fetch.Arg) space {
	if a.Store == fetch.StorePtrs {
		return spaceOf(a, len(a.Derefs))
	}
	return spaceOf(a, len(a.Derefs)-1)
}

// stackShift is log2 of the bytes of a kernel's stack (THREAD_SIZE of arch/x86).
const stackShift = 14

// tempBuf is where numbers are read to.
const tempBuf = tempTID

// callIn emits the call of one function for a user's memory and of another for the
// kernel's; the address is in RSI. It clobbers RAX before the call.
func (f *frame) callIn(in space, user, kernel uint64) {
	switch in {
	case spaceUser:
		f.CallAddr(user)
	case spaceKernel:
		f.CallAddr(kernel)
	default:
		f.bySpace(RSI, func() { f.CallAddr(kernel) }, func() { f.CallAddr(user) })
	}
}

// bySpace emits code for an address of the kernel, and out of line code for one of the
// user. It clobbers RAX.
func (f *frame) bySpace(addr Reg, kernel, user func()) {
	low, back := f.Label(), f.Label()
	f.MovRI(RAX, f.w.Kernel.UserEnd)
	f.OpRR(OpCmp, 8, addr, RAX)
	f.Jcc(CondB, low)
	kernel()
	f.Bind(back)
	f.after(func() {
		f.Bind(low)
		user()
		f.Jmp(back)
	})
}

// read emits the reading of size bytes at the address in RSI to the place in RDI; then RAX
// is not 0, and the zero flag not set, if it faulted.
func (f *frame) read(in space, size int) {
	f.MovRI(RDX, uint64(size))
	f.callIn(in, f.w.Kernel.ReadUser, f.w.Kernel.ReadKernel)
	f.TestRR(8, RAX, RAX)
}

// kernelLoad is load in a kernel.
func (f *frame) kernelLoad(in space, size int, dst Reg, m Mem, fault Label) {
	if m.Kind == MemBase && m.Base != RSP && m.Scale == 0 && m.Disp == 0 {
		f.MovRR(8, RSI, m.Base)
	} else {
		f.Lea(RSI, m)
	}
	f.Lea(RDI, f.tempAt(tempBuf))
	f.read(in, size)
	f.Jcc(CondNE, fault)
	f.MovZXM(size, dst, f.tempAt(tempBuf))
}

// onKernelStack emits the check that a word above the stack pointer is of the same stack
// (regs_get_kernel_stack_nth of arch/x86/include/asm/ptrace.h).
func (f *frame) onKernelStack(m Mem, fault Label) {
	f.Lea(RAX, m)
	f.Lea(RDX, At(RSP, f.drop))
	f.OpRR(OpXor, 8, RAX, RDX)
	f.ShiftRI(Shr, 8, RAX, stackShift)
	f.Jcc(CondNE, fault)
}

// arrayAddress emits RAX = the address of an array; 0, which nobody can read, if a load on
// the way to it faults.
func (f *frame) arrayAddress(a *fetch.Arg, s *storing) {
	fault, done := f.Label(), f.Label()
	f.address(RAX, a, s, fault)
	f.Bind(done)
	f.zeroOn(fault, done)
}

// kernelArray emits the reading of the array at the address in temporary t into the record:
// at once, or where that faults each element, 0 if its own load faults.
func (f *frame) kernelArray(a *fetch.Arg, t int, rec Reg, at int32) {
	in, bytes := spaceOf(a, len(a.Derefs)-1), int32(a.Size*a.Count)
	single, done, i := f.Label(), f.Label(), f.s1()
	f.MovRM(8, RSI, f.tempAt(t))
	f.Lea(RDI, At(rec, at))
	f.read(in, int(bytes))
	f.Jcc(CondNE, single)
	f.Bind(done)
	f.after(func() {
		f.Bind(single)
		f.MovRI(i, 0)
		loop, ok := f.Here(), f.Label()
		f.MovRM(8, RSI, f.tempAt(t))
		f.OpRR(OpAdd, 8, RSI, i)
		f.Lea(RDI, f.tempAt(tempBuf))
		f.read(in, a.Size)
		f.MovRM(8, RDX, f.tempAt(tempBuf))
		f.Jcc(CondE, ok)
		f.MovRI(RDX, 0)
		f.Bind(ok)
		f.MovMR(a.Size, AtIndex(rec, i, 1, at), RDX)
		f.OpRI(OpAdd, 4, i, int32(a.Size))
		f.OpRI(OpCmp, 4, i, bytes)
		f.Jcc(CondB, loop)
		f.Jmp(done)
	})
}

// pieces emits RAX = the length with its NUL of the kernel's string in temporary t, or more
// than the most if it is longer. The string is copied to the stack piece by piece: all but
// the last byte of a full piece is text.
func (f *frame) pieces(s *storing, t int, fault Label) {
	cur, more := f.s1(), f.Label()
	first := min(chunkBytes, s.cap)
	f.MovRM(8, cur, f.tempAt(t))
	f.MovRI(RDX, uint64(first))
	next := f.Here()
	f.Lea(RDI, At(RSP, f.chunk))
	f.MovRR(8, RSI, cur)
	f.CallAddr(f.w.Kernel.StringKernel)
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondS, fault)
	f.OpRI(OpCmp, 8, RAX, chunkBytes)
	f.Jcc(CondE, more)
	f.OpRR(OpAdd, 8, RAX, cur)
	f.OpRM(OpSub, 8, RAX, f.tempAt(t))
	end := f.Here()
	f.after(func() {
		whole := f.Label()
		f.Bind(more)
		f.Lea(cur, At(cur, chunkBytes-1))
		f.MovRI(RDX, uint64(s.cap))
		f.OpRM(OpAdd, 8, RDX, f.tempAt(t))
		f.OpRR(OpSub, 8, RDX, cur) // what the limit leaves
		f.MovRR(8, RAX, RDX)
		f.OpRI(OpCmp, 8, RDX, chunkBytes)
		f.Jcc(CondLE, whole)
		f.MovRI(RDX, chunkBytes)
		f.Bind(whole)
		f.OpRI(OpCmp, 8, RAX, 1)
		f.Jcc(CondG, next)
		f.MovRI(RAX, uint64(s.cap))
		f.Jmp(end)
	})
}

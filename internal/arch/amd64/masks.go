package amd64

import "kprobes.dev/kprobes/internal/arch"

// In a Go program with C code the mask of a thread changes only in C, and the runtime counts the thread's calls of C. So where the kernel has
// answered that a thread blocks no signal of a fault, a number that is made of the thread and its count is put in a table (arch.Masks), and nothing is asked
// as long as that number is the thread's. Nothing is put there, and nothing looked up, by a thread that C has made, or from C: it may go on
// in C between two hits without a call. A signal handler of the program has the mask that it is run with, and gives the one before it back. Two threads
// that have one slot take it from each other, and ask more often.

// maskCode is threadMask.
type maskCode func(f *frame, known Label)

// MaskCode is arch.Masks.Code.
func MaskCode() any { return maskCode(threadMask) }

// threadMask emits the look in the table of masks, and the question where it does not tell. It clobbers what signalMask does, and S1.
func threadMask(f *frame, known Label) {
	ask, first := f.Label(), f.Label()
	f.MovMI(8, f.tempAt(tempMask), 0)
	told(f, ask)
	f.Jcc(CondNE, first)
	f.after(func() {
		f.Bind(first)
		f.signalMask()
		f.TestMI(4, f.tempAt(tempMask), faultMask)
		f.Jcc(CondNE, known)
		again := f.Label()
		maskNumber(f, again)
		f.MovMR(8, At(f.s1(), 0), RDX)
		f.Bind(again)
		f.Jmp(known)
		f.Bind(ask)
		f.signalMask()
		f.Jmp(known)
	})
}

// told emits a comparison that says "equal" if the table tells that the thread has the signals of a fault open. A thread that has no number, or may have another
// handler, goes on at none.
func told(f *frame, none Label) {
	f.MovRI(RAX, f.w.Handled)
	f.OpMI(OpCmp, 4, At(RAX, 0), 0)
	f.Jcc(CondNE, none)
	maskNumber(f, none)
	f.OpMR(OpCmp, 8, At(f.s1(), 0), RDX)
}

// maskNumber emits RDX = the number of the thread, which is not 0, and S1 = its slot. It clobbers RAX. A thread that has none goes on at none.
func maskNumber(f *frame, none Label) {
	k := f.w.Masks
	f.MovRM(8, RAX, AtFS(f.w.Go.TLS))
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondE, none)
	f.MovRM(8, RAX, At(RAX, f.w.Go.M))
	f.OpMI(OpCmp, 4, At(RAX, k.NCgo), 0)
	f.Jcc(CondNE, none)
	f.OpMI(OpCmp, 1, At(RAX, k.IsExtra), 0)
	f.Jcc(CondNE, none)
	f.MovRM(8, RDX, At(RAX, f.w.Go.ProcID))
	f.ShiftRI(Shl, 8, RDX, 40) // the thread's id has 22 bits
	f.OpRR(OpAdd, 8, RDX, RAX)
	f.MovRI(f.s1(), hashFactor)
	f.ImulRR(8, RDX, f.s1())
	f.OpRM(OpAdd, 8, RDX, At(RAX, k.NCgoCall))
	f.Jcc(CondE, none)
	f.ImulRR(8, RAX, f.s1())
	f.ShiftRI(Shr, 8, RAX, 64-arch.MaskSlots)
	f.MovRI(f.s1(), k.Table)
	f.Lea(f.s1(), AtIndex(f.s1(), RAX, 8, 0))
}

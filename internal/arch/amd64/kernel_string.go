package amd64

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// A kernel's string is read twice: to be measured, before room is reserved for it in the ring,
// and to be copied there. The first string of a record is staged: it is copied to the stack at
// once, and if it fits there the copy is what goes into the ring. One that is longer than a
// piece is measured and copied like the others.

// stagedArg is the string of a work's record that is staged; nil: there is none.
func (w writer) stagedArg(k *arch.ProbeOp) *fetch.Arg {
	if w.Kernel == nil || k.Role == arch.RoleEntry || k.Count || k.Call != nil || k.Prog == nil {
		return nil
	}
	for i := range k.Prog.Args {
		if a := &k.Prog.Args[i]; a.Store == fetch.StoreString {
			return a
		}
	}
	return nil
}

// kernelMeasure emits the measuring of the string at RAX. The address of a string that was
// staged becomes 0.
func (f *frame) kernelMeasure(a *fetch.Arg, s *storing, t int, fault Label) {
	in := stringSpace(a)
	f.MovMR(8, f.tempAt(t), RAX)
	if a != f.staged {
		f.measureAt(in, s, t, fault)
		f.clamp(s, t)
		return
	}
	long, sized, empty, there := f.Label(), f.Label(), f.Label(), f.Label()
	most := min(chunkBytes, s.cap)
	f.MovRR(8, RSI, RAX)
	f.Lea(RDI, At(RSP, f.stage))
	f.MovRI(RDX, uint64(most))
	f.callIn(in, f.w.Kernel.StringUser, f.w.Kernel.StringKernel)
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondLE, empty)
	f.Bind(there)
	f.OpRI(OpCmp, 8, RAX, most)
	f.Jcc(CondAE, long)
	f.MovMI(8, f.tempAt(t), 0)
	f.Bind(sized)
	f.clamp(s, t)
	f.after(func() {
		f.Bind(empty) // strncpy_from_user_nofault gives 0 for a string that is only its NUL
		f.Jcc(CondS, fault)
		f.MovRI(RAX, 1)
		f.Jmp(there)
		f.Bind(long)
		f.MovRM(8, RAX, f.tempAt(t))
		f.measureAt(in, s, t, fault)
		f.Jmp(sized)
	})
}

// measureAt emits RAX = the length with its NUL of the string whose address is in RAX and in
// temporary t.
func (f *frame) measureAt(in space, s *storing, t int, fault Label) {
	user := func() {
		f.MovRM(8, RDI, f.tempAt(t))
		f.MovRI(RSI, uint64(s.cap))
		f.CallAddr(f.w.Kernel.LengthUser)
		f.TestRR(8, RAX, RAX)
		f.Jcc(CondE, fault)
	}
	switch in {
	case spaceUser:
		user()
	case spaceKernel:
		f.pieces(s, t, fault)
	default:
		f.MovRR(8, RDX, RAX)
		f.bySpace(RDX, func() { f.pieces(s, t, fault) }, user)
	}
}

// kernelCopy is copyString in a kernel. Whatever the string has become since it was
// measured, no more is written than was reserved for it.
func (f *frame) kernelCopy(a *fetch.Arg, t int, rec Reg, at int32) {
	done, fault := f.Label(), f.Label()
	f.MovRM(8, RDI, f.tempAt(tempCur))
	f.MovRR(8, RAX, RDI)
	f.ShiftRI(Shl, 8, RAX, 32)
	f.MovRM(8, RDX, f.tempAt(t+1))
	f.OpRR(OpOr, 8, RAX, RDX)
	f.MovMR(8, At(rec, at), RAX)
	f.TestRR(8, RDX, RDX)
	f.Jcc(CondE, done)
	f.Lea(RAX, At(RDX, 7))
	f.OpRI(OpAnd, 8, RAX, -8)
	f.OpMR(OpAdd, 8, f.tempAt(tempCur), RAX)
	f.OpRR(OpAdd, 8, RDI, rec)
	f.MovRM(8, RSI, f.tempAt(t))
	read := func() {
		f.callIn(stringSpace(a), f.w.Kernel.StringUser, f.w.Kernel.StringKernel)
		f.TestRR(8, RAX, RAX)
		f.Jcc(CondS, fault)
	}
	if a == f.staged {
		f.copyStaged(read)
	} else {
		read()
	}
	f.Bind(done)
	f.after(func() {
		f.Bind(fault)
		f.MovMI(4, At(rec, at), 0)
		f.Jmp(done)
	})
}

// copyStaged emits the copying of RDX bytes from the stage to RDI; where the address in RSI is
// not 0 the string was too long for it, and is read anew.
func (f *frame) copyStaged(read func()) {
	long, back := f.Label(), f.Label()
	f.TestRR(8, RSI, RSI)
	f.Jcc(CondNE, long)
	f.Lea(RSI, At(RSP, f.stage))
	f.MovRR(8, RCX, RDX)
	f.Raw(0xf3, 0xa4) // rep movsb: DF is clear
	f.Bind(back)
	f.after(func() {
		f.Bind(long)
		read()
		f.Jmp(back)
	})
}

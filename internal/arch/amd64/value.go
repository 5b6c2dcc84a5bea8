package amd64

import (
	"math"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

func counted(a *fetch.Arg) bool { return a.Counted() }

func isString(a *fetch.Arg) bool {
	return a.Store == fetch.StoreString || a.Store == fetch.StoreCounted || a.Store == fetch.StorePtrs
}

// argTemps counts the temporaries of an argument: a pointer and a length for each
// string, the words of a span, one word for a value that is loaded, and in a kernel one for an array's address.
func (w writer) argTemps(a *fetch.Arg) int {
	switch {
	case a.Store == fetch.StorePtrs:
		return 2 * a.Count
	case isString(a), a.Store == fetch.StoreComm:
		return 2
	case a.Store == fetch.StoreSpan:
		return fetch.SpanSize / 8
	case a.Store == fetch.StoreValue && loads(a), a.Store == fetch.StoreArray && w.Kernel != nil:
		return 1
	}
	return 0
}

// loads says whether the argument's value takes a load that may fault, or a check that may fail.
func loads(a *fetch.Arg) bool {
	return len(a.Derefs) > 0 || a.Base.Kind == fetch.BaseStack || len(a.Checks) > 0
}

// load emits dst = size bytes at m, zero-extended. If the load faults the code goes on at
// fault. In a kernel m is in the space in.
func (f *frame) load(in space, size int, dst Reg, m Mem, fault Label) {
	if f.w.Kernel != nil {
		f.kernelLoad(in, size, dst, m, fault)
		return
	}
	f.check(size, m, fault)
	f.plainLoad(size, dst, m, fault)
}

// plainLoad is load without check, which asks the kernel that runs the program whether it may read the memory.
func (f *frame) plainLoad(size int, dst Reg, m Mem, fault Label) {
	f.fixups = append(f.fixups, pendingFixup{at: f.Addr(), to: fault})
	switch size {
	case 1, 2:
		f.MovZXM(size, dst, m)
	default:
		f.MovRM(size, dst, m)
	}
}

// base emits dst = the base's value at the point.
func (f *frame) base(dst Reg, b fetch.Base, fault Label) {
	switch b.Kind {
	case fetch.BaseReg:
		f.register(dst, b)
	case fetch.BaseStack:
		m := At(RSP, f.drop+8*int32(b.N))
		if f.w.Kernel != nil {
			f.onKernelStack(m, fault)
		}
		f.load(spaceKernel, 8, dst, m, fault)
	case fetch.BaseDepth:
		f.depth(dst)
	default:
		f.MovRI(dst, b.Imm)
	}
}

// depth emits dst = how many bytes below the high end of its stack the stack pointer is; where there is no goroutine the stack pointer,
// negated. It counts up as the stack grows.
func (f *frame) depth(dst Reg) {
	if f.w.Go == nil {
		f.MovRI(dst, 0)
	} else {
		none := f.Label()
		f.MovRM(8, dst, AtFS(f.w.Go.TLS))
		f.TestRR(8, dst, dst)
		f.JccShort(CondE, none)
		f.MovRM(8, dst, At(dst, f.w.Go.StackHi))
		f.Bind(none)
	}
	f.OpRR(OpSub, 8, dst, RSP)
	f.Lea(dst, At(dst, -f.drop))
}

func (f *frame) register(dst Reg, b fetch.Base) {
	switch {
	case b.Reg == fetch.RegIP:
		f.MovRI(dst, f.addr)
	case b.Reg == fetch.RegFlags:
		f.MovRM(8, dst, At(RSP, f.user))
	case b.Reg == fetch.RegConst:
		f.MovRI(dst, b.Imm)
	case Reg(b.Reg) == RSP:
		f.Lea(dst, At(RSP, f.drop))
	default:
		r := Reg(b.Reg)
		if slot, ok := f.slots.of(r); ok {
			f.MovRM(8, dst, At(RSP, slot))
		} else if r != dst {
			f.MovRR(8, dst, r)
		}
	}
}

// argBase emits dst = the argument's base, from the point or from the values that
// were saved at entry (temporaries from entryTemp).
func (f *frame) argBase(dst Reg, a *fetch.Arg, b fetch.Base, s *storing, fault Label) {
	if s != nil && s.w.Role == arch.RoleLeft && s.w.Left == nil && a.AtReturn() { // there is no return
		if loads(a) {
			f.Jmp(fault)
		} else {
			f.MovRI(dst, 0)
		}
		return
	}
	if !a.AtEntry {
		f.base(dst, b, fault)
		return
	}
	for i, o := range s.w.Prog.EntryBases() {
		if o == b {
			f.MovRM(8, dst, f.tempAt(s.entry+i))
		}
	}
}

// checks emits the argument's checks: control goes to fault where one does not hold. It clobbers RAX.
func (f *frame) checks(a *fetch.Arg, s *storing, fault Label) {
	for i := range a.Checks {
		c := &a.Checks[i]
		f.argBase(RAX, a, c.Base, s, fault)
		for _, d := range c.Derefs {
			f.TestRR(8, RAX, RAX)
			f.Jcc(CondE, fault)
			f.addDisp(RAX, d)
			f.load(spaceAny, 8, RAX, At(RAX, 0), fault)
		}
		want := f.s2()
		f.Push(want)
		f.MovRI(want, c.Want)
		f.OpRR(OpCmp, 8, RAX, want)
		f.Pop(want)
		f.Jcc(CondNE, fault)
	}
}

// address emits dst = the address that the argument's last dereference reads. It clobbers RAX.
func (f *frame) address(dst Reg, a *fetch.Arg, s *storing, fault Label) {
	f.checks(a, s, fault)
	f.argBase(dst, a, a.Base, s, fault)
	last := len(a.Derefs) - 1
	for i, d := range a.Derefs {
		f.addDisp(dst, d)
		if i < last {
			f.load(spaceOf(a, i), 8, dst, At(dst, 0), fault)
		}
	}
}

// addDisp emits dst += d.
func (f *frame) addDisp(dst Reg, d int64) {
	switch {
	case d == 0:
	case d == int64(int32(d)):
		f.Lea(dst, At(dst, int32(d)))
	default:
		other := f.s2()
		if dst == other {
			other = RDX
		}
		f.Push(other)
		f.MovRI(other, uint64(d))
		f.OpRR(OpAdd, 8, dst, other)
		f.Pop(other)
	}
}

// value emits RAX = the argument's value, zero-extended; 0 if a load faults or a check does not hold.
func (f *frame) value(a *fetch.Arg, s *storing) {
	if s.w.Role == arch.RoleLeft && a.Failed {
		f.MovRI(RAX, 1)
		return
	}
	fault, done := f.Label(), f.Label()
	if len(a.Derefs) == 0 {
		f.checks(a, s, fault)
		f.argBase(RAX, a, a.Base, s, fault)
		f.narrow(a.Size)
	} else {
		f.address(RAX, a, s, fault)
		f.load(spaceOf(a, len(a.Derefs)-1), a.Size, RAX, At(RAX, 0), fault)
	}
	f.Bind(done)
	f.zeroOn(fault, done)
}

// zeroOn puts code out of line that makes RAX 0 where a load faulted.
func (f *frame) zeroOn(fault, done Label) {
	f.after(func() {
		f.Bind(fault)
		f.MovRI(RAX, 0)
		f.Jmp(done)
	})
}

func (f *frame) narrow(size int) {
	switch size {
	case 1, 2:
		f.MovZXR(size, RAX, RAX)
	case 4:
		f.MovRR(4, RAX, RAX)
	}
}

// stringCap is the most bytes that each string of a program may take so that all fit
// a record whose other parts take fixed bytes.
func stringCap(p *fetch.Program, fixed int) int32 {
	n := 0
	for i := range p.Args {
		switch a := &p.Args[i]; {
		case a.Store == fetch.StorePtrs:
			n += a.Count
		case isString(a):
			n++
		}
	}
	if n == 0 {
		return 0
	}
	free := (maxRecordBytes - fixed) / n &^ 7
	return int32(min(free, fetch.MaxString, math.MaxInt32))
}

package amd64

// A kernel walks over its own stack: it has the tables for that, or keeps frame pointers, and knows the stacks of interrupts. Generated
// code calls it with the registers of the point, so that the walk begins there.

// Offsets in struct pt_regs (arch/x86/include/asm/ptrace.h).
const (
	regsBP    = 32
	regsIP    = 128
	regsCS    = 136
	regsFlags = 144
	regsSP    = 152
	regsSS    = 160
	regsSize  = 168
)

// kernelStackTrace emits the storing of the stack into the record at rec. The first address is that of the point.
func (f *frame) kernelStackTrace(s *storing, rec Reg) {
	at, n := s.args+int32(s.w.Prog.StackOff), int32(s.w.Prog.Stack)
	regs := func(off int32) Mem { return At(RSP, f.regs+off) }
	f.MovRI(RAX, 0)
	for off := int32(0); off < regsSize; off += 8 {
		f.MovMR(8, regs(off), RAX)
	}
	f.MovMR(8, regs(regsBP), RBP)
	f.MovRI(RAX, f.addr)
	f.MovMR(8, regs(regsIP), RAX)
	f.MovMI(8, regs(regsCS), kernelCS)
	f.MovMI(8, regs(regsSS), kernelDS)
	f.MovRM(8, RAX, At(RSP, f.user))
	f.MovMR(8, regs(regsFlags), RAX)
	f.Lea(RAX, At(RSP, f.drop))
	f.MovMR(8, regs(regsSP), RAX)
	f.Lea(RDI, regs(0))
	f.Lea(RSI, At(rec, at+8))
	f.MovRI(RDX, uint64(n))
	f.MovRI(RCX, 1)
	f.CallAddr(f.w.Kernel.Callers)
	f.MovRR(4, RAX, RAX)
	full := f.Label()
	f.OpRI(OpCmp, 4, RAX, n)
	f.Jcc(CondB, full)
	f.MovRI(RDX, 1<<32) // fetch.StackFull
	f.OpRR(OpOr, 8, RAX, RDX)
	f.Bind(full)
	f.MovMR(8, At(rec, at), RAX)
}

// Selectors of a kernel's code and data (arch/x86/include/asm/segment.h).
const (
	kernelCS = 0x10
	kernelDS = 0x18
)

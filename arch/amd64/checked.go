package amd64

// A fault in a load is caught by the resident handler, unless the thread has the signal
// blocked: then the kernel kills the process. Where that may be, loads are checked ones:
// rt_sigprocmask with an impossible first argument copies 8 bytes from the address and
// changes nothing. It answers EFAULT if they are not there, else EINVAL. What is mapped at
// the check can be gone at the load; the handler catches that where it can.

const (
	sysRtSigprocmask = 14
	errFault         = -14
)

// checkSaved are the registers that a check uses or that its system call clobbers.
var checkSaved = []Reg{RAX, RCX, RDX, RSI, RDI, R10, R11}

// check emits the kernel's look at the memory that a load of size bytes at m reads;
// control goes to fault if it is not there. Only the flags change.
func (f *frame) check(size int, m Mem, fault Label) {
	if !f.w.CheckLoads {
		return
	}
	f.look(m, fault)
	if size == 1 {
		return
	}
	within := f.Label()
	last := m
	last.Disp += int32(size - 1)
	f.Push(RAX)
	f.Lea(RAX, below(last, 8))
	f.OpRI(OpAnd, 4, RAX, pageSize-1)
	f.OpRI(OpCmp, 4, RAX, int32(size-1))
	f.Pop(RAX)
	f.Jcc(CondAE, within)
	f.look(last, fault)
	f.Bind(within)
}

// below is m after n bytes were pushed.
func below(m Mem, n int32) Mem {
	if m.Kind == MemBase && m.Base == RSP {
		m.Disp += n
	}
	return m
}

// look emits one check of the aligned word that holds the byte at m.
func (f *frame) look(m Mem, fault Label) {
	for _, r := range checkSaved {
		f.Push(r)
	}
	f.Lea(RSI, below(m, int32(8*len(checkSaved))))
	f.OpRI(OpAnd, 8, RSI, -8)
	set := f.Label()
	f.Jcc(CondNE, set)
	f.MovRI(RSI, 8) // a null pointer would tell the kernel that there is nothing to be read; the page is the same
	f.Bind(set)
	f.MovRI(RDI, 0xffffffff)
	f.MovRI(RDX, 0)
	f.MovRI(R10, 8)
	f.MovRI(RAX, sysRtSigprocmask)
	f.Syscall()
	f.OpRI(OpCmp, 8, RAX, errFault)
	for i := len(checkSaved) - 1; i >= 0; i-- {
		f.Pop(checkSaved[i])
	}
	f.Jcc(CondE, fault)
}

// nextPage emits a check where a string that is being measured enters a page.
func (f *frame) nextPage(cur Reg, fault Label) {
	if !f.w.CheckLoads {
		return
	}
	same := f.Label()
	f.TestRI(4, cur, pageSize-1)
	f.Jcc(CondNE, same)
	f.check(1, At(cur, 0), fault)
	f.Bind(same)
}

// checkSpan emits the check of every page of a counted string from src to the length
// that the difference of tempEnd and RDX tells.
func (f *frame) checkSpan(src Reg, fault, done Label) {
	if !f.w.CheckLoads {
		return
	}
	loop := f.Label()
	f.MovRM(8, RAX, f.tempAt(tempEnd))
	f.OpRR(OpSub, 8, RAX, RDX)
	f.Jcc(CondE, done)
	f.OpRR(OpAdd, 8, RAX, src) // the end of the string in the program
	f.Push(src)
	f.Bind(loop)
	bad, good := f.Label(), f.Label()
	f.check(1, At(src, 0), bad)
	f.OpRI(OpOr, 8, src, pageSize-1)
	f.IncR(8, src)
	f.OpRR(OpCmp, 8, src, RAX)
	f.Jcc(CondB, loop)
	f.Pop(src)
	f.Jmp(good)
	f.Bind(bad)
	f.Pop(src)
	f.Jmp(fault)
	f.Bind(good)
}

package amd64

import (
	"math"
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// A fault in a load is caught by the resident handler, unless the thread has the signal
// blocked: then the kernel kills the process; or the program has put a handler of its own in
// its place. What a thread blocks only the kernel knows, and it may be otherwise at the next hit. So a record
// with several loads that may fault asks for that first, once, and for the handler where the program may have
// changed it (arch.CodegenEnv.Handled). Where the mask holds a signal of a fault, or the handler is not ours, and only
// there, each load is a checked one: rt_sigprocmask with an impossible first argument copies 8 bytes
// from the address and changes nothing. It answers EFAULT if they are not there, else
// EINVAL. A record with one load makes it a checked one always. What is mapped at the check can be gone at the load;
// the handler catches that where it can. A signal between the question and the load changes nothing: the mask is as
// it was when its handler has returned.
//
// A work whose faults the handler catches from a moment on (arch.CodegenEnv.Asks) asks nothing beforehand: until then each
// load is a checked one.

const (
	sysRtSigprocmask = 14
	sigSegv          = 11
	sigBus           = 7
	sigactionSize    = 32 // struct kernel_sigaction, the handler first
	errFault         = -14
	sigBlock         = 0 // SIG_BLOCK
	pageShift        = 12
)

// faultMask holds SIGBUS and SIGSEGV, as a signal mask.
const faultMask = 1<<(7-1) | 1<<(11-1)

// checkSaved are the registers that a check uses or that its system call clobbers.
var checkSaved = []Reg{RAX, RCX, RDX, RSI, RDI, R10, R11}

// anywhere is the reach of loads that go elsewhere than a little above the stack pointer.
const anywhere = math.MaxInt32

// reach tells how many bytes above the point's stack pointer the loads of a work end; 0:
// it makes none.
func reach(w *arch.ProbeOp) int32 {
	far := int64(0)
	switch {
	case w.Role == arch.RoleEntry:
		for _, b := range w.Prog.EntryBases() {
			far = max(far, baseReach(b))
		}
	case w.Prog != nil && !w.Count:
		if w.Prog.Stack > 0 {
			return anywhere
		}
		for i := range w.Prog.Args {
			far = max(far, argReach(&w.Prog.Args[i]))
		}
	}
	if far > pageSize {
		return anywhere
	}
	return int32(far)
}

func baseReach(b fetch.Base) int64 {
	switch b.Kind {
	case fetch.BaseStack:
		return 8 * (int64(b.N) + 1)
	case fetch.BaseSpan:
		return anywhere
	}
	return 0
}

func argReach(a *fetch.Arg) int64 {
	value := a.Store == fetch.StoreValue
	switch {
	case slices.ContainsFunc(a.Checks, fetch.Check.Loads):
		return anywhere
	case a.Store == fetch.StoreNone, a.Store == fetch.StoreComm, a.Saved != nil, value && a.AtEntry && len(a.Derefs) == 0:
		return 0
	case value && len(a.Derefs) == 0:
		return baseReach(a.Base)
	case value && len(a.Derefs) == 1 && !a.AtEntry && a.Base == sysV.Stack() && a.Derefs[0] >= 0:
		return a.Derefs[0] + int64(a.Size)
	}
	return anywhere
}

// ask emits the question for the thread's signal mask and the handler, into tempMask, if a load of the work
// may fault. It clobbers RAX and, of the others, those that have a slot. No load of what
// lies in one page with the frame, which has just been written, can fault.
//
// A work with one load asks nothing beforehand: the kernel looks at the address, which takes one
// question too, and a bad pointer then takes no signal, for which the stack may have no room.
func (f *frame) ask(w *arch.ProbeOp) {
	far := reach(w)
	f.looks, f.caught = false, f.w.PlainLoads || w.PlainLoads && f.w.Asks == 0 && f.w.Masks == nil
	if far == 0 || f.caught || f.w.Kernel != nil {
		return
	}
	known := f.Label()
	if far != anywhere {
		f.Lea(RAX, At(RSP, f.drop+far-1))
		f.OpRR(OpXor, 8, RAX, RSP)
		f.ShiftRI(Shr, 8, RAX, pageShift)
		f.MovMI(8, f.tempAt(tempMask), 0)
		f.Jcc(CondE, known)
	}
	switch {
	case w.PlainLoads && f.w.Masks != nil:
		f.w.Masks.Code.(maskCode)(f, known)
	case w.PlainLoads:
		f.MovRI(RAX, f.w.Asks)
		f.MovRM(8, RAX, At(RAX, 0))
		f.MovMR(8, f.tempAt(tempMask), RAX)
	case questions(w) > 1:
		f.signalMask()
	case far == anywhere:
		f.looks = true
	default:
		f.MovMI(8, f.tempAt(tempMask), -1)
	}
	f.Bind(known)
}

// questions is how many looks the loads of a work take, if none of them crosses a page.
func questions(w *arch.ProbeOp) (n int) {
	if w.Role == arch.RoleEntry {
		for _, b := range w.Prog.EntryBases() {
			n += stackLoads(b)
		}
		return n
	}
	if w.Prog.Stack > 0 {
		return math.MaxInt
	}
	for i := range w.Prog.Args {
		a := &w.Prog.Args[i]
		switch a.Store {
		case fetch.StoreNone, fetch.StoreComm:
			continue
		case fetch.StoreValue, fetch.StoreString:
		default:
			return math.MaxInt
		}
		if !a.AtEntry {
			n += stackLoads(a.Base)
		}
		n += len(a.Derefs)
		for _, c := range a.Checks {
			n += len(c.Derefs)
			if !a.AtEntry {
				n += stackLoads(c.Base)
			}
		}
	}
	return n
}

func stackLoads(b fetch.Base) int {
	switch b.Kind {
	case fetch.BaseStack:
		return 1
	case fetch.BaseSpan:
		return 2 // and more
	}
	return 0
}

// signalMask emits rt_sigprocmask(SIG_BLOCK, NULL, tempMask, 8), and the question for the
// handler. If the kernel does not answer every signal counts as blocked.
func (f *frame) signalMask() {
	f.MovMI(8, f.tempAt(tempMask), -1)
	quiet := f.Label()
	f.ifQuiet(RAX, quiet)
	var saved []Reg
	for _, r := range checkSaved {
		if _, ok := f.slots.of(r); !ok && r != RAX {
			saved = append(saved, r)
			f.Push(r)
		}
	}
	f.Lea(RDX, below(f.tempAt(tempMask), int32(8*len(saved))))
	f.MovRI(RDI, sigBlock)
	f.MovRI(RSI, 0)
	f.MovRI(R10, 8)
	f.MovRI(RAX, sysRtSigprocmask)
	f.Syscall()
	if f.w.Resident != 0 {
		f.ifHandled(func() { f.askHandler(int32(8 * len(saved))) })
	}
	for i := len(saved) - 1; i >= 0; i-- {
		f.Pop(saved[i])
	}
	f.Bind(quiet)
}

// ifHandled emits a test whether the program may have put handlers in the place of the resident ones: then control goes to what
// ask emits, out of line, and comes back here. Where it is not known ask stands in the main line.
func (f *frame) ifHandled(ask func()) {
	if f.w.Handled == 0 {
		ask()
		return
	}
	other := f.Label()
	f.MovRI(RAX, f.w.Handled)
	f.OpMI(OpCmp, 4, At(RAX, 0), 0)
	f.Jcc(CondNE, other)
	back := f.Here()
	f.after(func() {
		f.Bind(other)
		ask()
		f.Jmp(back)
	})
}

// askHandler emits rt_sigaction(SIGSEGV, NULL, …, 8), with depth bytes pushed. If it does not
// answer that our handler stands, the signal counts as blocked. It clobbers what a check does.
func (f *frame) askHandler(depth int32) {
	ours := f.Label()
	f.MovRI(RAX, 0)
	for range sigactionSize / 8 {
		f.Push(RAX)
	}
	f.MovRI(RDI, sigSegv)
	f.MovRI(RSI, 0)
	f.MovRR(8, RDX, RSP)
	f.MovRI(R10, 8)
	f.MovRI(RAX, sysRtSigaction)
	f.Syscall()
	f.MovRI(RAX, f.w.Resident)
	f.MovRM(8, RAX, At(RAX, 0))
	f.OpRM(OpCmp, 8, RAX, At(RSP, 0))
	f.Lea(RSP, At(RSP, sigactionSize))
	f.Jcc(CondE, ours)
	f.MovMI(8, below(f.tempAt(tempMask), depth), -1)
	f.Bind(ours)
}

// ifBlocked emits a test whether the thread blocks a signal of a fault: then control goes
// to what check emits, out of line, and comes back here. Where nobody has asked for that, control always
// goes there.
func (f *frame) ifBlocked(check func()) {
	if f.caught {
		return
	}
	if f.looks {
		check()
		return
	}
	blocked := f.Label()
	f.TestMI(4, f.tempAt(tempMask), faultMask)
	f.Jcc(CondNE, blocked)
	back := f.Here()
	f.after(func() {
		f.Bind(blocked)
		check()
		f.Jmp(back)
	})
}

// check emits, for a thread that blocks the signals of a fault, the kernel's look at the
// memory that a load of size bytes at m reads; control goes to fault if it is not there.
// Only the flags change.
func (f *frame) check(size int, m Mem, fault Label) {
	f.ifBlocked(func() { f.lookAll(size, m, fault) })
}

// lookAll emits the kernel's look at the size bytes at m.
func (f *frame) lookAll(size int, m Mem, fault Label) {
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
	if f.w.Quiet != 0 {
		quiet := f.Label()
		f.Push(RAX)
		f.ifQuiet(RAX, quiet)
		f.Pop(RAX)
		f.after(func() {
			f.Bind(quiet)
			f.Pop(RAX)
			f.Jmp(fault)
		})
	}
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
	if f.caught {
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
	f.ifBlocked(func() {
		f.MovRM(8, RAX, f.tempAt(tempEnd))
		f.OpRR(OpSub, 8, RAX, RDX)
		f.Jcc(CondE, done)
		f.OpRR(OpAdd, 8, RAX, src) // the end of the string in the program
		f.Push(src)
		loop, bad, good := f.Here(), f.Label(), f.Label()
		f.look(At(src, 0), bad)
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
	})
}

package amd64

import "kprobes.dev/kprobes/internal/arch"

// A thread's block (struct pthread of the C library) lies at its FS base: in it are its area for restartable
// sequences and its id. That it is the thread's own is known when a process is attached to, by asking the kernel
// about each thread, and stays so as long as nobody
//
//   - moves a thread's FS base (arch_prctl, wrfsbase), which then leads to other memory, to nothing, or to
//     the block of another thread;
//   - makes a task that runs on the memory and has the block of who makes it: clone without CLONE_SETTLS, and
//     vfork and posix_spawn, whose parent waits. The kernel registers no area for such a task (rseq_fork,
//     linux/rseq.h), so it may be preempted in the middle of a sequence, and does not begin it again.
//
// The functions of the C library that do so set the word CodegenEnv.Shared when they are called for that
// (RoleShare); from then on nothing is used of what FS leads to, in any thread of the process: records
// and counters take the locked way, and the kernel is asked for the thread's id. Whoever does it by instructions
// of its own is found in its code, and has no such word, but the locked way from the start.
//
// A new thread of the C library finds its area as memory is when it is fresh, or as the thread before it on
// that stack has left it, until it has registered: 0, or another number of a CPU. So the function
// that makes the thread marks it as not registered, as the C library does a little later itself.

// System calls, flags and codes that share looks for.
const (
	sysClone     = 56
	sysVfork     = 58
	sysPrctl     = 157
	sysArchPrctl = 158
	sysClone3    = 435
	prGetName    = 16      // PR_GET_NAME
	archSetFS    = 0x1002  // ARCH_SET_FS
	cloneVM      = 0x100   // CLONE_VM
	cloneSetTLS  = 0x80000 // CLONE_SETTLS

	cloneClearSighand = 1 // CLONE_CLEAR_SIGHAND, in the upper half of the flags
)

// Offsets in struct clone_args (linux/sched.h).
const (
	clone3Flags = 0
	clone3TLS   = 56
)

// rseqUnregistered is what an area has as its CPU before it is registered (RSEQ_CPU_ID_UNINITIALIZED).
const rseqUnregistered = -1

// ownBlock emits a test whether FS leads to the thread's own block: control goes to other if that is not sure.
// It clobbers RAX.
func (e *emitter) ownBlock(other Label) {
	if e.w.Shared == 0 {
		return
	}
	e.MovRI(RAX, e.w.Shared)
	e.OpMI(OpCmp, 4, At(RAX, 0), 0)
	e.Jcc(CondNE, other)
	if e.w.Features&FeatureFSGSBase != 0 { // every thread's block begins with its own address (System V ABI, x86-64, thread-local storage)
		e.rdfsbase(RAX)
		e.TestRR(8, RAX, RAX)
		e.Jcc(CondE, other)
		e.OpRM(OpCmp, 8, RAX, AtFS(0))
		e.Jcc(CondNE, other)
	}
}

// blockTID emits the thread's id into its temporary: from its block, or the kernel's answer.
func (f *frame) blockTID() {
	other, have := f.Label(), f.Label()
	f.ownBlock(other)
	f.MovRM(4, RAX, AtFS(f.w.TIDOff))
	f.Bind(have)
	f.MovMR(8, f.tempAt(tempTID), RAX)
	f.after(func() {
		f.Bind(other)
		f.askTID()
		f.Jmp(have)
	})
}

// askTID emits RAX = the thread's id as the kernel tells it, 0 where it may not be asked. It clobbers S1, S2 and the
// flags.
func (f *frame) askTID() {
	if f.w.NoTID {
		f.MovRI(RAX, 0)
		return
	}
	type kept struct{ r, in Reg }
	var keep []kept
	for i, r := range []Reg{RCX, R11} { // what the call clobbers beside RAX
		if _, saved := f.slots.of(r); !saved {
			keep = append(keep, kept{r, f.scratch[2+i]})
		}
	}
	for _, k := range keep {
		f.MovRR(8, k.in, k.r)
	}
	back := f.Label()
	if f.w.Quiet != 0 {
		quiet := f.Label()
		f.ifQuiet(RAX, quiet)
		f.after(func() {
			f.Bind(quiet)
			f.MovRI(RAX, 0)
			f.Jmp(back)
		})
	}
	f.MovRI(RAX, sysGettid)
	f.Syscall()
	f.Bind(back)
	for _, k := range keep {
		f.MovRR(8, k.r, k.in)
	}
}

// askName emits the thread's name, as the kernel tells it, into the temporary t and the one behind it.
func (f *frame) askName(t int) {
	f.MovMI(8, f.tempAt(t), 0)
	f.MovMI(8, f.tempAt(t+1), 0)
	if f.w.NoName {
		return
	}
	quiet := f.Label()
	f.ifQuiet(RAX, quiet)
	var saved []Reg
	for _, r := range []Reg{RCX, RSI, RDI, R11} {
		if _, ok := f.slots.of(r); !ok {
			saved = append(saved, r)
			f.Push(r)
		}
	}
	f.Lea(RSI, below(f.tempAt(t), int32(8*len(saved))))
	f.MovRI(RDI, prGetName)
	f.MovRI(RAX, sysPrctl)
	f.Syscall()
	for i := len(saved) - 1; i >= 0; i-- {
		f.Pop(saved[i])
	}
	f.Bind(quiet)
}

// share emits the work at the entry of a function that may make threads share a block.
func (f *frame) share(w *arch.ProbeOp) {
	set, done := f.Label(), f.Label()
	switch w.Share {
	case arch.ShareVfork:
		f.Jmp(set)
	case arch.ShareClone:
		f.argument(RAX, RDX)
		f.cloneFlags(set, done)
		f.MovRM(8, RAX, At(RSP, f.drop))
		f.MovRI(RDX, w.Library.Start)
		f.OpRR(OpSub, 8, RAX, RDX)
		f.MovRI(RDX, w.Library.End-w.Library.Start)
		f.OpRR(OpCmp, 8, RAX, RDX)
		f.Jcc(CondAE, set)
		f.argument(RAX, R9)
		f.unregistered(done)
	case arch.ShareClone3:
		f.argument(f.s1(), RDI)
		f.resets()
		f.MovRM(8, RAX, At(f.s1(), clone3Flags))
		f.cloneFlags(set, done)
		f.MovRM(8, RAX, At(f.s1(), clone3TLS))
		f.unregistered(done)
	case arch.ShareSyscall:
		f.anySyscall(set)
	case arch.ShareBase:
		f.argument(RAX, RDI)
		f.OpRI(OpCmp, 4, RAX, archSetFS)
		f.Jcc(CondE, set)
	case arch.ShareAction:
		f.action(RDI, RSI)
	}
	f.Bind(done)
	f.after(func() {
		f.Bind(set)
		if f.w.Shared != 0 { // else nothing is used of what FS leads to
			f.MovRI(RAX, f.w.Shared)
			f.MovMI(4, At(RAX, 0), 1)
		}
		f.Jmp(done)
	})
}

// argument emits dst = the value that a register has at the point.
func (f *frame) argument(dst, r Reg) {
	if at, saved := f.slots.of(r); saved {
		f.MovRM(8, dst, At(RSP, at))
	} else if dst != r {
		f.MovRR(8, dst, r)
	}
}

// cloneFlags emits a test of the flags in EAX: control goes to set if the new task will share memory and block,
// and to done if it shares no memory.
func (f *frame) cloneFlags(set, done Label) {
	f.TestRI(4, RAX, cloneVM)
	f.Jcc(CondE, done)
	f.TestRI(4, RAX, cloneSetTLS)
	f.Jcc(CondE, set)
}

// unregistered emits the mark of a block, at RAX, whose thread has not registered its area.
func (f *frame) unregistered(done Label) {
	if !f.w.HasRseq {
		return
	}
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondE, done)
	f.MovMI(4, At(RAX, f.w.RseqOff+rseqCPU), rseqUnregistered)
}

// anySyscall emits the look at a system call whose number is an argument.
func (f *frame) anySyscall(set Label) {
	clone, prctl, action, done := f.Label(), f.Label(), f.Label(), f.Label()
	f.argument(RAX, RDI)
	f.OpRI(OpCmp, 4, RAX, sysRtSigaction)
	f.Jcc(CondE, action)
	f.OpRI(OpCmp, 4, RAX, sysVfork)
	f.Jcc(CondE, set)
	f.OpRI(OpCmp, 4, RAX, sysClone3)
	f.Jcc(CondE, set)
	f.OpRI(OpCmp, 4, RAX, sysClone)
	f.Jcc(CondE, clone)
	f.OpRI(OpCmp, 4, RAX, sysArchPrctl)
	f.Jcc(CondE, prctl)
	f.Bind(done)
	f.after(func() {
		f.Bind(action)
		f.action(RSI, RDX)
		f.Jmp(done)
		f.Bind(clone)
		f.argument(RAX, RSI)
		f.TestRI(4, RAX, cloneVM)
		f.Jcc(CondNE, set)
		f.Jmp(done)
		f.Bind(prctl)
		f.argument(RAX, RSI)
		f.OpRI(OpCmp, 4, RAX, archSetFS)
		f.Jcc(CondE, set)
		f.Jmp(done)
	})
}

// action emits the look at a call that may replace the handler of a signal of a fault: the signal and the new
// action are in two registers.
func (f *frame) action(signal, action Reg) {
	if f.w.Handled == 0 {
		return
	}
	look, done := f.Label(), f.Label()
	f.argument(RAX, signal)
	f.OpRI(OpCmp, 4, RAX, sigSegv)
	f.Jcc(CondE, look)
	f.OpRI(OpCmp, 4, RAX, sigBus)
	f.Jcc(CondNE, done)
	f.Bind(look)
	f.argument(RAX, action)
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondE, done)
	f.handled()
	f.Bind(done)
}

// resets emits the look at a new task whose handlers become the default ones: struct clone_args is at S1.
func (f *frame) resets() {
	if f.w.Handled == 0 {
		return
	}
	done := f.Label()
	f.TestMI(4, At(f.s1(), clone3Flags+4), cloneClearSighand)
	f.Jcc(CondE, done)
	f.handled()
	f.Bind(done)
}

// handled emits that the program may have other handlers than the resident ones.
func (f *frame) handled() {
	f.MovRI(RAX, f.w.Handled)
	f.MovMI(4, At(RAX, 0), 1)
}

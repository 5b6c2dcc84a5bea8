package amd64

import (
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
)

// Where a test of a module's thread has its words, its stack, its thread block and its function.
const (
	lineThread   = lineClock + 0x100
	lineTLS      = lineClock + 0x200
	threadStack  = arenaData + 0x4000
	lineFunction = lineHandler + 0x800
)

// What is told, behind the log's first word, by the handler that makes the thread and serves it, and by the thread's function.
const (
	toldClone, toldHandlers, toldResult, toldState, toldAsked, toldAnswer, toldAtomic, toldMask = 64, 72, 80, 88, 96, 120, 128, 136
)

// threadMaker is a handler that makes the thread and does what the tracer does.
type threadMaker struct {
	*Asm
	run *SlotRuntime
}

// make emits the making of the thread, with RBX the words and R12 the log.
func (h *threadMaker) make() {
	const flags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD | unix.CLONE_SYSVSEM |
		unix.CLONE_SETTLS | unix.CLONE_CHILD_CLEARTID
	parent := h.Label()
	h.MovMI(4, At(RBX, arch.ThreadAlive), 1)
	h.MovRI(RDI, flags)
	h.MovRI(RSI, threadStack)
	h.OpRR(OpXor, 4, RDX, RDX)
	h.Lea(R10, At(RBX, arch.ThreadAlive))
	h.MovRI(R8, lineTLS)
	h.MovRI(RAX, unix.SYS_CLONE)
	h.Syscall()
	h.TestRR(8, RAX, RAX)
	h.Jcc(CondNE, parent)
	h.MovRI(RAX, h.run.Start)
	h.JmpR(RAX)
	h.Bind(parent)
	h.MovMR(8, At(R12, toldClone), RAX)
}

// spin emits the wait for a word of 32 bits.
func (h *threadMaker) spin(off, want int32) {
	come, look := h.Label(), h.Here()
	h.OpMI(OpCmp, 4, At(RBX, off), want)
	h.Jcc(CondE, come)
	h.Pause()
	h.Jmp(look)
	h.Bind(come)
}

// become emits a state of the tracer's making.
func (h *threadMaker) become(state int32) {
	h.MovMI(4, At(RBX, arch.ThreadState), state)
	h.MovRR(8, RDI, RBX)
	h.MovRI(RSI, futexWake)
	h.MovRI(RDX, 1)
	h.MovRI(RAX, sysFutex)
	h.Syscall()
}

func (h *threadMaker) call(name string) {
	h.MovRI(RAX, h.run.Symbols[name])
	h.CallR(RAX)
}

// TestSlotThread makes the thread on which a module starts: what it asks and is answered, how it ends, and what it does where nobody
// answers or its function faults.
func TestSlotThread(t *testing.T) {
	child := buildDetourChild(t)
	type told struct{ result, state, answer, atomic int64 }
	for _, c := range []struct {
		name           string
		goes, answered bool
		faults         bool
		patience       uint64 // seconds
		want           told
	}{
		{"answered", true, true, false, 1000, told{result: -77, state: arch.ThreadEnded, answer: -0x1234567890}},
		{"not answered", true, false, false, 0, told{result: -77, state: arch.ThreadEnded, answer: -int64(unix.ETIMEDOUT)}},
		{"not started", false, false, false, 0, told{state: arch.ThreadEnded}},
		{"faults", true, true, true, 1000, told{result: -efault, state: arch.ThreadEnded, answer: -0x1234567890}},
	} {
		a := newArena(t, child)
		a.slotGates(SlotPost, false, false)
		run := a.slotRuntime(c.patience)
		a.threadFunction(run, c.faults)

		h := &threadMaker{NewAsm(lineHandler), run}
		h.Push(RBX)
		h.Push(R12)
		h.Push(R13)
		h.MovRR(8, R12, RDI)
		h.MovRI(RBX, lineThread)
		h.call("__kp_request") // of a handler
		h.MovMR(8, At(R12, toldHandlers), RAX)
		h.MovRI(RAX, lineFunction)
		h.MovMR(8, At(RBX, arch.ThreadFunc), RAX)
		if c.goes && c.patience == 0 { // it does not wait
			h.become(arch.ThreadRuns)
		}
		h.make()
		if c.goes && c.patience > 0 {
			h.become(arch.ThreadRuns)
		}
		if c.answered {
			h.spin(arch.ThreadState, arch.ThreadAsks)
			for i := range int32(3) {
				h.MovRM(8, RAX, At(RBX, arch.ThreadAsked+8*i))
				h.MovMR(8, At(R12, toldAsked+8*i), RAX)
			}
			h.MovRI(RAX, ^uint64(0x1234567890-1))
			h.MovMR(8, At(RBX, arch.ThreadAnswer), RAX)
			h.become(arch.ThreadAnswered)
		}
		h.spin(arch.ThreadAlive, 0)
		h.MovRM(8, RAX, At(RBX, arch.ThreadResult))
		h.MovMR(8, At(R12, toldResult), RAX)
		h.MovRM(4, RAX, At(RBX, arch.ThreadState))
		h.MovMR(8, At(R12, toldState), RAX)
		h.Pop(R13)
		h.Pop(R12)
		h.Pop(RBX)
		h.Ret()
		text, err := h.Finish()
		if err != nil {
			t.Fatal(err)
		}
		copy(a.at(lineHandler), text)

		a.probe(hexBytes(t, carryFunction), map[uint64][]arch.ProbeOp{0: {{Event: 7, Role: arch.RoleCall, Call: a.inLine(0)}}}, arch.Policy{Force: arch.TacticJump})
		a.handler()
		a.add(a.state(rand.New(rand.NewPCG(3, 3))))
		a.run()
		a.freed()
		log := lineDesc(0) + lineLog
		of := func(off uint64) int64 { return int64(a.get64(log + off)) }
		if tid := of(toldClone); tid <= 0 {
			t.Fatalf("%s: clone: %d", c.name, tid)
		}
		if got := (told{of(toldResult), of(toldState), of(toldAnswer), of(toldAtomic)}); got != c.want {
			t.Errorf("%s: %+v, not %+v", c.name, got, c.want)
		}
		if got := of(toldHandlers); got != -int64(unix.EDEADLK) {
			t.Errorf("%s: a handler was answered %d", c.name, got)
		}
		if asked := [3]int64{of(toldAsked), of(toldAsked + 8), of(toldAsked + 16)}; c.answered && asked != [3]int64{3, 0x123456789abc, 5} {
			t.Errorf("%s: it asked %x", c.name, asked)
		}
		if mask := uint64(of(toldMask)); c.goes && mask != ^uint64(synchronous|1<<(unix.SIGKILL-1)|1<<(unix.SIGSTOP-1)) {
			t.Errorf("%s: it blocks %#x", c.name, mask)
		}
	}
}

// threadFunction makes the function that the thread calls: it asks, and returns -77, or faults.
func (a *arena) threadFunction(run *SlotRuntime, faults bool) {
	a.t.Helper()
	f := &threadMaker{NewAsm(lineFunction), run}
	f.Push(RBX)
	f.MovRI(RBX, lineDesc(0)+lineLog)
	f.call("__kp_slot")
	f.MovRM(4, RCX, At(RAX, slotAtomic))
	f.MovMR(8, At(RBX, toldAtomic), RCX)
	f.OpRR(OpXor, 4, RDI, RDI)
	f.OpRR(OpXor, 4, RSI, RSI)
	f.Lea(RDX, At(RBX, toldMask))
	f.MovRI(R10, 8)
	f.MovRI(RAX, sysRtSigprocmask)
	f.Syscall()
	f.MovRI(RDI, 3)
	f.MovRI(RSI, 0x123456789abc)
	f.MovRI(RDX, 5)
	f.call("__kp_request")
	f.MovMR(8, At(RBX, toldAnswer), RAX)
	if faults {
		f.MovRI(RBX, 8)
		f.Raw(0xfd) // std
		f.MovMR(8, At(RBX, 0), RBX)
	}
	f.MovRI(RAX, 1<<32-77) // an int
	f.Pop(RBX)
	f.Ret()
	text, err := f.Finish()
	if err != nil {
		a.t.Fatal(err)
	}
	copy(a.at(lineFunction), text)
	a.faults = append(a.faults, FaultEntry{Lo: lineFunction, Hi: lineFunction + uint64(len(text)), To: run.Abandon})
}

package amd64

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// redZone is the number of bytes below the stack pointer that a function of the C
// convention may use without moving it (psABI section 3.2.2).
const redZone = 128

// maxGoFrame bounds a frame on a goroutine's stack, maxFrame elsewhere.
const (
	maxGoFrame = 512
	maxFrame   = 2048
)

// MaxRoomFrame bounds a frame in which a handler is called that asks for room (arch.Call), in
// bytes.
const MaxRoomFrame = 128

// maxPushed bounds what the work pushes below its frame: the registers of a system call
// and a time to sleep (sleep), or one register more (checkSpan).
const maxPushed = 80

// ErrFrame says that a probe's arguments need more stack than the probed program is
// sure to have.
var ErrFrame = errors.New("arguments need too much stack: probe fewer strings or arrays at once")

// ErrNoRegister says that there is nothing to check the stack with: no register is free, or the flags are not.
var ErrNoRegister = errors.New("the function does not check its stack, and no register, or not the flags, can be used to check the stack")

// frame is the piece of stack that the work at one point uses:
//
//	drop(%rsp)   the stack pointer at the point
//	             red zone (not in a Go function)
//	8*i(%rsp)    slot i: saved registers, flags, then temporaries
type frame struct {
	*emitter
	addr    uint64
	scratch [4]Reg // RAX, RDX and two more
	restore RegSet // scratch registers whose values are put back
	slots   slots
	flags   int32 // slot of lahf's and seto's result, -1: the flags are free
	user    int32 // slot of the whole flags register for %flags, -1: nobody asks
	temp    int32 // first temporary
	drop    int32
	miss    []arch.ProbeOp // what is missed if the stack is too small
	mark    int32          // a trampoline's: slot of the stub that was chosen; at a return see matched
	head    int32          // a trampoline's: slot of the instance that others are above (reenter.go)
	began   int32          // where some hits are timed: slot of when the work at hand began; 0: it is not timed
	dropped int32          // where it is decided whether traces are kept: slot of 1 if that of the call is not; 0: it is not decided
	left    int32          // of who leaves calls: slot of the first of leftWords words (left.go); 0: nobody does
	came    Mem            // a trampoline's entry: the return address that the thread has come with
	near    bool           // a kernel's: the ring's addresses fit displacements
	chunk   int32          // a kernel's: where pieces of strings go to be measured
	stage   int32          // a kernel's: where the staged string goes
	regs    int32          // a kernel's: where the registers are that it is called with for the stack
	staged  *fetch.Arg     // a kernel's: the string that is staged in the work at hand; nil: none
	caught  bool           // loads of the work at hand ask nothing: a fault in them is always caught, or nobody may ask
	looks   bool           // the kernel looks at the memory of each load of the work at hand, before it
	goStack bool           // the function is Go's: little stack and no red zone; false for C in a Go program too
	calls   bool           // a handler is called: saved registers have fixed slots (GateRAX)
}

// slots are the places of saved registers, in bytes from the stack pointer.
type slots struct {
	saved RegSet
	at    [R15 + 1]int32
}

func (s *slots) put(r Reg, at int32) {
	s.saved |= 1 << r
	s.at[r] = at
}

// of gives a register's place, if it is saved.
func (s *slots) of(r Reg) (at int32, ok bool) {
	if !s.saved.Has(r) {
		return 0, false
	}
	return s.at[r], true
}

// Scratch registers by their role.
func (f *frame) s1() Reg { return f.scratch[2] }
func (f *frame) s2() Reg { return f.scratch[3] }

// point emits work at the point addr; the instruction at next runs after it.
func (e *emitter) point(addr, next uint64, ws []arch.ProbeOp, known func(uint64) PointEnv) error {
	if len(ws) == 0 {
		return nil
	}
	if err := e.w.callError(ws); err != nil {
		return err
	}
	if e.w.Kernel != nil {
		return e.kernelPoint(addr, ws, known(next))
	}
	env, uses := known(next), e.w.usesOf(ws)
	f := &frame{
		emitter: e, addr: addr, flags: -1, user: -1, miss: ws,
		goStack: e.w.Go != nil && env.StackFree >= 0, calls: uses.calls,
	}
	f.choose(uses.regs)
	// Dead values are put back too: the next probe may record the register, and should
	// show what a debugger would. It costs a nanosecond.
	n := f.layout(AllRegs, uses)
	if n*8 > maxFrame || f.goStack && n*8 > maxGoFrame && f.left == 0 {
		return fmt.Errorf("%d bytes: %w", n*8, ErrFrame)
	}
	room, asked := roomOf(ws)
	if asked && f.drop > MaxRoomFrame {
		return fmt.Errorf("a handler that may sleep leaves %d bytes for the work at its point, which takes %d: %w", MaxRoomFrame, f.drop, ErrFrame)
	}
	here := env
	if addr != next {
		here = known(addr)
	}
	f.growStack(here.Grow, room)
	skip := e.Label()
	if err := f.checkStack(env, uses.regs, skip); err != nil {
		return err
	}
	f.enter()
	if err := f.allWorks(ws); err != nil {
		return err
	}
	f.leave()
	e.Bind(skip)
	return nil
}

// allWorks emits what is done at the point.
func (f *frame) allWorks(ws []arch.ProbeOp) error {
	f.keepReturn(ws)
	returns := returnsOf(ws)
	again := f.Label()
	if returns != nil {
		f.MovMI(8, At(RSP, f.mark), 0)
		f.Bind(again)
	}
	for i := range ws {
		if err := f.work(&ws[i]); err != nil {
			return err
		}
	}
	if returns != nil {
		f.below(again)
		f.stray(returns)
	}
	return nil
}

// choose picks the scratch registers: rdtsc needs RAX and RDX, the other two are ones that
// no argument reads if there are any, and the gate's if there is a call.
func (f *frame) choose(used RegSet) {
	if f.calls {
		f.scratch = [4]Reg{RAX, RDX, R12, R13}
		return
	}
	f.scratch[0], f.scratch[1] = RAX, RDX
	n := 2
	candidates := []Reg{RCX, RSI, RDI, R8, R9, R10, R11, RBX, R12, R13, R15}
	for _, avoid := range []RegSet{used, 0} {
		for _, r := range candidates {
			if n < len(f.scratch) && !avoid.Has(r) && !slices.Contains(f.scratch[:], r) {
				f.scratch[n] = r
				n++
			}
		}
	}
}

// layout gives every saved register its slot and returns the number of slots.
func (f *frame) layout(live RegSet, u uses) int {
	var n int32
	saved := Set(f.scratch[:]...)
	if u.count {
		saved = Set(RAX, f.s1())
	}
	if f.w.Kernel == nil && f.w.TID == arch.TIDSyscall {
		saved |= Set(RCX, R11)
	}
	if f.calls {
		saved = Set(gateRegs...)
	}
	f.restore = saved & live
	for r := RAX; r <= R15; r++ {
		if saved.Has(r) && (live | u.regs).Has(r) {
			f.slots.put(r, 8*n)
			n++
		}
	}
	if live&Flags != 0 {
		f.flags = 8 * n
		n++
	}
	if u.flags {
		f.user = 8 * n
		n++
	}
	f.temp = 8 * n
	n += int32(u.temps)
	if u.mark {
		f.mark, f.head = 8*n, 8*n+8
		f.came = At(RSP, 8*n+16)
		n += 3
	}
	if u.timed {
		f.began = 8 * n
		n++
	}
	if u.sampled {
		f.dropped = 8 * n
		n++
	}
	if u.left {
		f.left = 8 * n
		n += leftWords
	}
	f.drop = 8 * n
	if !f.goStack && f.w.Kernel == nil {
		f.drop += redZone
	}
	return int(n)
}

// checkStack emits, for a Go function that does not check its stack itself, a test
// that the frame fits; if it does not, what was to be done is counted as missed. The
// test clobbers a register that is free and that no argument reads (used).
func (f *frame) checkStack(env PointEnv, used RegSet, skip Label) error {
	need := f.drop + maxPushed
	if !f.goStack || env.StackFree >= int(need) {
		return nil
	}
	r, err := f.freeRegister(env, used)
	if err != nil {
		return err
	}
	small := f.Label()
	f.MovRM(8, r, AtFS(f.w.Go.TLS))
	f.TestRR(8, r, r)
	f.Jcc(CondE, small) // a thread that is not Go's (a signal in C code)
	f.MovRM(8, r, At(r, f.w.Go.StackLo))
	f.Lea(r, At(r, need))
	f.OpRR(OpCmp, 8, RSP, r)
	f.Jcc(CondB, small)
	f.after(func() {
		f.Bind(small)
		for i := range f.miss {
			f.MovRI(r, f.w.lockedShard(0)+uint64(counter(f.miss[i].Event, ring.CtrMissed)))
			f.Lock().IncM(8, At(r, 0))
		}
		f.Jmp(skip)
	})
	return nil
}

// freeRegister finds a register that the check of the stack may use, where the flags are free
// too.
func (f *frame) freeRegister(env PointEnv, used RegSet) (Reg, error) {
	free := env.Scratch & AllRegs &^ used
	if env.Scratch&Flags == 0 || free&^Flags == 0 {
		live := env.Live()
		free = ^(live | used) & AllRegs &^ Set(RSP)
		if live&Flags != 0 || free&^Flags == 0 {
			return 0, &arch.PointError{Addr: f.addr, Err: ErrNoRegister}
		}
	}
	if free&goScratch&^Flags != 0 {
		free &= goScratch // a handler is to see the arguments, those that the function does not use too
	}
	return Reg(bits.TrailingZeros32(uint32(free))), nil
}

// roomOf is the most stack that one of the works needs. asked says whether that is for a
// handler's gate at this point.
func roomOf(ws []arch.ProbeOp) (n int, asked bool) {
	for i := range ws {
		n = max(n, ws[i].Room)
		if c := ws[i].Call; c != nil && c.Room > 0 {
			n, asked = max(n, c.Room), true
		}
	}
	return n, asked
}

// growStack emits a jump to the code that grows the stack if there is not as much room as is
// needed. Nothing has been done yet at the entry then, and the function is entered anew.
func (f *frame) growStack(grow uint64, room int) {
	if grow == 0 || room == 0 {
		return
	}
	small := f.Label()
	f.MovRM(8, R12, AtFS(f.w.Go.TLS))
	f.MovRM(8, R12, At(R12, f.w.Go.StackLo))
	f.Lea(R12, At(R12, int32(room)))
	f.OpRR(OpCmp, 8, RSP, R12)
	f.Jcc(CondB, small)
	f.after(func() {
		f.Bind(small)
		f.JmpAddr(grow)
	})
}

func (f *frame) enter() {
	f.Lea(RSP, At(RSP, -f.drop))
	for r := RAX; r <= R15; r++ {
		if slot, ok := f.slots.of(r); ok {
			f.MovMR(8, At(RSP, slot), r)
		}
	}
	if f.user >= 0 {
		f.Pushfq()
		f.Pop(RAX)
		f.MovMR(8, At(RSP, f.user), RAX)
	}
	if f.flags >= 0 {
		f.Lahf()
		f.Setcc(CondO, RAX)
		f.MovMR(8, At(RSP, f.flags), RAX)
	}
}

func (f *frame) leave() {
	if f.flags >= 0 {
		f.MovRM(8, RAX, At(RSP, f.flags))
		f.OpRI(OpAdd, 1, RAX, 0x7f)
		f.Sahf()
	}
	for r := RAX; r <= R15; r++ {
		if slot, ok := f.slots.of(r); ok && f.restore.Has(r) {
			f.MovRM(8, r, At(RSP, slot))
		}
	}
	f.Lea(RSP, At(RSP, f.drop))
}

// tempAt is the operand of temporary i.
func (f *frame) tempAt(i int) Mem { return At(RSP, f.temp+8*int32(i)) }

// work emits what one probe does.
func (f *frame) work(w *arch.ProbeOp) error {
	switch w.Role {
	case arch.RoleCall:
		f.MovRI(RAX, 0)
		f.call(w.Call)
		return nil
	case arch.RoleEntry:
		over := f.Label()
		if w.Sample != nil {
			w.Sample.Code.(sampleCode)(f, w, nil, over)
		}
		f.claim(w)
		f.Bind(over)
		return nil
	case arch.RoleWait:
		return f.wait(w)
	case arch.RoleQuiet:
		f.installs(w)
		return nil
	case arch.RoleUnwind:
		f.unwind(w.Trampoline)
		return nil
	case arch.RoleShare:
		f.share(w)
		return nil
	case arch.RoleLeft:
		return w.Left.Code.(leftCode)(f, w)
	case arch.RoleExit:
		if w.Call != nil {
			f.callAtExit(w)
			return nil
		}
		done := f.Label()
		if w.Sample != nil {
			w.Sample.Code.(sampleCode)(f, w, nil, done)
		}
		f.find(w, done)
		err := f.store(w)
		f.Bind(done)
		return err
	default:
		return f.store(w)
	}
}

package amd64

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/ring"
)

// Generated code calls a handler (arch.Call) through a gate: that of the call, or its target's, arch.CodegenEnv.Gate.
// A gate is machine code of the target, entered by a jump from a frame (see frame) and
// left by a jump back: no return address stands on the stack.
//
// When the gate is entered:
//
//	RSP  the frame F. What is below it is the gate's to use, but in a Go function only
//	     GateStack bytes are sure to be there.
//	RAX  the address of the return probe's instance (a slot of its arch.Pool), 0 for
//	     a RoleCall
//	RDX  the distance from F to the stack pointer at the point, in bytes
//	R12  arch.Call.Desc
//	R13  the address in the detour to which the gate goes back
//	RCX, R11  anything
//
// The values that RAX, RCX, RDX, R11, R12 and R13 have at the point stand at F+GateRAX to
// F+GateR13. At F+GateFlags are 16 bits of the arithmetic flags as lahf and seto leave
// them in AX (the other bits of the word are anything): SF ZF AF PF CF in AH, by their
// numbers in the flags register, and OF, 0 or 1, in AL. All other registers hold what they
// hold at the point: general, vector, x87 and control registers, and the direction flag,
// which the gate must clear for most code.
//
// When the gate goes back, by a jump to that address:
//
//	RSP  F
//	EAX  the handler's arch.Action, ActionGo or ActionDrop
//	RCX, RDX, R11, R12, R13, and the arithmetic flags  anything
//
// The values at F+GateRAX to F+GateFlags are loaded when the work at the point is done,
// and all other registers keep what the gate left in them. So what a handler changes goes
// into those places and registers. The stack pointer and the instruction pointer can not
// be changed in this way: for arch.ActionLeave the gate does not go back but loads all
// registers itself.
const (
	GateRAX   = 0
	GateRCX   = 8
	GateRDX   = 16
	GateR11   = 24
	GateR12   = 32
	GateR13   = 40
	GateFlags = 48
)

// GateStack is the number of bytes below a frame that a gate may use on any stack.
const GateStack = maxPushed

// gateRegs have their places at the start of a frame that calls, in the order of their
// numbers, and the flags after them.
var gateRegs = []Reg{RAX, RCX, RDX, R11, R12, R13}

// callError says why one of the works can not call its handler.
func (w writer) callError(ws []arch.ProbeOp) error {
	for i := range ws {
		switch {
		case ws[i].Role == arch.RoleCall && ws[i].Call == nil:
			return errno.Errorf(unix.EINVAL, "event %d is to call a handler and has none", ws[i].Event)
		case ws[i].Call != nil && ws[i].Call.Gate == 0 && w.Gate == 0:
			return errno.Errorf(unix.EOPNOTSUPP, "event %d has a handler, and the target has no code that calls one", ws[i].Event)
		}
	}
	return nil
}

// call emits the call of a handler with the instance in RAX. Then EAX is its action. The word
// before the way back leads to the landings of the region (see landing).
func (f *frame) call(c *arch.Call) {
	resume := f.Label()
	f.MovRI(R12, c.Desc)
	f.MovRI(RDX, uint64(f.drop))
	f.Lea(R13, AtLabel(resume, 0))
	f.jumpToGate(c)
	f.landings()
	f.Bind(resume)
	if f.w.Kernel != nil {
		f.Raw(endbr64...) // indirect branches may be tracked there
	}
	if f.user >= 0 {
		f.takeFlags()
	}
}

// takeFlags brings the copy of the flags register that records read up to what a handler
// left. It clobbers RCX, RDX and R11.
func (f *frame) takeFlags() {
	const low, of = 0xd5, 11 // SF ZF AF PF CF; the bit of OF
	f.MovZXM(1, RCX, At(RSP, GateFlags))
	f.MovZXM(1, RDX, At(RSP, GateFlags+1))
	f.MovRM(8, R11, At(RSP, f.user))
	f.ShiftRI(Shl, 4, RCX, of)
	f.OpRI(OpAnd, 4, RDX, low)
	f.OpRI(OpAnd, 8, R11, ^(low | 1<<of))
	f.OpRR(OpOr, 8, R11, RCX)
	f.OpRR(OpOr, 8, R11, RDX)
	f.MovMR(8, At(RSP, f.user), R11)
}

// jumpToGate emits the jump to a call's gate, through a literal if it is out of reach. That of the call itself is always taken
// for such: a detour has its size before it has its place.
func (e *emitter) jumpToGate(c *arch.Call) {
	gate := c.Gate
	if gate == 0 {
		gate = e.w.Gate
		if _, near := rel32(e.Addr()+JumpLen, gate); near {
			e.JmpAddr(gate)
			return
		}
	}
	e.JmpFar(gate)
}

// callAtEntry emits the call for the instance of S1, which has just been claimed. done is
// where the work at the entry ends.
func (f *frame) callAtEntry(w *arch.ProbeOp, done Label) {
	drop := f.Label()
	f.callInstance(w)
	f.OpRI(OpCmp, 4, RAX, int32(arch.ActionDrop))
	f.Jcc(CondE, drop)
	f.after(func() {
		f.Bind(drop)
		if w.Trampoline != nil {
			f.dropAbove(w)
			f.giveBack(w.Pool)
			f.Jmp(done)
			return
		}
		f.giveBack(w.Pool)
		// The key may stand behind the slot that was taken, of a call that was left by unwinding: this call's return
		// would find it.
		f.salted(w.Event, done)
		f.seek(w.Pool, done)
		f.giveBack(w.Pool)
		f.bump(w.Event, ring.CtrUnwound)
		f.Jmp(done)
	})
}

// callAtExit emits the call for the instance of the call that returns, which is given
// back after it. A return whose entry was not seen calls nothing.
func (f *frame) callAtExit(w *arch.ProbeOp) {
	done := f.Label()
	f.own(w, done)
	f.callInstance(w)
	f.giveBack(w.Pool)
	f.Bind(done)
}

// callInstance emits the call for the instance of S1. Then S1 is the instance again.
func (f *frame) callInstance(w *arch.ProbeOp) {
	f.MovMR(8, f.tempAt(tempSlot), f.s1())
	f.MovRR(8, RAX, f.s1())
	f.call(w.Call)
	f.MovRM(8, f.s1(), f.tempAt(tempSlot))
}

// giveBack emits the end of the instance of S1. It clobbers RDX.
func (f *frame) giveBack(p *arch.Pool) {
	f.MovMI(8, At(f.s1(), slotKey), 0)
	f.giveOne(p)
}

// split tells what is to be done before an instruction and what after it. What comes
// after an instruction that goes elsewhere is done last of what comes before it.
func split(ws []arch.ProbeOp, in *Inst) (before, after []arch.ProbeOp) {
	for i := range ws {
		if isAfter(&ws[i]) {
			after = append(after, ws[i])
		}
	}
	if len(after) == 0 {
		return ws, nil
	}
	for i := range ws {
		if !isAfter(&ws[i]) {
			before = append(before, ws[i])
		}
	}
	if in.falls() {
		return before, after
	}
	return append(before, after...), nil
}

// falls says whether an instruction is always followed by the next one.
func (in *Inst) falls() bool { return in.Kind == KindPlain || in.Kind == KindSyscall }

func isAfter(w *arch.ProbeOp) bool { return w.After && w.Role == arch.RoleCall }

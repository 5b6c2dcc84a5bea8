package amd64

import (
	"slices"

	"kprobes.dev/kprobes/internal/arch"
)

// A handler may be told of faults of the instruction at its point (arch.ProbeOp.Fault). When the
// instruction's copy faults, the resident handler sends the thread, with all that it has, to a
// stub behind the detour, which calls the handlers through the gate like any other. So they
// run in no signal handler. It gets the stack pointer that the instruction has: of a call through
// memory the copy has pushed the return address before it faults. A stub begins with faultTraps
// jumps, one for each trap number:
//
//	stub:    jmp  trap 0; jmp trap 1; …
//	trap n:  frame; RAX = n; jmp common
//	common:  call the handlers in turn, until one has dealt with it: then jmp copy
//	again:   the instruction once more, in a second copy: a fault there is the program's own
//	         jmp  behind copy

// faultTraps are the trap numbers that a stub has jumps for, and jumpSize is their distance.
const (
	faultTraps = 20
	jumpSize   = 5
)

// Trap numbers (SDM vol. 3A, table 6-1) that handlers are told of.
const (
	trapDivide     = 0
	trapUndefined  = 6
	trapProtection = 13
	trapPage       = 14
	trapX87        = 16
	trapAlignment  = 17
	trapSIMD       = 19
)

var toldTraps = []uint64{trapDivide, trapUndefined, trapProtection, trapPage, trapX87, trapAlignment, trapSIMD}

// takeFaults takes the work that is to be done at faults out of the work at a point.
func takeFaults(ws []arch.ProbeOp) (faults, others []arch.ProbeOp) {
	for i := range ws {
		if ws[i].Fault {
			faults = append(faults, ws[i])
		}
	}
	if len(faults) == 0 {
		return nil, ws
	}
	for i := range ws {
		if !ws[i].Fault {
			others = append(others, ws[i])
		}
	}
	return faults, others
}

// onFault emits the stub of an instruction, whose copy is between the two labels and consists of
// e.pairs.
func (e *emitter) onFault(d *arch.Detour, s Step, ws []arch.ProbeOp, known func(uint64) PointEnv, copied, behind Label) {
	stub, again, common := e.Label(), e.Label(), e.Label()
	var parts []uint64 // of the copy: a later step overwrites the pairs
	for _, p := range e.pairs {
		if p.Orig == s.Addr {
			parts = append(parts, p.Copy)
		}
	}
	e.after(func() {
		e.Bind(stub)
		told := map[uint64]Label{}
		for _, trap := range toldTraps {
			told[trap] = e.Label()
		}
		for trap := range uint64(faultTraps) {
			if l, ok := told[trap]; ok {
				e.Jmp(l)
			} else {
				e.Jmp(again)
			}
		}
		f := e.faultFrame(s.Addr, ws, known)
		for _, trap := range toldTraps {
			e.Bind(told[trap])
			if err := f.checkStack(known(s.Addr), 0, again); err != nil {
				e.fail("%w", err)
			}
			f.enter()
			f.MovRI(RAX, trap)
			f.Jmp(common)
		}
		e.Bind(common)
		f.callFaultHandlers(ws, copied)
		e.Jmp(again)
		e.after(func() { e.copyAgain(d, s, again, behind) })
		for _, p := range parts {
			d.Faults = append(d.Faults, arch.FaultStub{Copy: p, Stub: e.LabelAddr(stub)})
		}
	})
}

// faultFrame makes the frame in which the handlers are called.
func (e *emitter) faultFrame(addr uint64, ws []arch.ProbeOp, known func(uint64) PointEnv) *frame {
	f := &frame{
		emitter: e, addr: addr, flags: -1, user: -1,
		goStack: e.w.Go != nil && known(addr).StackFree >= 0, calls: true,
	}
	u := e.w.usesOf(ws)
	u.temps = max(u.temps, fixedTemps)
	f.choose(u.regs)
	f.layout(AllRegs, u)
	return f
}

// callFaultHandlers emits the handlers' calls; RAX is the trap number.
func (f *frame) callFaultHandlers(ws []arch.ProbeOp, copied Label) {
	dealt := f.Label()
	f.MovMR(8, f.tempAt(tempUnits), RAX)
	for i := range ws {
		f.MovRM(8, RAX, f.tempAt(tempUnits))
		f.call(ws[i].Call)
		f.OpRI(OpCmp, 4, RAX, int32(arch.ActionDrop))
		f.Jcc(CondNE, dealt)
	}
	f.leave()
	f.after(func() {
		f.Bind(dealt)
		f.leave()
		f.Jmp(copied)
	})
}

// copyAgain emits the second copy of an instruction.
func (e *emitter) copyAgain(d *arch.Detour, s Step, again, behind Label) {
	e.Bind(again)
	pairs, err := Relocate(e.Asm, s.Inst, s.Code, s.Addr, nil)
	if err != nil {
		e.fail("%w", err)
	}
	for _, p := range pairs {
		d.Pairs = append(d.Pairs, arch.Pair(p))
	}
	e.Jmp(behind)
}

// AppendFaultEntries appends the entries of the fault table for a detour, in no order.
func AppendFaultEntries(out []FaultEntry, d *arch.Detour) []FaultEntry {
	out = slices.Grow(out, len(d.Fixups)+len(d.Pairs))
	for _, x := range d.Fixups {
		out = append(out, FaultEntry{Lo: x.At, Hi: x.At + 1, To: x.To})
	}
	for _, p := range d.Pairs {
		e := FaultEntry{Lo: p.Copy, Hi: p.CopyEnd, To: p.Orig, Moved: true, SP: p.SP}
		for _, s := range d.Faults {
			if s.Copy == p.Copy {
				e.Stub = s.Stub
			}
		}
		out = append(out, e)
	}
	return out
}

// toStub emits the way to the stub of a displaced instruction that has faulted, for the entry
// of the table in R8, whose last word is R10; control goes on if there is none, if somebody
// has sent the signal, and where the stack is what faults, which a stub needs.
func (h *handlerCode) toStub() {
	const near = 2 * pageSize // of the stack pointer
	none, known := h.Label(), h.Label()
	h.MovRR(8, R9, R10)
	h.ShiftRI(Shr, 8, R9, 32)
	h.Jcc(CondE, none)
	h.OpMI(OpCmp, 4, At(RSI, infoCode), 0)
	h.Jcc(CondLE, none)
	h.MovRM(8, R11, At(RDX, ucTrap))
	h.OpRI(OpCmp, 8, R11, faultTraps)
	h.Jcc(CondAE, none)
	h.OpRM(OpAdd, 8, R9, At(R8, 0))
	h.OpRI(OpCmp, 8, R11, trapPage)
	h.Jcc(CondNE, known)
	h.MovRM(8, R8, At(RDX, ucRSP))
	h.OpRM(OpSub, 8, R8, At(RDX, ucCR2))
	h.OpRI(OpAdd, 8, R8, near)
	h.OpRI(OpCmp, 8, R8, 2*near)
	h.Jcc(CondB, none)
	h.Bind(known)
	h.ImulRRI(8, R11, R11, jumpSize)
	h.OpRR(OpAdd, 8, R9, R11)
	h.MovMR(8, At(RDX, ucRIP), R9)
	h.addSP()
	h.Ret()
	h.Bind(none)
}

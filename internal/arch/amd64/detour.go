package amd64

import (
	"bytes"
	"fmt"
	"math/bits"
	"sort"
	"sync"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ring"
)

// A detour stands for a region (see Regions). It is entered by the region's jump and
// left by a jump back, or by the region's own last instruction:
//
//	detour:  lea   -drop(%rsp), %rsp     past the red zone
//	         mov   %rax, slot(%rsp) …    what the work clobbers and what is live
//	         work of the first point     record, count, claim or give back an instance
//	         mov   slot(%rsp), %rax …
//	         lea   drop(%rsp), %rsp
//	         first instruction, relocated
//	         work after it               only handlers have such
//	         … work of a further point, further instructions …
//	         jmp   region's end
//	         out-of-line parts: full ring, faults, threads without rseq
//	         rseq descriptors
//
// A detour never calls, but in a kernel (see kernel.go; call.go has handlers), so no address of it
// ever stands on a stack as a return address; those of stubs do, which call (see trampoline.go). It
// uses no vector state, no x87 and leaves the direction flag alone.

// emitter builds one detour.
type emitter struct {
	*Asm
	w      writer
	later  []func()
	fixups []pendingFixup
	pairs  []AddrPair // of the instruction that was copied last
	land   *landing   // where handlers can have a thread go on in the region; nil: nowhere
	read   RegSet     // in a kernel: see readLater
}

type pendingFixup struct {
	at uint64
	to Label
}

// PointEnv is what the analysis proves about a point.
type PointEnv struct {
	// Live gives the registers whose values are needed after the point. It is asked only
	// where one is to be used without being saved: the answer takes a look at the whole
	// function.
	Live func() RegSet
	// Scratch are registers, and the flags, that are not among those without a look: the
	// convention says that they carry nothing at the point.
	Scratch RegSet
	// StackFree is the number of bytes below the stack pointer that are known to be
	// the function's to use. Less than a frame needs is checked when the code runs
	// (Go); -1 where the stack is known to be large (the C convention).
	StackFree int
	// Grow is the code that grows the stack and starts the function anew (Go), at its entry
	// only, where R12, R13 and the flags hold nothing; 0: there is none.
	Grow uint64
}

// NewDetour generates the code of a region at addr. work gives what is to be done at each
// point, env what is known there, and behind an instruction with Work.After.
func NewDetour(addr uint64, r *Region, work map[uint64][]arch.ProbeOp, env func(point uint64) PointEnv, w *arch.CodegenEnv) (*arch.Detour, error) {
	e := emitters.Get().(*emitter)
	defer e.end()
	e.begin(addr, w)
	if w.Kernel != nil {
		e.read = e.w.readLater(work)
	}
	m := new(detourRoom)
	d := &m.d
	d.Addr, d.Pairs, d.Points = addr, m.pairs[:0], m.points[:0]
	if r.Trap == "" && len(r.Steps) > 1 {
		e.land = &landing{start: r.Addr}
	}
	for _, s := range r.Steps {
		if err := e.step(d, &s, r.Trap, work[s.Addr], env); err != nil {
			return nil, err
		}
	}
	if !r.Ends {
		d.Back = e.Addr()
		d.Pairs = append(d.Pairs, arch.Pair{Orig: r.End(), Copy: e.Addr(), CopyEnd: e.Addr() + JumpLen})
		e.JmpAddr(r.End())
	}
	e.rest()
	e.landingTable()
	return d, e.finish(d)
}

// detourRoom is the memory of a detour, with as much as most have.
type detourRoom struct {
	d      arch.Detour
	pairs  [4]arch.Pair
	points [1]arch.PointEntry
}

// emitters are those that wrote a detour: fresh memory costs more than its code.
var emitters = sync.Pool{New: func() any { return &emitter{Asm: NewAsm(0)} }}

// begin readies an emitter for a detour at another place.
func (e *emitter) begin(addr uint64, w *arch.CodegenEnv) {
	e.reuse(addr)
	*e = emitter{Asm: e.Asm, w: writer{w}, later: e.later[:0], fixups: e.fixups[:0], pairs: e.pairs[:0]}
}

// end lets go of what the detour was made of.
func (e *emitter) end() {
	clear(e.later)
	e.w = writer{}
	emitters.Put(e)
}

// rest emits what stands behind the main line, which may add to it.
func (e *emitter) rest() {
	for i := 0; i < len(e.later); i++ {
		e.later[i]()
	}
}

// step emits one instruction with the work at it. A thread that is to run the work after
// the instruction has no place in the original code.
func (e *emitter) step(d *arch.Detour, s *Step, trap arch.Tactic, ws []arch.ProbeOp, env func(uint64) PointEnv) error {
	faults, ws := takeFaults(ws)
	before, after := split(ws, s.Inst)
	if e.land != nil {
		e.land.steps = append(e.land.steps, stepAt{s.Addr, e.Here()})
	}
	if len(ws) > 0 {
		d.Points = append(d.Points, arch.PointEntry{Point: s.Addr, At: e.Addr()})
	}
	if err := e.point(s.Addr, s.Addr, before, env); err != nil {
		return err
	}
	if trap == arch.TacticStep && !s.Inst.storesFlags() {
		e.singleStep()
	}
	copied := e.Here()
	pairs, err := relocateInto(e.pairs[:0], e.Asm, s.Inst, s.Code, s.Addr, nil)
	if err != nil {
		return fmt.Errorf("instruction at 0x%x: %w", s.Addr, err)
	}
	e.pairs = pairs
	for _, p := range pairs {
		d.Pairs = append(d.Pairs, arch.Pair(p))
	}
	if len(faults) > 0 && e.w.Kernel == nil {
		if err := e.w.callError(faults); err != nil {
			return err
		}
		e.onFault(d, *s, faults, env, copied, e.Here())
	}
	return e.point(s.Addr, s.Addr+uint64(s.Inst.Len), after, env)
}

// singleStep emits a jump to what follows that makes the CPU trap after one instruction
// of it: iretq loads the instruction pointer, the flags with TF set and the stack pointer
// at once. The trap's handler takes TF away again.
func (e *emitter) singleStep() {
	const slots = 6 * 8
	next := e.Label()
	e.Lea(RSP, At(RSP, -redZone-slots))
	e.MovMR(8, At(RSP, 40), RAX)
	e.Pushfq()
	e.Pop(RAX)
	e.OpRI(OpOr, 4, RAX, flagTF)
	e.MovMR(8, At(RSP, 16), RAX)
	e.Lea(RAX, AtLabel(next, 0))
	e.MovMR(8, At(RSP, 0), RAX)
	e.MovMI(8, At(RSP, 8), userCS)
	e.Lea(RAX, At(RSP, redZone+slots))
	e.MovMR(8, At(RSP, 24), RAX)
	e.MovMI(8, At(RSP, 32), userDS)
	e.MovRM(8, RAX, At(RSP, 40))
	e.PushI(2)
	e.Popfq()         // iretq takes no NT (SDM vol. 2A, IRET)
	e.Raw(0x48, 0xcf) // iretq
	e.Bind(next)
}

// storesFlags says whether an instruction keeps the flags register where the program sees it:
// pushf on the stack, syscall in r11. A trap flag of the engine's would be in it, so such an instruction
// is run, not stepped.
func (in *Inst) storesFlags() bool {
	return in.Kind == KindSyscall || in.Enc == EncLegacy && in.Map == MapOne && in.Opcode == 0x9c
}

// flagTF is the trap flag (SDM vol. 1, section 3.4.3).
const flagTF = 1 << 8

func (e *emitter) finish(d *arch.Detour) error {
	code, err := e.Finish()
	if err != nil {
		return err
	}
	d.Code = bytes.Clone(code)
	for _, f := range e.fixups {
		d.Fixups = append(d.Fixups, arch.Fixup{At: f.at, To: e.LabelAddr(f.to)})
	}
	sort.Slice(d.Fixups, func(i, j int) bool { return d.Fixups[i].At < d.Fixups[j].At })
	return nil
}

// after puts code behind the detour's main line.
func (e *emitter) after(f func()) { e.later = append(e.later, f) }

// counter gives the displacement of an event's counter from its shard.
func counter(event int, field int32) int32 {
	return ring.ShCounters + int32(event)*ring.CounterSize + field
}

// writer adds to an arch.CodegenEnv what the code needs of the ring's geometry.
type writer struct{ *arch.CodegenEnv }

func (w writer) strideShift() uint8 { return uint8(bits.TrailingZeros64(w.Layout.Stride)) }
func (w writer) dataOff() int32     { return int32(w.Layout.DataOff()) }
func (w writer) units() int32       { return int32(w.Layout.Units()) }

// lockedUnits is the most that a locked shard holds unread.
func (w writer) lockedUnits() int32 { return int32(w.Layout.LockedUnits()) }

// lockedShard is the address of a shard for writers without rseq.
func (w writer) lockedShard(cpu int) uint64 {
	return w.Ring + w.Layout.ShardOff(w.Layout.Locked(cpu))
}

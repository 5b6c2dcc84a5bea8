package amd64

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// Code for a Linux kernel (arch.Kernel) differs from that for a process in this:
//
//   - There is no red zone, and an interrupt may use the stack from the stack pointer down
//     at any time: the frame is pushed, and all of it is above the stack pointer.
//   - What is not live at the point (see kernelEntry) and no work of the function reads is
//     not saved, so a probe of another function that records such a register shows what
//     this one left in it.
//   - A frame that reads memory calls the kernel's own functions that take faults. Such a
//     call stands on the stack with an address of the detour as its return address, and
//     may be interrupted there: detours of a kernel are never given free while it runs.
//   - Flags are saved whole, by pushfq, and put back by popfq: IF, AC and DF are theirs too.
//   - Handlers have frames of their own, as they may change what other work must not put
//     back.
//
// Layout.CPUs must be at least nr_cpu_ids of the kernel: the number of the CPU is not
// checked.

// What a kernel's record has after the header of package ring, in bytes from the record's
// start. For a return the return address follows (KernelRecord), then the arguments.
const (
	KernelPreempt = ring.RecHeader      // 32 bits: the preemption count, as the kernel has it
	KernelFlags   = ring.RecHeader + 4  // 32 bits: EFLAGS at the point
	KernelComm    = ring.RecHeader + 8  // 16 bytes: the running task's name
	KernelRecord  = ring.RecHeader + 24 // return address and arguments
)

// maxKernelFrame bounds a frame on a kernel's stack.
const maxKernelFrame = 768

// callClobbers are the registers that a C function does not keep.
const callClobbers = RegSet(1<<RAX | 1<<RCX | 1<<RDX | 1<<RSI | 1<<RDI | 1<<R8 | 1<<R9 | 1<<R10 | 1<<R11)

// kernelPoint is point for a kernel: one frame for each handler, and one for what stands
// between them.
func (e *emitter) kernelPoint(addr uint64, ws []arch.ProbeOp, env PointEnv) error {
	for len(ws) > 0 {
		n := 1
		for ws[0].Call == nil && n < len(ws) && ws[n].Call == nil {
			n++
		}
		if err := e.kernelFrame(addr, ws[:n], env); err != nil {
			return err
		}
		ws = ws[n:]
	}
	return nil
}

func (e *emitter) kernelFrame(addr uint64, ws []arch.ProbeOp, env PointEnv) error {
	if err := kernelError(ws); err != nil {
		return err
	}
	f := &frame{emitter: e, addr: addr, flags: -1, user: -1, miss: ws, near: e.w.nearRing()}
	u := e.w.usesOf(ws)
	if f.calls = u.calls; f.calls {
		f.choose(u.regs)
		f.layout(AllRegs, u)
		return f.works(ws, f.enter, f.leave)
	}
	n := e.w.kernelNeeds(ws)
	if n.calls && !e.w.canRead() {
		return errno.Errorf(unix.EOPNOTSUPP, "event %d reads memory, and the kernel has not all of the functions that this takes (copy_from_kernel_nofault, copy_from_user_nofault, strncpy_from_kernel_nofault, strncpy_from_user_nofault, strnlen_user_nofault: Linux 5.8): take registers only", ws[0].Event)
	}
	live := env.Live() | e.read
	f.chooseKernel(live, u.regs, n)
	k := f.pushes(live, u, n)
	if f.drop > maxKernelFrame {
		return fmt.Errorf("%d bytes: %w", f.drop, ErrFrame)
	}
	skip := e.Label()
	return f.works(ws, func() {
		k.enter()
		if n.calls {
			f.guard(ws, skip)
		}
	}, func() {
		if n.calls {
			f.unguard()
		}
		f.Bind(skip)
		k.leave()
	})
}

// readLater gives the registers that work at any point reads and that may not be live where
// other work has been done before it. What is live at a return is so on the way to it.
func (w writer) readLater(work map[uint64][]arch.ProbeOp) RegSet {
	var s RegSet
	for _, ws := range work {
		for i := range ws {
			r := w.usesOf(ws[i : i+1]).regs
			if ws[i].Call != nil {
				r = AllRegs
			}
			if ws[i].Role == arch.RoleExit {
				r &= kernelReturn
			}
			s |= r
		}
	}
	return s
}

// works emits the work of a frame between its beginning and its end.
func (f *frame) works(ws []arch.ProbeOp, enter, leave func()) error {
	enter()
	for i := range ws {
		if err := f.work(&ws[i]); err != nil {
			return err
		}
	}
	leave()
	return nil
}

// kernelError says what can not be done in a kernel.
func kernelError(ws []arch.ProbeOp) error {
	for i := range ws {
		w := &ws[i]
		if w.Role == arch.RoleWait {
			return errno.Errorf(unix.EOPNOTSUPP, "event %d is to wait for the tracer by system calls: in a kernel take a handler", w.Event)
		}
		if w.Call != nil && readsMemory(w) {
			return errno.Errorf(unix.EOPNOTSUPP, "event %d has a handler and reads the stack at the entry: in a kernel it can not do both", w.Event)
		}
		if w.Prog == nil {
			continue
		}
		if slices.ContainsFunc(w.Prog.Args, func(a fetch.Arg) bool { return a.Store == fetch.StoreCounted }) {
			return errno.Errorf(unix.EINVAL, "event %d: %s", w.Event, fetch.NoGoStrings(event.GoString))
		}
	}
	return nil
}

// kernelUse is what a frame of a kernel needs beside registers to be read.
type kernelUse struct {
	full  bool // four scratch registers, not one
	flags bool // the flags as they are at the point
	calls bool // C functions are called
	temps int
	chunk bool // a kernel's string may be measured
	stage bool // a string is staged
	regs  bool // the kernel walks over its stack
}

// chunkBytes is the most of a kernel's string that is looked at by one call.
const chunkBytes = 64

func (w writer) kernelNeeds(ws []arch.ProbeOp) kernelUse {
	var n kernelUse
	for i := range ws {
		k := &ws[i]
		record := k.Role != arch.RoleEntry && !k.Count
		n.full = n.full || record || k.Role != arch.RoleRecord
		n.flags = n.flags || record
		reads := readsMemory(k)
		n.calls = n.calls || reads
		if reads || record && len(k.Prog.EntryBases()) > 0 {
			n.temps = max(n.temps, w.tempsOf(k))
		}
		n.chunk = n.chunk || record && measuresKernel(k.Prog)
		n.stage = n.stage || w.stagedArg(k) != nil
		n.regs = n.regs || record && k.Call == nil && k.Prog != nil && k.Prog.Stack > 0
	}
	return n
}

// canRead says whether the kernel's functions are all known.
func (w writer) canRead() bool {
	k := w.Kernel
	return k.ReadKernel != 0 && k.ReadUser != 0 && k.StringKernel != 0 && k.StringUser != 0 && k.LengthUser != 0
}

// readsMemory says whether work calls functions that read memory.
func readsMemory(w *arch.ProbeOp) bool {
	if w.Role == arch.RoleEntry {
		return slices.ContainsFunc(w.Prog.EntryBases(), func(b fetch.Base) bool { return b.Kind == fetch.BaseStack })
	}
	return !w.Count && w.Call == nil && w.Prog.Loads()
}

// measuresKernel says whether a string of the program may be a kernel's.
func measuresKernel(p *fetch.Program) bool {
	return p != nil && slices.ContainsFunc(p.Args, func(a fetch.Arg) bool { return isString(&a) && stringSpace(&a) != spaceUser })
}

// chooseKernel picks the scratch registers: if C functions are called the last two are ones
// that they keep. Registers that are free come first, then those that no argument reads.
func (f *frame) chooseKernel(live, used RegSet, n kernelUse) {
	candidates := []Reg{RAX, R10, R11, RCX, RDX, RSI, RDI, R8, R9, RBX, R12, R13, R14, R15}
	f.scratch = [4]Reg{RAX, RDX, RAX, RAX}
	var taken RegSet
	if n.full {
		candidates, taken = slices.DeleteFunc(candidates, func(r Reg) bool { return r == RAX || r == RDX }), Set(RAX, RDX)
	}
	if n.calls {
		candidates = []Reg{RBX, R12, R13, R14, R15}
	}
	for i := range f.scratch[2:] {
		r := firstOf(candidates, taken|live|used, taken|used, taken)
		f.scratch[2+i] = r
		taken |= Set(r)
		if !n.full {
			f.scratch[3] = r
			break
		}
	}
}

// firstOf gives the first candidate that is in none of the sets that can be avoided, the
// first of which says most.
func firstOf(candidates []Reg, avoid ...RegSet) Reg {
	for _, no := range avoid {
		for _, r := range candidates {
			if !no.Has(r) {
				return r
			}
		}
	}
	return candidates[0]
}

// kernelStack is a frame that is built by pushes:
//
//	drop(%rsp)  the stack pointer at the point
//	            saved registers
//	            flags, if they are needed
//	            temporaries, and the piece of a string
type kernelStack struct {
	*frame
	regs   []Reg
	popf   bool  // the flags are put back
	cld    bool  // C functions are called
	locals int32 // bytes of the temporaries
}

// pushes lays the frame out.
func (f *frame) pushes(live RegSet, u uses, n kernelUse) *kernelStack {
	p := &kernelStack{frame: f, popf: n.calls || live&Flags != 0, cld: n.calls, locals: 8 * int32(n.temps)}
	clobbered := Set(f.scratch[2], f.scratch[3])
	if n.full {
		clobbered |= Set(RAX, RDX)
	}
	if n.calls {
		clobbered |= callClobbers
	}
	if n.chunk {
		f.chunk = p.locals
		p.locals += chunkBytes
	}
	if n.stage {
		f.stage = p.locals
		p.locals += chunkBytes
	}
	if n.regs {
		f.regs = p.locals
		p.locals += regsSize
	}
	f.drop = p.locals
	if p.popf || n.flags || u.flags {
		f.user = f.drop
		f.drop += 8
	}
	for r := RAX; r <= R15; r++ {
		if clobbered.Has(r) && (live | u.regs).Has(r) {
			p.regs = append(p.regs, r)
			f.slots.put(r, f.drop)
			f.drop += 8
		}
	}
	return p
}

func (p *kernelStack) enter() {
	for _, r := range slices.Backward(p.regs) {
		p.Push(r)
	}
	if p.user >= 0 {
		p.Pushfq()
	}
	if p.cld {
		p.Cld()
	}
	if p.locals > 0 {
		p.Lea(RSP, At(RSP, -p.locals))
	}
}

func (p *kernelStack) leave() {
	drop := p.locals
	if p.user >= 0 && !p.popf {
		drop += 8
	}
	if drop > 0 {
		p.Lea(RSP, At(RSP, drop))
	}
	if p.popf {
		p.Popfq()
	}
	for _, r := range p.regs {
		p.Pop(r)
	}
}

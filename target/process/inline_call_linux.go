package process

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// inLineCall is a handler in line that generated code can call.
type inLineCall struct {
	arch.Call
	handler uint64
	of      uint64              // its probe's struct
	shared  *target.InLineCalls // nil: it is no return probe's
	off     *atomic.Bool        // target.Handler.Off; nil: nobody switches it off
	muted   bool                // it was switched off for that
	faults  uint64              // that FaultedHandlers has told of
	looped  bool                // it did not end by itself
	ended   bool                // its descriptor is free once no removed detour is left that calls it
}

// descMisses is where a descriptor's count of misses stands.
const descMisses = native.SlotDescSize

// newCall makes a handler of a module callable. EFAULT: it is in no module's code; ENOSPC: there are too many.
func (l *inLine) newCall(h *target.Handler) (*arch.Call, error) {
	in := h.InLine
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.ContainsFunc(l.t.kmods, func(m *kmodule) bool {
		return m.at.Text.Contains(in.Addr) && (in.Fault == 0 || m.at.Text.Contains(in.Fault))
	}) {
		return nil, errno.Errorf(unix.EFAULT, "process %d: no module's code has a handler at 0x%x", l.t.p.PID(), in.Addr)
	}
	if in.Kind == target.InLineJump && h.Point.Go {
		return nil, errno.Errorf(unix.EOPNOTSUPP, "process %d: a jprobe takes the arguments of C functions: use a kprobe, whose registers have those of Go", l.t.p.PID())
	}
	at, ok := l.takeDesc()
	if !ok {
		return nil, errno.Errorf(unix.ENOSPC, "process %d: it has %d handlers in line, and room for no more", l.t.p.PID(), descCount)
	}
	gate := l.gen.Gate(slotKinds[in.Kind], in.Vectors, in.Use)
	d := native.SlotDesc{Handler: in.Addr, Of: in.Of, IP: h.Point.Addr, Missed: at + descMisses, Abandon: gate.Abandon, Fault: in.Fault}
	if c := in.Calls; c != nil {
		b, err := l.blocksOf(c)
		if err != nil {
			l.free = append(l.free, at)
			return nil, err
		}
		b.users++
		d.Pool, d.Blocks, d.Block, d.Stride = c.Pool.Base, b.Start, uint64(native.SlotBlock(c.Data)), uint32(c.Pool.Stride)
		if c.Entry {
			d.Marked = 1
		}
	}
	if !h.Point.Go {
		d.RedZone = redZone
	}
	b := make([]byte, descStep)
	d.Put(b)
	if err := l.t.p.WriteMem(at, b); err != nil {
		l.free = append(l.free, at)
		return nil, err
	}
	c := &inLineCall{Call: arch.Call{Desc: at, Gate: gate.Addr}, handler: in.Addr}
	c.of, c.off, c.shared = in.Of, h.Off, in.Calls
	l.calls[&c.Call] = c
	return &c.Call, nil
}

// slotKinds are the gates of handlers.
var slotKinds = [...]native.SlotKind{
	target.InLinePre: native.SlotPre, target.InLinePost: native.SlotPost, target.InLineEntry: native.SlotEntry, target.InLineReturn: native.SlotReturn,
	target.InLineJump: native.SlotJump,
}

// callBlocks is the memory in which a module is told of the calls of a return probe.
type callBlocks struct {
	interval.Range
	users int // handlers
}

// leave ends a handler's use of that memory, which goes with the last one: nobody is in a detour that leads to it. Precondition: mu is held.
func (l *inLine) leave(c *target.InLineCalls) {
	b := l.blocks[c]
	if b == nil {
		return
	}
	if b.users--; b.users == 0 {
		delete(l.blocks, c)
		_ = l.t.stopped(func(s *ptrace.Stopped) error { return s.Munmap(b.Start, b.End-b.Start) }) // else Close takes it out
	}
}

// blocksOf maps that memory, with the first handler. Precondition: mu is held.
func (l *inLine) blocksOf(c *target.InLineCalls) (*callBlocks, error) {
	if b := l.blocks[c]; b != nil {
		return b, nil
	}
	t := l.t
	n := native.PoolBytes(c.Pool.Slots, c.Pool.Stride) >> c.Pool.Stride
	size := procfs.PageUp(n * uint64(native.SlotBlock(c.Data)))
	if err := t.checkRoom("the calls of a return probe", headroom.Take{Mapped: size, Locked: size}); err != nil {
		return nil, err
	}
	b := new(callBlocks)
	err := t.stopped(func(s *ptrace.Stopped) error {
		at, err := t.mapPrivate(s, heapName, 0, size, unix.PROT_READ|unix.PROT_WRITE)
		b.Range = interval.Range{Start: at, End: at + size}
		return err
	})
	if err != nil {
		return nil, err
	}
	l.blocks[c] = b
	return b, nil
}

// redZone is how many bytes below the stack pointer a C function may use (System V ABI, x86-64, 3.2.2).
const redZone = 128

// isInLine says whether a call's handler runs in line.
func (t *Target) isInLine(c *arch.Call) bool { return t.inLine != nil && t.inLine.call(c) != nil }

// call is what is known of a call; nil: it is none.
func (l *inLine) call(c *arch.Call) *inLineCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[c]
}

// collect frees what ended calls had. A detour that was taken out, and in which a thread may be, may lead to any. Precondition: mu is held.
func (l *inLine) collect() {
	if len(l.t.zombie) > 0 {
		return
	}
	for c, in := range l.calls {
		if in.ended {
			l.free = append(l.free, c.Desc)
			delete(l.calls, c)
			l.leave(in.shared)
		}
	}
}

// takeDesc takes a free descriptor. Precondition: mu is held.
func (l *inLine) takeDesc() (at uint64, ok bool) {
	l.collect()
	if n := len(l.free); n > 0 {
		at, l.free = l.free[n-1], l.free[:n-1]
		return at, true
	}
	if l.next == l.data.Start+descsOff+descStep*descCount {
		return 0, false
	}
	l.next += descStep
	return l.next - descStep, true
}

// descs are the descriptors of handlers in a range.
func (l *inLine) descs(text interval.Range) map[uint64]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[uint64]bool{}
	for c, in := range l.calls {
		if text.Contains(in.handler) {
			out[c.Desc] = true
		}
	}
	return out
}

// off has a handler not be called any more.
func (l *inLine) off(c *arch.Call) {
	_ = l.t.p.WriteMem(c.Desc+native.SlotDescOff, []byte{1, 0, 0, 0}) // else the process is gone
}

// wake has handlers be called again that were switched off for a time. It comes before code that calls them is put in.
func (l *inLine) wake() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, in := range l.calls {
		if !in.muted || in.ended || in.off == nil || in.off.Load() {
			continue
		}
		if err := l.t.p.WriteMem(c.Desc+native.SlotDescOff, make([]byte, 4)); err != nil {
			return err
		}
		in.muted = false
	}
	return nil
}

// FaultedHandlers gives the handlers in which something has faulted, or that did not end, since it was called last.
func (t *Target) FaultedHandlers() (of []target.FaultedHandler) {
	if t.inLine == nil {
		return nil
	}
	l := t.inLine
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, in := range l.calls {
		if _, n := l.counts(c); n > in.faults {
			in.faults = n
			of = append(of, target.FaultedHandler{Of: in.of, Loops: in.looped})
		}
	}
	return of
}

// end forgets a call, and waits until its handler does not run. Precondition: no site's code calls it.
func (l *inLine) end(c *arch.Call) {
	l.quiet(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[c].ended = true
}

// quietWait is how long a run is waited for: one that loops is ended before that. A signal handler of the program's may keep one for ever; then what it
// runs in stays, since Unload and reclaim see its slot.
const quietWait = 10 * time.Second

// quiet switches a handler off and waits until nobody runs it.
func (l *inLine) quiet(c *arch.Call) {
	l.mu.Lock()
	l.calls[c].muted = true
	l.mu.Unlock()
	l.off(c)
	for pause, end := time.Microsecond, time.Now().Add(quietWait); time.Now().Before(end); pause = min(2*pause, 10*time.Millisecond) {
		runs, err := l.slots()
		if err != nil || !slices.ContainsFunc(runs, func(r slotRun) bool { return r.Desc == c.Desc }) {
			return
		}
		l.t.EndLoops()
		time.Sleep(pause)
	}
}

// counts gives how often a handler was missed, and how often something has faulted in it.
func (l *inLine) counts(c *arch.Call) (missed, faults uint64) {
	b := make([]byte, descStep)
	if l.t.p.ReadMem(c.Desc, b) != nil {
		return 0, 0
	}
	return binary.LittleEndian.Uint64(b[descMisses:]), uint64(binary.LittleEndian.Uint32(b[native.SlotDescFaults:]))
}

// slotRun is a run of a handler in line.
type slotRun struct {
	native.SlotRun
	at uint64 // of its key
}

// slots gives the runs that are in progress. The process can write anything there.
func (l *inLine) slots() ([]slotRun, error) {
	keys := make([]byte, 8*slotCount)
	if err := l.t.p.ReadMem(l.data.Start+keysOff, keys); err != nil {
		return nil, err
	}
	var out []slotRun
	slot := make([]byte, native.SlotSize)
	for n := range slotCount {
		key := le.Uint64(keys[8*n:])
		if key == 0 {
			continue
		}
		if err := l.t.p.ReadMem(l.data.Start+slotsOff+uint64(n)*native.SlotSize, slot); err != nil {
			return nil, err
		}
		out = append(out, slotRun{native.ReadSlot(key, slot), l.data.Start + keysOff + uint64(8*n)})
	}
	return out, nil
}

// ranges are where code lies that runs in line.
func (l *inLine) ranges() []interval.Range {
	in := []interval.Range{l.code}
	for _, m := range l.t.kmods {
		in = append(in, m.at.Text)
	}
	return in
}

// inLineRuns are the handlers in line that run while the world is stopped.
type inLineRuns struct {
	in []interval.Range  // where code lies that runs in line
	by map[uint64]uint64 // where the gate goes back to, by the FS base of the thread
}

// inLineRuns reads them. Precondition: the world is stopped.
func (t *Target) inLineRuns() *inLineRuns {
	r := &inLineRuns{by: map[uint64]uint64{}}
	if t.inLine == nil {
		return r
	}
	r.in = t.inLine.ranges()
	runs, err := t.inLine.slots()
	if err != nil {
		return r // the process is gone
	}
	for _, run := range runs {
		if !run.Start {
			r.by[run.Key] = run.BackTo
		}
	}
	return r
}

// backs gives the places in a detour that a thread goes back to from a handler in line: of one in a gate its register tells, which may
// hold anything else.
func (r *inLineRuns) backs(th *ptrace.Thread) (at []uint64) {
	if interval.AnyContains(r.in, th.ResumePC()) {
		regs := th.Regs()
		at = append(at, gateLink(&regs))
	}
	if back, ok := r.by[th.ThreadPointer()]; ok {
		at = append(at, back)
	}
	return at
}

// inLineResumes gives the places in detours that threads may go back to from handlers in line, also those that a signal handler
// has interrupted. A run that no thread of the process has any more is over, and its slot is freed: its thread has ended in the middle. Precondition:
// the world is stopped.
func (t *Target) inLineResumes(s *ptrace.Stopped) (backs []uint64, err error) {
	if t.inLine == nil {
		return nil, nil
	}
	runs, bases := t.inLineRuns(), map[uint64]bool{}
	for _, th := range s.Everyone() {
		bases[th.ThreadPointer()] = true
		backs = append(backs, runs.backs(th)...)
	}
	err = t.contexts(s, t.golang != nil, func(_ *ptrace.Thread, at, v uint64) {
		if !interval.AnyContains(runs.in, v) {
			return
		}
		backs = append(backs, v)
		if r, err := t.p.SavedRegs(at); err == nil {
			backs = append(backs, gateLink(&r))
		}
	})
	if err != nil {
		return nil, err
	}
	return backs, t.inLine.freeOver(s, bases)
}

// freeOver frees the slots of runs whose thread's FS base no thread has. That of one which waits for its vfork child is not known.
func (l *inLine) freeOver(s *ptrace.Stopped, bases map[uint64]bool) error {
	if len(s.Parked()) > 0 {
		return nil
	}
	runs, err := l.slots()
	if err != nil {
		return err
	}
	for _, r := range runs {
		if bases[r.Key] {
			continue
		}
		if err := l.t.p.WriteMem(r.at, make([]byte, 8)); err != nil {
			return err
		}
	}
	return nil
}

// inLineBusy fails while a thread runs a handler in line, or is on its way to or from one. Precondition: the world is stopped.
func (t *Target) inLineBusy(s *ptrace.Stopped) error {
	backs, err := t.inLineResumes(s)
	if err == nil && len(backs) > 0 {
		err = ErrInDetour
	}
	return err
}

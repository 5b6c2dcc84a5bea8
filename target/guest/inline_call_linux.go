package guest

import (
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// inLineCall is a handler in line that generated code can call, or a gate that is none's.
type inLineCall struct {
	handler uint64              // 0: it is a gate
	of      uint64              // its probe's struct
	shared  *target.InLineCalls // nil: it is no return probe's
	off     *atomic.Bool        // target.Handler.Off; nil: nobody switches it off
	muted   bool                // it was switched off for that
	faults  uint64              // that FaultedHandlers has told of
	looped  bool                // it did not end by itself
	ended   uint64              // the change after which its descriptor is free once no detour is left that calls it, and one more; 0: it has not ended
}

// newCall makes a handler of a module callable, or a gate. EFAULT: it is in no module's code; ENOSPC: there are too many; EOPNOTSUPP: its code uses vector
// registers.
func (l *inLine) newCall(h *target.Handler) (*arch.Call, error) {
	in := h.InLine
	l.mu.Lock()
	defer l.mu.Unlock()
	if in.Gate != 0 {
		c := &arch.Call{Desc: l.addr(l.at.keys), Gate: in.Gate, Internal: true}
		l.calls[c] = &inLineCall{}
		return c, nil
	}
	switch {
	case !slices.ContainsFunc(l.kmods, func(m *kmodule) bool { return m.at.Text.Contains(in.Addr) }):
		return nil, errno.Errorf(unix.EFAULT, "no module's code in the guest has a handler at 0x%x", in.Addr)
	case in.Vectors:
		return nil, errno.Errorf(unix.EOPNOTSUPP, "a handler in a kernel that uses vector registers: compile the module with -mgeneral-regs-only")
	}
	at, ok := l.takeDesc()
	if !ok {
		return nil, errno.Errorf(unix.ENOSPC, "the guest has %d handlers in line, and room for no more", descCount)
	}
	gate := l.gates[slotKinds[in.Kind]]
	d := native.SlotDesc{Handler: in.Addr, Of: in.Of, IP: h.Point.Addr, Missed: at + native.SlotDescSize, Abandon: gate.abandon, Fault: in.Fault}
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
	b := l.desc(at)
	clear(b)
	d.Put(b)
	c := &arch.Call{Desc: at, Gate: gate.addr}
	l.calls[c] = &inLineCall{handler: in.Addr, of: in.Of, off: h.Off, shared: in.Calls}
	return c, nil
}

// slotKinds are the gates of handlers.
var slotKinds = [...]native.SlotKind{
	target.InLinePre: native.SlotPre, target.InLinePost: native.SlotPost, target.InLineEntry: native.SlotEntry, target.InLineReturn: native.SlotReturn,
	target.InLineJump: native.SlotJump,
}

// desc is the memory of a descriptor.
func (l *inLine) desc(at uint64) []byte {
	return l.bytes(interval.Range{Start: at, End: at + descStep})
}

// callBlocks is the memory in which a module is told of the calls of a return probe.
type callBlocks struct {
	interval.Range
	users int // handlers
}

// blocksOf gives that memory, with the first handler. Precondition: mu is held.
func (l *inLine) blocksOf(c *target.InLineCalls) (*callBlocks, error) {
	if b := l.blocks[c]; b != nil {
		return b, nil
	}
	n := native.PoolBytes(c.Pool.Slots, c.Pool.Stride) >> c.Pool.Stride
	size := procfs.PageUp(n * uint64(native.SlotBlock(c.Data)))
	at, ok := l.data.Take(l.data.Addr, l.data.Addr, int(size))
	if !ok {
		return nil, errno.Errorf(unix.ENOSPC, "%d calls of a return probe, each with %d bytes of data, take %d bytes: the guest's memory for modules has %d, of which %d are taken; set maxactive, or a smaller data_size",
			n, c.Data, size, l.data.Size, l.data.Used())
	}
	b := &callBlocks{Range: interval.Range{Start: at, End: at + size}}
	clear(l.bytes(b.Range))
	l.blocks[c] = b
	return b, nil
}

// leave ends a handler's use of that memory, which goes with the last one: nobody is in a detour that leads to it. Precondition: mu is held.
func (l *inLine) leave(c *target.InLineCalls) {
	b := l.blocks[c]
	if b == nil {
		return
	}
	if b.users--; b.users == 0 {
		delete(l.blocks, c)
		l.data.Free(patch.Room{Addr: b.Start, Size: int(b.End - b.Start)})
	}
}

// call is what is known of a call; nil: it is none.
func (l *inLine) call(c *arch.Call) *inLineCall {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[c]
}

// collect frees what ended calls had. A detour that was taken out before a call ended, and in which a vCPU may be, may lead to it. Precondition: mu is held.
func (l *inLine) collect() {
	oldest := ^uint64(0)
	for _, change := range l.retired {
		oldest = min(oldest, change)
	}
	for c, in := range l.calls {
		if in.ended == 0 || in.ended > oldest {
			continue
		}
		delete(l.calls, c)
		if in.handler != 0 {
			l.free = append(l.free, c.Desc)
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
	if l.next == l.addr(l.at.descs)+descStep*descCount {
		return 0, false
	}
	l.next += descStep
	return l.next - descStep, true
}

// setOff has a handler not be called any more, or again.
func (l *inLine) setOff(c *arch.Call, off uint32) {
	le.PutUint32(l.desc(c.Desc)[native.SlotDescOff:], off)
}

// wake has handlers be called again that were switched off for a time. It comes before code that calls them is put in.
func (l *inLine) wake() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, in := range l.calls {
		if in.muted && in.ended == 0 && (in.off == nil || !in.off.Load()) {
			l.setOff(c, 0)
			in.muted = false
		}
	}
}

// FaultedHandlers gives the handlers in which something has faulted, or that did not end, since it was called last.
func (t *Target) FaultedHandlers() (of []target.FaultedHandler) {
	l := t.inLine
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, in := range l.calls {
		if in.handler == 0 {
			continue
		}
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
	l.calls[c].ended = l.t.changes + 1
}

// quietWait is how long a run is waited for: one that loops is ended before that.
const quietWait = 10 * time.Second

// quiet switches a handler off and waits until no CPU runs it.
func (l *inLine) quiet(c *arch.Call) {
	l.mu.Lock()
	in := l.calls[c]
	if in.handler != 0 {
		in.muted = true
		l.setOff(c, 1)
	}
	l.mu.Unlock()
	if in.handler == 0 {
		return
	}
	for pause, end := time.Microsecond, time.Now().Add(quietWait); time.Now().Before(end); pause = min(2*pause, 10*time.Millisecond) {
		if l.t.ended.Load() != nil || !slices.ContainsFunc(l.runs(), func(r slotRun) bool { return r.Desc == c.Desc }) {
			return
		}
		l.t.EndLoops()
		time.Sleep(pause)
	}
}

// counts gives how often a handler was missed, and how often something has faulted in it.
func (l *inLine) counts(c *arch.Call) (missed, faults uint64) {
	b := l.desc(c.Desc)
	return le.Uint64(b[native.SlotDescSize:]), uint64(le.Uint32(b[native.SlotDescFaults:]))
}

// missed tells how often a call's handler was not run. A gate that is no handler's misses nothing.
func (l *inLine) missed(c *arch.Call, in *inLineCall) target.Missed {
	if in.handler == 0 {
		return target.Missed{}
	}
	n, _ := l.counts(c)
	return target.Missed{Busy: n}
}

// slotRun is a run of a handler in line.
type slotRun struct {
	native.SlotRun
	cpu int
}

// runs gives the runs that are in progress. The guest can write anything there.
func (l *inLine) runs() (out []slotRun) {
	for n := range l.at.cpus {
		if key := le.Uint64(l.mem[l.at.keys+8*n:]); key != 0 {
			out = append(out, slotRun{native.ReadSlot(key, l.mem[l.at.slots+n*native.SlotSize:]), n})
		}
	}
	return out
}

package self

import (
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
)

// inLineCall is a handler in line that generated code can call.
type inLineCall struct {
	arch.Call
	of     uint64              // its probe's struct
	shared *target.InLineCalls // nil: it is no return probe's
	off    *atomic.Bool        // target.Handler.Off; nil: nobody switches it off
	muted  bool                // it was switched off for that
	faults uint32              // that FaultedHandlers has told of
	ended  bool                // its descriptor is free once no detour is left that leads to it
}

// lineCaller is the Caller of a target that takes modules.
type lineCaller struct {
	*Target
	l *inLine
}

// NewCall makes a handler callable by generated code.
func (c *lineCaller) NewCall(h *target.Handler) (*arch.Call, error) {
	if h.InLine == nil {
		return c.Target.NewCall(h)
	}
	return c.l.newCall(h)
}

// EndCall waits until no thread runs the handler, nor is on the way to it, and forgets it.
func (c *lineCaller) EndCall(call *arch.Call) {
	if !c.l.endCall(call) {
		c.Target.EndCall(call)
	}
}

// Quiet waits until no thread runs the handler, whose Off is set.
func (c *lineCaller) Quiet(call *arch.Call) {
	if !c.l.quiet(call) {
		c.Target.Quiet(call)
	}
}

// Missed tells how often the call's handler was not run.
func (c *lineCaller) Missed(call *arch.Call) target.Missed {
	if m, is := c.l.missed(call); is {
		return m
	}
	return c.Target.Missed(call)
}

// What stands behind a descriptor: its count of misses, and not 0 if the watch has ended a run that did not end.
const (
	descMisses = amd64.SlotDescSize
	descLooped = descMisses + 8
)

// lineKinds are the gates of handlers.
var lineKinds = [...]amd64.SlotKind{
	target.InLinePre: amd64.SlotPre, target.InLinePost: amd64.SlotPost, target.InLineEntry: amd64.SlotEntry, target.InLineReturn: amd64.SlotReturn,
	target.InLineJump: amd64.SlotJump,
}

// newCall makes a handler of a module callable. EFAULT: it is in no module's code; EOPNOTSUPP: a function of Go has no jprobe; ENOSPC: there are too
// many.
func (l *inLine) newCall(h *target.Handler) (*arch.Call, error) {
	in := h.InLine
	if !l.inModule(in.Addr) || in.Fault != 0 && !l.inModule(in.Fault) {
		return nil, errno.Errorf(unix.EFAULT, "no module's code has a handler at 0x%x", in.Addr)
	}
	if in.Kind == target.InLineJump && h.Point.Go {
		return nil, errno.Errorf(unix.EOPNOTSUPP, "a jprobe of a module takes the arguments of C functions: use a kprobe, whose registers have those of Go")
	}
	l.collect()
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.takeDesc()
	if !ok {
		return nil, errno.Errorf(unix.ENOSPC, "there are %d handlers in line, and there is room for no more", descCount)
	}
	gate := l.gen.Gate(lineKinds[in.Kind], in.Vectors, in.Use)
	d := amd64.SlotDesc{Handler: in.Addr, Of: in.Of, IP: h.Point.Addr, Missed: at + descMisses, Abandon: gate.Abandon, Fault: in.Fault}
	if c := in.Calls; c != nil {
		b, err := l.blocksOf(c)
		if err != nil {
			l.free = append(l.free, at)
			return nil, err
		}
		b.users++
		d.Pool, d.Blocks, d.Block, d.Stride = c.Pool.Base, b.Start, uint64(amd64.SlotBlock(c.Data)), uint32(c.Pool.Stride)
		if c.Entry {
			d.Marked = 1
		}
	}
	if !h.Point.Go {
		d.RedZone = redZone
	}
	b := bytesAt(at, descStep)
	clear(b)
	d.Put(b)
	c := &inLineCall{Call: arch.Call{Desc: at, Gate: gate.Addr}, of: in.Of, off: h.Off, shared: in.Calls}
	l.calls[&c.Call] = c
	return &c.Call, nil
}

// redZone is how many bytes below the stack pointer a C function may use (System V ABI, x86-64, 3.2.2).
const redZone = 128

func (l *inLine) inModule(addr uint64) bool {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	return slices.ContainsFunc(l.modules, func(m *module) bool { return m.at.Text.Contains(addr) })
}

// callBlocks is the memory in which a module is told of the calls of a return probe.
type callBlocks struct {
	interval.Range
	users int // handlers
}

// blocksOf maps that memory, with the first handler. Precondition: mu is held.
func (l *inLine) blocksOf(c *target.InLineCalls) (*callBlocks, error) {
	if b := l.blocks[c]; b != nil {
		return b, nil
	}
	n := amd64.PoolBytes(c.Pool.Slots, c.Pool.Stride) >> c.Pool.Stride
	size := (n*uint64(amd64.SlotBlock(c.Data)) + pageSize - 1) &^ (pageSize - 1)
	at, err := mapAnon(0, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, errno.Errorf(unix.ENOMEM, "the calls of a return probe: %w", err)
	}
	b := &callBlocks{Range: interval.Range{Start: at, End: at + size}}
	l.blocks[c] = b
	return b, nil
}

// takeDesc takes a free descriptor. Precondition: mu is held.
func (l *inLine) takeDesc() (at uint64, ok bool) {
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

// collect frees what ended calls had, unless a thread may be on the way to one of them.
func (l *inLine) collect() {
	l.t.mu.Lock()
	quiet := len(l.t.zombie) == 0
	l.t.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, in := range l.calls {
		if !quiet || !in.ended {
			continue
		}
		l.free = append(l.free, c.Desc)
		delete(l.calls, c)
		if b := l.blocks[in.shared]; b != nil {
			if b.users--; b.users == 0 {
				delete(l.blocks, in.shared)
				_ = unmap(b.Start, b.End-b.Start) // it was mapped whole
			}
		}
	}
}

// call gives what is known of a call; nil: it is none of a handler in line. Precondition: mu is held.
func (l *inLine) call(c *arch.Call) *inLineCall { return l.calls[c] }

// endCall switches a handler off, waits until nobody runs it nor is on the way to it, and forgets it. false: the call is none of a handler in line.
func (l *inLine) endCall(c *arch.Call) bool {
	if !l.quiet(c) {
		return false
	}
	_ = l.t.drain() // else a thread could not be stopped, and the descriptor stays
	l.mu.Lock()
	l.call(c).ended = true
	l.mu.Unlock()
	l.collect()
	return true
}

// quiet switches a handler off and waits until nobody runs it. A thread that has found it on, and has not noted its run yet, may run it once more: endCall waits
// for that one too.
func (l *inLine) quiet(c *arch.Call) bool {
	l.mu.Lock()
	in := l.call(c)
	if in == nil {
		l.mu.Unlock()
		return false
	}
	in.muted = true
	word32At(c.Desc + amd64.SlotDescOff).Store(1)
	l.mu.Unlock()
	for pause := 10 * time.Microsecond; l.runs(c.Desc); pause = min(2*pause, drainWait) {
		time.Sleep(pause)
	}
	return true
}

// runs says whether a handler runs.
func (l *inLine) runs(desc uint64) bool {
	for n := range uint64(lineSlots) {
		at := l.data.Start + slotsOff + n*amd64.SlotSize
		if peek(l.data.Start+keysOff+8*n) != 0 && word32At(at+amd64.SlotAtomic).Load() != 0 && peek(at+amd64.SlotDescAt) == desc {
			return true
		}
	}
	return false
}

// wake has handlers be called again that were switched off for a time.
func (l *inLine) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, in := range l.calls {
		if in.muted && !in.ended && in.off != nil && !in.off.Load() {
			word32At(c.Desc + amd64.SlotDescOff).Store(0)
			in.muted = false
		}
	}
}

// missed tells how often a handler was not called.
func (l *inLine) missed(c *arch.Call) (m target.Missed, is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.call(c) == nil {
		return m, false
	}
	return target.Missed{Busy: peek(c.Desc + descMisses)}, true
}

// FaultedHandlers gives the handlers in which something has faulted, or that did not end, since it was called last.
func (l *inLine) FaultedHandlers() (of []target.FaultedHandler) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, in := range l.calls {
		if n := word32At(c.Desc + amd64.SlotDescFaults).Load(); n != in.faults {
			in.faults = n
			of = append(of, target.FaultedHandler{Of: in.of, Loops: peek(c.Desc+descLooped) != 0})
		}
	}
	return of
}

// EndLoops does nothing: the watch ends loops, which needs no goroutine to run.
func (l *inLine) EndLoops() {}

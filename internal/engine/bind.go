package engine

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// bind makes the probe's handlers callable. Precondition: its event has its place, and its
// pool if it is a return probe.
func (p *Probe) bind() error {
	c := p.core
	p.at, p.golang, p.local = p.ev.points[0], c.t.CodegenEnv().Go != nil, c.can.Own
	if t := c.can.ReturnReplacer; t != nil {
		p.caller = t.Caller
	}
	p.task = c.can.Task
	if err := p.room(); err != nil {
		return err
	}
	next, behind := p.at, -1
	if p.h.Post != nil { // what stands behind the instruction takes an analysis to know
		next = p.ev.fn.a.Next(p.at)
		behind = p.returnAt(next)
	}
	var n calls
	for _, b := range []struct {
		want bool
		to   **bound
		run  run
		at   uint64
		ret  int
	}{
		{p.h.Pre != nil, &n.pre, p.runPre, p.at, p.returnAt(p.at)},
		{p.h.Post != nil, &n.post, p.runPost, next, behind},
		{p.tellsFaults(), &n.fault, p.runFault, p.at, p.returnAt(p.at)},
		{p.h.Entry != nil, &n.entry, p.runEntry, p.at, 0},
		{p.h.Return != nil, &n.exit, p.runExit, p.at, 0},
		{p.h.Return != nil && p.hasTail(), &n.tail, p.runTail, p.at, 0},
		{p.h.Jump != nil, &n.jump, p.runJump, p.at, 0},
	} {
		if !b.want {
			continue
		}
		fail := p.faulted
		if b.to == &n.fault { // it is not told of its own faults
			fail = p.broken
		}
		x, err := c.newCall(p, b.run, b.to == &n.jump, fail, b.at, b.ret)
		if err != nil {
			c.end(&n)
			return err
		}
		*b.to = x
	}
	p.calls = n
	return nil
}

// tellsFaults says whether the probe's fault handler is told of faults of the instruction. One
// that may sleep is not: it could at the entries of functions alone.
func (p *Probe) tellsFaults() bool {
	return p.h.Fault != nil && p.h.OwnFaults && !p.sleepable && p.core.t.CodegenEnv().Kernel == nil
}

// returnAt is where the return address stands before the instruction at an address, from the
// stack pointer on; -1: it is not known.
func (p *Probe) returnAt(at uint64) int {
	if n, ok := p.ev.fn.a.Ret(at); ok {
		return n
	}
	return -1
}

func (p *Probe) hasTail() bool {
	exits, _ := p.ev.exits() // an error has been told by points
	for _, x := range exits {
		if x.Tail {
			return true
		}
	}
	return false
}

// run is one of the runs above, of the handler that is bound.
type run func(b *bound, r *Regs, slot uint64) arch.Action

// newCall makes a handler callable; jump: a jprobe's Entry, after do. at is what Regs.IP is to
// say, ret how far the return address is from the stack pointer there.
func (c *Core) newCall(p *Probe, do run, jump bool, fail func(*Regs, int, fmt.Stringer) bool, at uint64, ret int) (*bound, error) {
	caller := c.can.Caller
	if caller == nil {
		return nil, errno.Errorf(unix.EOPNOTSUPP, "handlers can not be called in this target: use an event, or a probe without handlers")
	}
	fn := p.ev.Place.Func
	if err := p.maySleep(); err != nil {
		return nil, err
	}
	b := &bound{h: target.Handler{
		Off: &p.mute, Fault: fail, Name: p.name(), WideVectors: p.ev.fn.a.UsesWideVectors(), Sleepable: p.sleepable,
		Point: amd64.Point{Addr: at, Func: p.ev.fn.start, Go: isGo(fn), ABI0: fn.ABI0 || fn.Asm, Ret: ret},
	}}
	b.h.Run = func(r *Regs, slot uint64) arch.Action { return do(b, r, slot) }
	if jump {
		b.h.Entry, b.h.Stack, b.h.Spill = p.h.Jump, p.stack, p.spill
	}
	var err error
	b.c, err = caller.NewCall(&b.h)
	return b, err
}

// name is what messages call the probe.
func (p *Probe) name() string {
	return fmt.Sprintf("%s on %s+0x%x", p.what(), p.ev.Place.Func.Name, p.at-p.ev.fn.start)
}

// what is the kind of the probe.
func (p *Probe) what() string {
	switch {
	case p.h.Jump != nil:
		return "jprobe"
	case p.def.Kind == event.Return:
		return "kretprobe"
	}
	return "kprobe"
}

// maySleep refuses handlers that may block where the goroutine that hits can not be parked. It
// can at the entry of a function that checks its stack (and at its returns): such a function
// is one that the runtime may preempt, and there no write barrier is in progress.
func (p *Probe) maySleep() error {
	if !p.sleepable || !p.core.can.Own {
		return nil
	}
	f, name := p.ev.fn, p.ev.Place.Func.Name
	var why string
	switch {
	case !isGo(p.ev.Place.Func):
		why = "it is not Go's"
	case strings.HasPrefix(name, "runtime.") || strings.HasPrefix(name, "internal/runtime/") || strings.HasPrefix(name, "reflect."):
		why = "the runtime does not preempt its own functions and those of package reflect"
	case f.a.EntryPoint() == f.start:
		why = "it does not check its stack, so the runtime may not expect it to be preempted"
	case p.at != f.a.EntryPoint():
		why = "the instruction is not its entry"
	case p.h.Post != nil:
		why = "a post handler does not run at its entry"
	default:
		return nil
	}
	return errno.Errorf(unix.EOPNOTSUPP, "a handler in %s+0x%x may not sleep: %s; use an atomic handler (no FlagSleepable)", f.name, p.at-f.start, why)
}

// end forgets calls. No handler of theirs runs when it returns.
func (c *Core) end(n *calls) {
	caller := c.can.Caller
	if caller == nil {
		return
	}
	c.ending.Add(1)
	defer c.ending.Add(-1)
	for _, b := range n.all() {
		if b != nil {
			caller.EndCall(b.c)
		}
	}
}

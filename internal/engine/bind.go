package engine

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/handler"
	"kprobes.dev/kprobes/internal/errno"
)

// bind makes the probe's handlers callable. Precondition: its event has its place, and its
// pool if it is a return probe.
func (c *Core) bind(p *Probe) error {
	p.at, p.h.Faults = p.ev.points[0], &c.faults
	if err := p.maySleep(c.can.Own); err != nil {
		return err
	}
	return p.h.Bind(p.place(), c.calling())
}

// place is where the probe's handlers are called.
func (p *Probe) place() *handler.Place {
	e := p.ev
	fn := e.Place.Func
	return &handler.Place{
		Name: p.name(), At: p.at, Func: e.fn.Start, Go: isGo(fn), ABI0: fn.ABI0 || fn.Asm, Code: e.fn.Code,
		Tail: p.hasTail(), Pool: e.work.Pool, Epoch: &e.epoch, Stack: p.stack, Spill: p.spill,
	}
}

// calling is what handlers are called in.
func (c *Core) calling() *handler.Target {
	w := c.t.CodegenEnv()
	t := &handler.Target{Caller: c.can.Caller, Own: c.can.Own, Go: w.Go != nil, Kernel: w.Kernel != nil, Task: c.can.Task}
	if r := c.can.ReturnReplacer; r != nil {
		t.Return = r.Caller
	}
	return t
}

func (p *Probe) hasTail() bool {
	if p.def.Kind != event.Return {
		return false
	}
	exits, _ := p.ev.exits() // an error has been told by points
	return slices.ContainsFunc(exits, func(x arch.Exit) bool { return x.Tail })
}

// name is what messages call the probe.
func (p *Probe) name() string {
	return fmt.Sprintf("%s on %s+0x%x", p.what(), p.ev.Place.Func.Name, p.at-p.ev.fn.Start)
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
func (p *Probe) maySleep(own bool) error {
	if !p.h.Sleepable || !own || !p.h.Any() {
		return nil
	}
	f, name := p.ev.fn, p.ev.Place.Func.Name
	var why string
	switch {
	case !isGo(p.ev.Place.Func):
		why = "it is not Go's"
	case strings.HasPrefix(name, "runtime.") || strings.HasPrefix(name, "internal/runtime/") || strings.HasPrefix(name, "reflect."):
		why = "the runtime does not preempt its own functions and those of package reflect"
	case f.Code.EntryPoint() == f.Start:
		why = "it does not check its stack, so the runtime may not expect it to be preempted"
	case p.at != f.Code.EntryPoint():
		why = "the instruction is not its entry"
	case p.h.Post != nil:
		why = "a post handler does not run at its entry"
	default:
		return nil
	}
	return errno.Errorf(unix.EOPNOTSUPP, "a handler in %s+0x%x may not sleep: %s; use an atomic handler (no FlagSleepable)", f.Name, p.at-f.Start, why)
}

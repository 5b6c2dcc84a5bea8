package kprobes

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
)

// Flags are the choices of a probe.
type Flags uint32

// Flags that may be set before registration. Others are cleared by it.
const (
	// FlagDisabled registers the probe without arming it: its handlers do not run before
	// it is enabled. While the probe is registered the flag tells whether it is disabled.
	FlagDisabled Flags = 1 << iota
	// FlagSleepable lets the handlers block: they run on a goroutine of their own while the
	// one that hit waits, which costs microseconds. Only probes of the own process ask.
	FlagSleepable
)

// Kprobe is a probe at an instruction. Exactly one of SymbolName and Addr says where; any
// handler may be nil.
//
// The fields belong to the caller before registration and after unregistration; between
// them Addr and Flags are written by the package, and the others must not be changed:
// registration takes the handlers over. A Kprobe must not be copied while it is registered.
//
// Handlers run with the thread that hit in the middle of an instruction: without
// FlagSleepable they must not block, panic or call what does, and they may run on several
// threads at once. A hit within a handler runs no handler and is counted as missed. No
// probe can be registered, changed or unregistered by a handler: that is refused with
// EDEADLK.
type Kprobe struct {
	SymbolName string // a function's name, or OBJECT:NAME; or Addr, never both
	Offset     uint64 // bytes from SymbolName or Addr
	// Addr is the instruction's address. Registration fills it in; it must be 0 when a
	// probe that was named by its symbol is registered anew. Unregistering a probe that is
	// not registered clears it.
	Addr uint64
	// PreHandler runs before the instruction. With 0 the thread goes on there. With any
	// other value it goes on where regs.IP says, if the handler has changed that, with the
	// handlers behind this one, the instruction and the PostHandlers left out. In a probe
	// that is optimised the value and a changed IP have no effect, as in Linux: a PostHandler, or
	// SetOptimization(false), keeps it from that. It is reached by a jump all the same, and the
	// thread may be sent anywhere but into the middle of an instruction that the jump has taken
	// the place of: that is a fault of the handler.
	PreHandler func(p *Kprobe, regs *Regs) int
	// PostHandler runs after the instruction, or just before it goes elsewhere (a jump, a
	// call, a return). flags is 0.
	PostHandler func(p *Kprobe, regs *Regs, flags uint64)
	// FaultHandler is told of a fault (the CPU's trap number: 14 for a page that is not there,
	// 13 for a breach of protection, 0 for a division) or a panic (-1) in one of the probe's
	// handlers, which has been abandoned in the middle. 1: it is dealt with. Else, or without
	// one, the probe is disabled, and Fault tells why.
	//
	// It is also told of a fault of the probed instruction itself; then regs.IP is the probe's
	// Addr. 1: it is dealt with, and the thread runs the instruction again with regs, or goes on
	// at a changed IP. Else the next
	// probe's FaultHandler is asked, and then the program sees the fault as if there were no
	// probe. This it is not told of in a guest's kernel, with FlagSleepable, where the thread
	// is where no handler can run, and where the stack itself faults.
	FaultHandler func(p *Kprobe, regs *Regs, trapnr int) int
	Flags        Flags

	reg *registration // see load
}

// RegisterKprobe arms a probe of the target. Errors answer errors.Is: EINVAL (no place, two
// places, registered already, not code, on the blacklist), ENOENT (no such symbol), EILSEQ
// (inside an instruction), EOPNOTSUPP (the target can not call handlers, or no tactic is
// safe there), EDEADLK (called by a handler). Then nothing has been changed.
func (c *Core) RegisterKprobe(k *Kprobe) error { return c.RegisterKprobes([]*Kprobe{k}) }

// RegisterKprobes arms all of the probes in one stop of the target, or none.
func (c *Core) RegisterKprobes(ks []*Kprobe) error { return registerAll(c, ks, newKprobe, nil) }

// RegisterKprobesOrSkip arms those of the probes that can be, in one stop of the target. The others are
// told to skip with the reason, once the stop is over; they are as they were. The error is what keeps all
// of them from being armed: then nothing has been changed, but skip may have been called.
func (c *Core) RegisterKprobesOrSkip(ks []*Kprobe, skip func(*Kprobe, error)) error {
	return registerAll(c, ks, newKprobe, skip)
}

// UnregisterKprobe disarms a probe and forgets it. When it returns, none of the probe's
// handlers runs or will run; what was counted stays readable. A probe that is not
// registered gets Addr 0, and nothing else happens; nothing at all happens if a handler
// calls it.
func (c *Core) UnregisterKprobe(k *Kprobe) { c.UnregisterKprobes([]*Kprobe{k}) }

// UnregisterKprobes disarms probes in one stop of the target.
func (c *Core) UnregisterKprobes(ks []*Kprobe) { c.unregister(kindKprobe, ks) }

// EnableKprobe arms a probe that was disabled. It is an error (EINVAL) if the probe is not
// registered, or its object is not mapped any more; one that is enabled stays so.
func (c *Core) EnableKprobe(k *Kprobe) error { return c.enable(k, true) }

// DisableKprobe disarms a probe until it is enabled. When it returns none of the probe's
// handlers runs, and a hit that was on its way passes uncounted. It is an error (EINVAL) if the
// probe is not registered; one that is disabled stays so.
func (c *Core) DisableKprobe(k *Kprobe) error { return c.enable(k, false) }

// NMissed is the number of hits at which the handlers were not run, since registration: in
// a handler called by one of its handlers, or for the other reasons that State tells.
func (k *Kprobe) NMissed() uint64 { return k.State().Misses.Total() }

// State tells how the probe is armed and what it has counted since registration; the zero
// State if it was never registered.
func (k *Kprobe) State() State {
	if r := k.load(); r != nil {
		return stateOf(r.core.e.State(r.p))
	}
	return State{}
}

// Fault tells why the probe was disabled: what went wrong in one of its handlers; nil if
// nothing did since it was registered or enabled.
func (k *Kprobe) Fault() error {
	if r := k.load(); r != nil {
		return r.p.Fault()
	}
	return nil
}

// newKprobe checks what can be told without the target.
func newKprobe(k *Kprobe) (*registration, error) {
	if k == nil {
		return nil, errno.Errorf(unix.EINVAL, "kprobe: nil")
	}
	h := engine.Handlers{OwnFaults: true}
	if pre := k.PreHandler; pre != nil {
		h.Pre = func(regs *Regs) int { return pre(k, regs) }
	}
	if post := k.PostHandler; post != nil {
		h.Post = func(regs *Regs) { post(k, regs, 0) }
	}
	return newRegistration(k, kindKprobe, h, engine.ProbeOptions{})
}

// checkNoHandlers refuses handlers that only a Kprobe runs, of kprobes that are part of another kind.
func checkNoHandlers(k *Kprobe, kind string) error {
	if k.PreHandler != nil || k.PostHandler != nil {
		return errno.Errorf(unix.EINVAL, "the Kp of a %s has a pre or post handler, which would never run: register a Kprobe of its own", kind)
	}
	return nil
}

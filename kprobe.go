package kprobes

import "kprobes.dev/kprobes/internal/engine"

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

// kind is the kind of a probe: a Kretprobe's Kp can not be unregistered as a Kprobe.
type kind byte

const (
	kindKprobe kind = iota
	kindKretprobe
	kindJprobe
)

// registration is what stands behind a Kprobe, or the Kp of another kind, that is registered or was.
type registration struct {
	kp    *Kprobe
	kind  kind
	p     *engine.Probe
	core  *Core  // that it is registered with, or was
	addr  uint64 // of the Kprobe before the registration
	flags Flags  // likewise
}

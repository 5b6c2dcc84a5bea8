// Package handler calls what a probe has called at a hit, and counts: the run of each handler, the misses, what goes
// wrong in one.
package handler

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// Handlers are what a probe has called: package kprobes makes them of the fields of a Kprobe, Kretprobe or Jprobe. What
// is nil the probe does not have. Pre, Post, Fault, Entry and Return run at a hit, several at a time.
type Handlers struct {
	// Pre runs before the instruction. Not 0: a changed IP is taken.
	Pre func(r *Regs) int
	// Post runs after the instruction, or just before it goes elsewhere.
	Post func(r *Regs)
	// InLine are those that are code of a module in the target, in place of Pre, Post, Entry and Return.
	InLine []*target.InLine
	// Fault is told of a fault in one of the other handlers, and if OwnFaults is set of one of the instruction.
	// 1: it is dealt with.
	Fault     func(r *Regs, trap int) int
	OwnFaults bool
	// Entry runs at the entry of a function whose returns are probed. Not 0: the call is let go.
	Entry func(c *Call, r *Regs) int
	// Return runs when the function returns. What it returns is ignored.
	Return func(c *Call, r *Regs) int
	// NewCall prepares the memory of calls, before one of the handlers is given it for the first time.
	NewCall func(c *Call)
	// Jump is a func value's pointer: a closure that is called at the function's entry with the function's own arguments.
	// Fits says how much of the stack they take, and what keeps it from being called with them. Without Jump it says what keeps the
	// other handlers from taking the function's arguments and results; nil: nothing.
	Jump unsafe.Pointer
	Fits func(fn *symbol.Func, im *symbol.Image) (stack, spill int, err error)
	// Changed is told where the probe stands and whether it is disabled, before it runs and when its owner changes that.
	Changed func(addr uint64, disabled bool)
}

// Call is one call of a function as handlers are told of it. It is valid while one of them runs; from the one at the
// entry to the one at the return only Data is kept. Package kprobes shows the same memory as a KretprobeInstance.
type Call struct {
	RetAddr uint64         // where the call returns to
	Owner   unsafe.Pointer // NewCall's
	Task    uint64         // who made the call: the goroutine in a Go function, else the thread; 0 if it is not known
	Data    []byte         // the call's own
	Tail    bool           // the function ends with a jump to another one
}

// Options are the choices of New.
type Options struct {
	Returns   bool           // the handlers are those of a return probe
	DataSize  int            // bytes of each call's Data
	Sleepable bool           // the handlers may block
	Faults    *atomic.Uint64 // counts the probes in whose handlers something went wrong
}

// fault is what went wrong in a handler.
type fault struct {
	state atomic.Uint32 // 0: nothing; 1: being written; 2: written
	trap  int
	why   fmt.Stringer
}

// set keeps the first fault and says whether this is it. It runs in place of the handler.
func (f *fault) set(trap int, why fmt.Stringer) bool {
	if !f.state.CompareAndSwap(0, 1) {
		return false
	}
	f.trap, f.why = trap, why
	f.state.Store(2)
	return true
}

// is says whether something went wrong.
func (f *fault) is() bool { return f.state.Load() == 2 }

func (f *fault) err() error {
	if !f.is() {
		return nil
	}
	if f.trap == target.TrapPanic {
		return errno.Errorf(unix.EFAULT, "the probe was disabled: its handler panicked: %s", f.why)
	}
	return errno.Errorf(unix.EFAULT, "the probe was disabled: trap %d in its handler: %s", f.trap, f.why)
}

// Regs are the registers of a thread at a probed instruction.
type Regs = native.Regs

// Target is what the handlers are called in.
type Target struct {
	Caller target.Caller            // nil: it can call none
	Own    bool                     // it is this process
	Go     bool                     // it is a program of Go
	Kernel bool                     // it is a kernel
	Return func(addr uint64) uint64 // what a return address stands for; nil: for itself
	Task   func(*Regs) uint64       // the thread's id; nil: it is not known
}

// Place is where the handlers are called.
type Place struct {
	Name  string // of the probe, for messages
	At    uint64 // the instruction
	Func  uint64 // where its function begins
	Go    bool   // the function takes its arguments as Go does
	ABI0  bool   // and as Go's assembly does
	Code  arch.Function
	Tail  bool           // the function is left by jumps to other functions too
	Pool  *arch.Pool     // of a return probe
	Epoch *atomic.Uint32 // how often the probe's code was taken out (arch.ProbeOp.Epoch)
	// Stack and Spill are the bytes of the arguments of Jump: see target.Handler.
	Stack, Spill int
}

// Calls are the handlers as generated code calls them; nil: there is none.
type Calls struct{ Pre, Post, Fault, Entry, Exit, Tail, Jump *arch.Call }

func (c *Calls) all() []*arch.Call {
	return []*arch.Call{c.Pre, c.Post, c.Fault, c.Entry, c.Exit, c.Tail, c.Jump}
}

// Any says whether there is a handler.
func (h *Handlers) Any() bool {
	return h.HasPre() || h.HasPost() || h.HasEntry() || h.HasReturn() || h.Jump != nil || h.Fault != nil && h.OwnFaults
}

// HasPre says whether something runs before the instruction.
func (h *Handlers) HasPre() bool {
	return h.Pre != nil || h.inLine(target.InLinePre) != nil || h.inLine(target.InLineJump) != nil
}

// HasPost says whether something runs after it.
func (h *Handlers) HasPost() bool { return h.Post != nil || h.inLine(target.InLinePost) != nil }

// HasEntry says whether something runs at the entry of a function whose returns are probed.
func (h *Handlers) HasEntry() bool { return h.Entry != nil || h.inLine(target.InLineEntry) != nil }

// HasReturn says whether something runs where it returns.
func (h *Handlers) HasReturn() bool { return h.Return != nil || h.inLine(target.InLineReturn) != nil }

// inLine is the module's handler of a kind; nil: there is none.
func (h *Handlers) inLine(kind target.InLineKind) *target.InLine {
	for _, in := range h.InLine {
		if in.Kind == kind {
			return in
		}
	}
	return nil
}

// returnAt is where the return address stands before the instruction at an address, from the
// stack pointer on; -1: it is not known.
func (p *Place) returnAt(at uint64) int {
	if n, ok := p.Code.Ret(at); ok {
		return n
	}
	return -1
}

// Misses counts hits whose handlers were not run, by cause.
type Misses struct {
	Pool    uint64 // calls without a free instance, or without stack to work on
	Busy    uint64 // a handler was running on the thread already
	System  uint64 // the thread was where no handler can run, or was not served in time
	Stopped uint64 // the probe was being disabled for a fault
}

// Total is the sum of all causes.
func (m Misses) Total() uint64 { return m.Pool + m.Busy + m.System + m.Stopped }

// Plus adds two counts.
func (m Misses) Plus(o Misses) Misses {
	return Misses{m.Pool + o.Pool, m.Busy + o.Busy, m.System + o.System, m.Stopped + o.Stopped}
}

package engine

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
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
	// Fits says how much of the stack they take, and what keeps it from being called with them.
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

// ProbeOptions are the choices of NewProbe.
type ProbeOptions struct {
	Return    bool // a return probe
	MaxActive int  // the most calls that a return probe follows; 0: as many as the target's pool holds
	DataSize  int  // bytes of each call's Data
	Disabled  bool // it is registered without being armed
	Sleepable bool // its handlers may block
}

// Probe is a probe with handlers.
type Probe struct {
	core      *Core
	def       *event.Def
	ev        *Event
	h         Handlers
	sleepable bool
	// mayLeave: what keeps the probe from being registered leaves it out of its batch, and is left.
	mayLeave bool
	left     error

	// What the handlers' runs use. Nothing of it changes while they can run, but for what
	// is atomic and for frames and slots, which belong to one run, or one call, at a time.
	hits      counter
	stopped   counter
	optimised atomic.Bool
	off       atomic.Bool // handlers are not run any more: one went wrong
	mute      atomic.Bool // the code has been taken out
	at        uint64      // the instruction
	golang    bool
	local     bool                // the pool is memory of this process
	task      func(*Regs) uint64  // the thread's id; nil: the target does not tell
	caller    func(uint64) uint64 // what a return address of ours stands for; nil: there are none
	base      uint64              // of the pool
	shift     int                 // log2 of the bytes of its slots
	frames    []frame
	slots     []byte // of each slot of the pool: the key of the call, its Data
	slotSize  uint64
	dataSize  int
	fault     fault

	stack, spill int // of the arguments of Jump
	calls        calls
	past         Misses // of calls that were replaced
	disabled     bool   // guarded by core.mu
	ended        atomic.Bool
	last         atomic.Pointer[State] // see State
}

// NewProbe makes a probe that stands at a place once it is registered.
func NewProbe(place event.Place, h Handlers, o ProbeOptions) *Probe {
	p := &Probe{h: h, sleepable: o.Sleepable, disabled: o.Disabled, dataSize: o.DataSize}
	p.def = &event.Def{Kind: event.Probe, Place: place, MaxActive: o.MaxActive}
	if o.Return {
		p.def.Kind = event.Return
		p.frames = make([]frame, max(64, 4*runtime.GOMAXPROCS(0)))
		for i := range p.frames {
			h.NewCall(&p.frames[i].call)
		}
	}
	return p
}

// Ended says whether the probe was registered and is not any more.
func (p *Probe) Ended() bool { return p.ended.Load() }

// Refused is why Register has left the probe out.
func (p *Probe) Refused() error { return p.left }

// Fault tells what went wrong in a handler since the probe was registered or enabled; nil if nothing did.
func (p *Probe) Fault() error { return p.fault.err() }

// calls are the handlers of a probe as the target knows them; nil: there is none.
type calls struct{ pre, post, fault, entry, exit, tail, jump *bound }

func (c *calls) all() []*bound {
	return []*bound{c.pre, c.post, c.fault, c.entry, c.exit, c.tail, c.jump}
}

// bound is a handler that the target can call.
type bound struct {
	h target.Handler
	c *arch.Call
}

// call gives what generated code needs.
func (b *bound) call() *arch.Call {
	if b == nil {
		return nil
	}
	return b.c
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

// room makes the table of what each call has of its own.
func (p *Probe) room() error {
	pool := p.ev.work.Pool
	if pool == nil || p.slots != nil || p.dataSize == 0 && p.h.Entry == nil {
		return nil
	}
	n := amd64.PoolBytes(pool.Slots, pool.Stride) >> pool.Stride
	p.base, p.shift = pool.Base, pool.Stride
	p.slotSize = keySize + uint64(p.dataSize+7)&^7
	b, err := unix.Mmap(-1, 0, int(n*p.slotSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return errno.Errorf(unix.ENOMEM, "data of %d bytes for each of %d calls: %v; set MaxActive, or a smaller DataSize", p.dataSize, n, err)
	}
	p.slots = b
	return nil
}

// finish gives back what the handlers used. Precondition: no site's code uses them, and
// core.mu is held.
func (p *Probe) finish() {
	c := p.core
	s := p.look() // the target forgets with a call what it has missed
	c.end(&p.calls)
	s.Hits = p.hits.sum()
	if r := c.t.Ring(); r != nil {
		s.Hits += r.Sum(p.ev.ID).Hits
	}
	s.Registered, s.Disabled, s.Optimized, s.Tactic, s.Why = false, false, false, "", nil
	p.last.Store(&s)
	if p.slots != nil {
		_ = unix.Munmap(p.slots) // it was mapped whole
		p.slots = nil
	}
	c.cool(c.retire(p.ev)...)
}

// renew makes the handlers callable again after a fault. Once it is known whether code that
// calls them is in, renewed is to be called.
func (p *Probe) renew() (renewed func(in bool), err error) {
	old := p.calls
	if err := p.bind(); err != nil {
		return nil, fmt.Errorf("handlers of the probe at 0x%x: %w", p.at, err)
	}
	p.fault.state.Store(0)
	p.off.Store(false)
	return func(in bool) {
		if in {
			p.past = p.past.plus(p.core.missed(p.first(&old)))
			p.core.end(&old)
			return
		}
		p.off.Store(true)
		p.fault.state.Store(2)
		p.core.end(&p.calls)
		p.calls = old
	}, nil
}

// refused is the reason why the probe can not be armed.
func (p *Probe) refused(err error) error {
	var no unix.Errno
	if errors.As(err, &no) {
		return err
	}
	return errno.Errorf(unix.EOPNOTSUPP, "%w", err)
}

// plain is the error of a definition as one who wrote none wants it: the reason, with its
// errno.
func plain(err error) error {
	var bad *event.Error
	if !errors.As(err, &bad) {
		return err
	}
	var no unix.Errno
	switch {
	case bad.Err == nil && bad.Code == event.BadRetprobe:
		return errno.Errorf(unix.EINVAL, "a return probe stands at a function's entry: leave the offset out")
	case bad.Err == nil:
		return errno.Errorf(unix.EINVAL, "%s", bad.Code.Text())
	case bad.Code == event.BadInsnBndry && !errors.Is(bad.Err, unix.EILSEQ):
		return errno.Errorf(unix.EILSEQ, "%w", bad.Err)
	case errors.As(bad.Err, &no):
		return plain(bad.Err)
	}
	return errno.Errorf(unix.EINVAL, "%w", plain(bad.Err))
}

package kprobes

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// State tells of a probe how it is armed and what it has counted since registration.
type State struct {
	Registered bool
	Disabled   bool   // it does not run before it is enabled
	Optimized  bool   // as Linux says it: by jump, and a changed path is not taken
	Gone       bool   // its object is not mapped any more
	Tactic     Tactic // how it gets control; "" while it is not armed
	Why        error  // why not by a faster tactic, or why it was taken out; nil for the fastest
	Hits       uint64 // runs of its handlers; of a return probe returns
	Misses     Misses
	Unwound    uint64 // calls that will never return, see Kretprobe.Unwound
	// Active are calls of a return probe that have begun and of whose end nothing is known: in
	// progress some milliseconds ago, or when the probe was disabled or unregistered. Calls that
	// were left are among them until they are found, which takes about a minute at most: then
	// they are Unwound. Entries are Hits + Unwound + Active + Misses and the calls that
	// EntryHandler let go.
	Active uint64
	// Returns is how a return probe sees its function return, WhyReturns why not at the exits,
	// and Strays the number of returns that belonged to no call (Core.Strays).
	Returns    Returns
	WhyReturns error
	Strays     uint64
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

func (m Misses) plus(o Misses) Misses {
	return Misses{m.Pool + o.Pool, m.Busy + o.Busy, m.System + o.System, m.Stopped + o.Stopped}
}

// Kinds of probes, as the listing shows them.
const (
	kindKprobe    = 'k'
	kindKretprobe = 'r'
	kindJprobe    = 'j'
)

// probe is what stands behind a Kprobe, Kretprobe or Jprobe that is registered, or was.
type probe struct {
	core  *Core
	kind  byte
	kp    *Kprobe
	def   *event.Def
	ev    *Event
	flags Flags
	// mayLeave: what keeps the probe from being registered leaves it out of its batch, and is left.
	mayLeave bool
	left     error
	pre      func(*Kprobe, *Regs) int
	post     func(*Kprobe, *Regs, uint64)
	onFault  func(*Kprobe, *Regs, int) int
	entry    func(*KretprobeInstance, *Regs) int
	ret      func(*KretprobeInstance, *Regs) int
	jump     any // a Jprobe's Entry

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

	stack, spill int // of a jprobe's arguments
	calls        calls
	past         Misses // of calls that were replaced
	disabled     bool   // guarded by core.mu
	ended        atomic.Bool
	last         atomic.Pointer[State] // see state
}

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

// bind makes the probe's handlers callable. Precondition: its event has its place, and its
// pool if it is a return probe.
func (p *probe) bind() error {
	c := p.core
	p.at, p.golang, p.local = p.ev.points[0], c.t.CodegenEnv().Go != nil, isSelf(c.t)
	if t := c.can.ReturnReplacer; t != nil {
		p.caller = t.Caller
	}
	p.task = c.can.Task
	if err := p.room(); err != nil {
		return err
	}
	next, behind := p.at, -1
	if p.post != nil { // what stands behind the instruction takes an analysis to know
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
		{p.pre != nil, &n.pre, p.runPre, p.at, p.returnAt(p.at)},
		{p.post != nil, &n.post, p.runPost, next, behind},
		{p.tellsFaults(), &n.fault, p.runFault, p.at, p.returnAt(p.at)},
		{p.entry != nil, &n.entry, p.runEntry, p.at, 0},
		{p.ret != nil, &n.exit, p.runExit, p.at, 0},
		{p.ret != nil && p.hasTail(), &n.tail, p.runTail, p.at, 0},
		{p.jump != nil, &n.jump, p.runJump, p.at, 0},
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
func (p *probe) tellsFaults() bool {
	return p.onFault != nil && p.kind == kindKprobe && p.flags&FlagSleepable == 0 && p.core.t.CodegenEnv().Kernel == nil
}

// returnAt is where the return address stands before the instruction at an address, from the
// stack pointer on; -1: it is not known.
func (p *probe) returnAt(at uint64) int {
	if n, ok := p.ev.fn.a.Ret(at); ok {
		return n
	}
	return -1
}

func (p *probe) hasTail() bool {
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
func (c *Core) newCall(p *probe, do run, jump bool, fail func(*Regs, int, fmt.Stringer) bool, at uint64, ret int) (*bound, error) {
	caller := c.can.Caller
	if caller == nil {
		return nil, errno.Errorf(unix.EOPNOTSUPP, "handlers can not be called in this target: use an event, or a probe without handlers")
	}
	fn := p.ev.Place.Func
	if err := p.maySleep(); err != nil {
		return nil, err
	}
	b := &bound{h: target.Handler{
		Off: &p.mute, Fault: fail, Name: p.name(), WideVectors: p.ev.fn.a.UsesWideVectors(), Sleepable: p.flags&FlagSleepable != 0,
		Point: amd64.Point{Addr: at, Func: p.ev.fn.start, Go: isGo(fn), ABI0: fn.ABI0 || fn.Asm, Ret: ret},
	}}
	b.h.Run = func(r *Regs, slot uint64) arch.Action { return do(b, r, slot) }
	if jump {
		b.h.Entry, b.h.Stack, b.h.Spill = closure(p.jump), p.stack, p.spill
	}
	var err error
	b.c, err = caller.NewCall(&b.h)
	return b, err
}

// name is what messages call the probe.
func (p *probe) name() string {
	kind := map[byte]string{kindKprobe: "kprobe", kindKretprobe: "kretprobe", kindJprobe: "jprobe"}[p.kind]
	return fmt.Sprintf("%s on %s+0x%x", kind, p.ev.Place.Func.Name, p.at-p.ev.fn.start)
}

// maySleep refuses handlers that may block where the goroutine that hits can not be parked. It
// can at the entry of a function that checks its stack (and at its returns): such a function
// is one that the runtime may preempt, and there no write barrier is in progress.
func (p *probe) maySleep() error {
	if p.flags&FlagSleepable == 0 || !isSelf(p.core.t) {
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
	case p.post != nil:
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

// room makes the table of what each call has of its own.
func (p *probe) room() error {
	pool := p.ev.work.Pool
	if pool == nil || p.slots != nil || p.dataSize == 0 && p.entry == nil {
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
func (p *probe) finish() {
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

// state tells the probe's state. Within a handler, and where one is waited for, it is the
// last that was told outside.
func (p *probe) state() State {
	c := p.core
	if p.ended.Load() || c.inHandler() {
		return p.lastState()
	}
	for !c.mu.TryLock() {
		if c.ending.Load() > 0 {
			return p.lastState()
		}
		time.Sleep(100 * time.Microsecond)
	}
	defer c.mu.Unlock()
	if p.ended.Load() {
		return p.lastState()
	}
	s := p.look()
	p.last.Store(&s)
	return s
}

func (p *probe) lastState() State {
	var s State
	if last := p.last.Load(); last != nil {
		s = *last
	}
	if s.Registered && p.off.Load() {
		s.Disabled = true // whatever was so when that was told
	}
	return s
}

// look makes the State. Precondition: core.mu is held.
func (p *probe) look() State {
	e := p.ev
	s := State{
		Registered: true, Disabled: p.disabled || p.off.Load(), Gone: e.gone,
		Hits: p.hits.sum(), Misses: p.missed(), Unwound: uint64(e.unwound) + e.reaped,
		Active: uint64(e.active) + e.cut + p.core.inProgress(e),
	}
	s.Returns, s.WhyReturns = e.returns()
	p.core.lookForStrays(e)
	s.Strays = e.strays
	if !e.idle() && !e.gone {
		s.Tactic, s.Why, s.Optimized = e.form.tactic, e.form.why, e.form.tactic == arch.TacticJump && e.plain() == nil
	}
	if e.withdrawn != nil {
		s.Why = e.withdrawn
	}
	if r := p.core.t.Ring(); r != nil {
		n := r.Sum(e.ID)
		s.Hits += n.Hits
		s.Misses.Pool += n.Missed
		s.Unwound += n.Unwound
	}
	return s
}

// missed tells the misses of the handler that is the first to run at a hit: the others
// miss it too.
func (p *probe) missed() Misses {
	return p.past.plus(Misses{Stopped: p.stopped.sum()}).plus(p.core.missed(p.first(&p.calls)))
}

// first are the handlers one of which is the first to run at a hit.
func (p *probe) first(n *calls) []*bound {
	switch {
	case p.pre != nil:
		return []*bound{n.pre}
	case p.entry == nil:
		return []*bound{n.post, n.jump, n.exit, n.tail}
	}
	return []*bound{n.post, n.entry, n.jump}
}

func (c *Core) missed(bs []*bound) (m Misses) {
	caller := c.can.Caller
	if caller == nil {
		return m
	}
	for _, b := range bs {
		if b != nil {
			n := caller.Missed(b.c)
			m = m.plus(Misses{Busy: n.Busy, System: n.System, Stopped: n.Stopped})
		}
	}
	return m
}

// renew makes the handlers callable again after a fault. Once it is known whether code that
// calls them is in, renewed is to be called.
func (p *probe) renew() (renewed func(in bool), err error) {
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

// works is what a probe does at each of its points.
func (p *probe) works(e *Event, out map[uint64][]arch.ProbeOp) error {
	w := e.work
	w.Count = true
	if p.kind == kindKretprobe {
		return p.returnWorks(e, out)
	}
	var ws []arch.ProbeOp
	if p.pre == nil && p.post == nil && p.jump == nil {
		w.Role = arch.RoleRecord
		ws = append(ws, w)
	}
	for _, b := range []*bound{p.calls.pre, p.calls.post, p.calls.jump} {
		if b != nil {
			ws = append(ws, arch.ProbeOp{Event: e.ID, Role: arch.RoleCall, Call: b.c, After: b == p.calls.post})
		}
	}
	if f := p.calls.fault; f != nil {
		ws = append(ws, arch.ProbeOp{Event: e.ID, Role: arch.RoleCall, Call: f.c, Fault: true})
	}
	add(out, e.points[0], ws...)
	return nil
}

func (p *probe) returnWorks(e *Event, out map[uint64][]arch.ProbeOp) error {
	exits, err := e.exits()
	if err != nil {
		return err
	}
	w := e.work
	w.Count, w.Role, w.Epoch, w.Call = true, arch.RoleEntry, uint16(e.epoch.Load()), p.calls.entry.call()
	w.Room = p.exitRoom(exits)
	add(out, e.fn.a.EntryPoint(), w)
	if e.byStub {
		w.Role, w.Instance, w.Call, w.Room = arch.RoleExit, e.ID, p.calls.exit.call(), 0
		add(out, atStub, w)
	}
	for _, x := range exits {
		w.Role, w.Instance, w.Unknown, w.Call, w.Room = arch.RoleExit, e.ID, x.Tail, p.calls.exit.call(), 0
		if x.Tail {
			w.Call = p.calls.tail.call()
		}
		add(out, x.Addr, w)
	}
	return nil
}

// exitRoom is the stack that a return handler which sleeps needs, from the entry on: an exit
// may stand below it by the function's frame.
func (p *probe) exitRoom(exits []arch.Exit) int {
	c := p.calls.exit.call()
	if c == nil || c.Room == 0 {
		return 0
	}
	below := 0
	for _, x := range exits {
		n, ok := p.ev.fn.a.Ret(x.Addr)
		if !ok {
			n = unknownFrame
		}
		below = max(below, n)
	}
	return c.Room + below
}

// unknownFrame is more than most functions' frames take, in bytes.
const unknownFrame = 4096

// refused is the reason why the probe can not be armed.
func (p *probe) refused(err error) error {
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

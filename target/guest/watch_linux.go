package guest

import (
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// QEMU holds watchpoints too: it stops all vCPUs behind an access, and what the probe records is read from here. The guest does
// not see them.

// watchpoint is a watchpoint that QEMU holds; x is a breakpoint.
type watchpoint struct {
	t          *Target
	control    *controlBlock
	w          target.Watch
	held       interface{ Remove() error }
	mu         sync.Mutex
	hits, lost uint64
	closed     bool
}

// Watch arms a watchpoint in all vCPUs. There are as many as a processor has, also where QEMU would take more.
// Precondition: Prepare has succeeded.
func (t *Target) Watch(w *target.Watch) (target.ExternalProbe, error) {
	if w.Addr < t.arch.UserEnd {
		return nil, errno.Errorf(unix.EINVAL, "0x%x is no address of the guest's kernel; the symbol of a per-CPU variable has none: "+
			"give the address that the variable has on a CPU", w.Addr)
	}
	if err := t.takeWatch(); err != nil {
		return nil, err
	}
	p := &watchpoint{t: t, control: t.control, w: *w}
	var err error
	switch w.Access {
	case event.Execute:
		p.held, err = t.m.Break(w.Addr, func(c *qemu.CPU, _ *qemu.Stop) qemu.Resume {
			p.hit(c, c.PC(), false)
			return qemu.Continue
		})
	case event.Write:
		p.held, err = t.m.Watch(w.Addr, w.Len, qemu.WatchWrites, p.accessed)
	case event.ReadWrite:
		p.held, err = t.m.Watch(w.Addr, w.Len, qemu.WatchAccesses, p.accessed)
	default:
		err = errno.Errorf(unix.EINVAL, "QEMU watches no reads alone for kprobe, as no processor does: use rw")
	}
	if err != nil {
		t.dropWatch()
		return nil, t.asGone(err)
	}
	return p, nil
}

func (t *Target) takeWatch() error {
	t.breaks.mu.Lock()
	defer t.breaks.mu.Unlock()
	if t.breaks.watched >= native.Watchpoints {
		return errno.Errorf(unix.ENOSPC, "a processor has %d watchpoints, and all are taken", native.Watchpoints)
	}
	t.breaks.watched++
	return nil
}

func (t *Target) dropWatch() {
	t.breaks.mu.Lock()
	t.breaks.watched--
	t.breaks.mu.Unlock()
}

// Tactic is watch.
func (p *watchpoint) Tactic() arch.Tactic { return arch.TacticWatch }

// Counts tells the accesses that were only counted, and the records that found no room.
func (p *watchpoint) Counts() (hits, lost uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits, p.lost
}

// Close removes the watchpoint.
func (p *watchpoint) Close() error {
	if p.closed {
		return nil
	}
	if err := p.held.Remove(); err != nil {
		return err
	}
	p.closed = true
	p.t.dropWatch()
	return nil
}

// accessed does the probe's work behind an access. The vCPUs are stopped.
func (p *watchpoint) accessed(c *qemu.CPU, _ *qemu.Stop) {
	at, before := p.t.accessor(p.control, c.PC(), p.w.Access == event.ReadWrite)
	p.hit(c, at, before)
}

// hit does the probe's work, for an access by the instruction at an address, or by one before it.
func (p *watchpoint) hit(c *qemu.CPU, at uint64, before bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w.Prog == nil {
		p.hits++
		return
	}
	r := p.t.recordOf(c, p.w.Event, p.w.Args, p.w.Prog)
	r.IP, r.Before = at, before
	if !p.t.keep(r) {
		p.lost++
	}
}

// accessor gives the instruction that accessed memory, where next is the one to be run then. before: it is not known, and
// next is given.
func (t *Target) accessor(control *controlBlock, next uint64, reads bool) (at uint64, before bool) {
	loc, ok := t.Space().SymbolAt(next)
	if !ok {
		return next, true
	}
	start := next - loc.Off
	code := make([]byte, loc.Size)
	if t.k.Read(start, code) != nil {
		return next, true
	}
	control.unpatch(start, code)
	if at, ok = native.Accessor(code, start, next, reads); !ok {
		return next, true
	}
	return at, false
}

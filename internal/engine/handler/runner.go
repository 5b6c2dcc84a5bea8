package handler

import (
	"cmp"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// Runner runs the handlers of one probe. Runs may overlap; all else is done by one goroutine at a time.
type Runner struct {
	runs
	calls Calls
	past  Misses // of calls that were replaced
}

// New makes a runner.
func New(h Handlers, o Options) *Runner {
	r := &Runner{runs: runs{Handlers: h, Options: o}}
	if o.Returns {
		r.frames = make([]frame, max(64, 4*runtime.GOMAXPROCS(0)))
		for i := range r.frames {
			h.NewCall(&r.frames[i].call)
		}
	}
	return r
}

// Off says whether handlers are not run any more since one went wrong.
func (r *Runner) Off() bool { return r.off.Load() }

// Stop has handlers not be run any more.
func (r *Runner) Stop() { r.off.Store(true) }

// Faulty says whether something went wrong in a handler since it was bound.
func (r *Runner) Faulty() bool { return r.fault.is() }

// Err tells what went wrong in a handler; nil if nothing did.
func (r *Runner) Err() error { return r.fault.err() }

// Hits is the number of runs.
func (r *Runner) Hits() uint64 { return r.hits.sum() }

// Calls are the runner's handlers, once they are bound.
func (r *Runner) Calls() Calls { return r.calls }

// Bind makes the handlers callable at a place.
func (r *Runner) Bind(p *Place, t *Target) error {
	r.at, r.epoch, r.target = p.At, p.Epoch, *t
	if err := r.room(p.Pool); err != nil {
		return err
	}
	for _, in := range r.InLine {
		if in.Calls != nil {
			in.Calls.Pool = p.Pool
		}
	}
	next, behind := p.At, -1
	if r.HasPost() { // what stands behind the instruction takes an analysis to know
		next = p.Code.Next(p.At)
		behind = p.returnAt(next)
	}
	var n Calls
	for _, b := range []struct {
		want bool
		to   **arch.Call
		run  run
		at   uint64
		ret  int
	}{
		{r.HasPre(), &n.Pre, r.runPre, p.At, p.returnAt(p.At)},
		{r.HasPost(), &n.Post, r.runPost, next, behind},
		{r.wantsFaults(), &n.Fault, r.runFault, p.At, p.returnAt(p.At)},
		{r.HasEntry(), &n.Entry, r.runEntry, p.At, 0},
		{r.HasReturn(), &n.Exit, r.runExit, p.At, 0},
		{r.HasReturn() && p.Tail, &n.Tail, r.runTail, p.At, 0},
		{r.Jump != nil, &n.Jump, r.runJump, p.At, 0},
	} {
		if !b.want {
			continue
		}
		if t.Caller == nil {
			return errno.Errorf(unix.EOPNOTSUPP, "handlers can not be called in this target: use an event, or a probe without handlers")
		}
		h, do := &target.Handler{
			Off: &r.Mute, Fault: r.faulted, Name: p.Name, WideVectors: p.Code.UsesWideVectors(), Sleepable: r.Sleepable,
			Point: native.Point{Addr: b.at, Func: p.Func, Go: p.Go, ABI0: p.ABI0, Ret: b.ret},
		}, b.run
		r.specialise(h, b.to, &n, p)
		h.Run = func(regs *Regs, slot uint64) arch.Action { return do(h, regs, slot) }
		c, err := t.Caller.NewCall(h)
		if err != nil {
			r.end(&n)
			return err
		}
		*b.to = c
	}
	r.calls = n
	return nil
}

// specialise gives the handler of one of the calls what it alone has: its code in line, who is told of its faults, or a jprobe's arguments.
func (r *Runner) specialise(h *target.Handler, to **arch.Call, n *Calls, p *Place) {
	switch to {
	case &n.Pre:
		h.InLine = cmp.Or(r.inLine(target.InLinePre), r.inLine(target.InLineJump))
	case &n.Post:
		h.InLine = r.inLine(target.InLinePost)
	case &n.Entry:
		h.InLine = r.inLine(target.InLineEntry)
	case &n.Exit, &n.Tail:
		h.InLine = r.inLine(target.InLineReturn)
	case &n.Fault: // it is not told of its own faults
		h.Fault = r.broken
	case &n.Jump:
		h.Entry, h.Stack, h.Spill = r.Jump, p.Stack, p.Spill
	}
}

// wantsFaults says whether the fault handler is told of faults of the instruction. One
// that may sleep is not: it could at the entries of functions alone.
func (r *Runner) wantsFaults() bool {
	return r.Fault != nil && r.OwnFaults && !r.Sleepable && !r.target.Kernel
}

// room makes the table of what each call has of its own.
func (r *Runner) room(pool *arch.Pool) error {
	if pool == nil || r.slots != nil || r.DataSize == 0 && r.Entry == nil {
		return nil
	}
	n := native.PoolBytes(pool.Slots, pool.Stride) >> pool.Stride
	r.base, r.shift = pool.Base, pool.Stride
	r.slotSize = keySize + uint64(r.DataSize+7)&^7
	b, err := unix.Mmap(-1, 0, int(n*r.slotSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return errno.Errorf(unix.ENOMEM, "data of %d bytes for each of %d calls: %v; set MaxActive, or a smaller DataSize", r.DataSize, n, err)
	}
	r.slots = b
	return nil
}

// Renew makes handlers callable again after a fault. Once it is known whether code that calls them is in, renewed is to be
// called.
func (r *Runner) Renew(p *Place, t *Target) (renewed func(in bool), err error) {
	old := r.calls
	if err := r.Bind(p, t); err != nil {
		return nil, fmt.Errorf("handlers of the probe at 0x%x: %w", p.At, err)
	}
	r.fault.state.Store(0)
	r.off.Store(false)
	return func(in bool) {
		if in {
			r.past = r.past.Plus(r.missed(&old))
			r.end(&old)
			return
		}
		r.off.Store(true)
		r.fault.state.Store(2)
		r.end(&r.calls)
		r.calls = old
	}, nil
}

// Quiet waits until no handler runs. Precondition: Mute is set.
func (r *Runner) Quiet() {
	for _, c := range r.calls.all() {
		if c != nil {
			r.target.Caller.Quiet(c)
		}
	}
}

// Release gives back what the handlers used. None of them runs when it returns. Precondition: no code calls them any more.
func (r *Runner) Release() {
	r.end(&r.calls)
	if r.slots != nil {
		_ = unix.Munmap(r.slots) // it was mapped whole
		r.slots = nil
	}
}

// end forgets calls. No handler of theirs runs when it returns.
func (r *Runner) end(n *Calls) {
	for _, c := range n.all() {
		if c != nil {
			r.target.Caller.EndCall(c)
		}
	}
}

// Misses tells the misses of the handler that is the first to run at a hit: the others
// miss it too. Pool is not known here.
func (r *Runner) Misses() Misses {
	return r.past.Plus(Misses{Stopped: r.stopped.sum()}).Plus(r.missed(&r.calls))
}

// first are the handlers one of which is the first to run at a hit.
func (r *Runner) first(n *Calls) []*arch.Call {
	switch {
	case n.Pre != nil:
		return []*arch.Call{n.Pre}
	case n.Entry == nil:
		return []*arch.Call{n.Post, n.Jump, n.Exit, n.Tail}
	}
	return []*arch.Call{n.Post, n.Entry, n.Jump}
}

func (r *Runner) missed(of *Calls) (m Misses) {
	for _, c := range r.first(of) {
		if c != nil {
			n := r.target.Caller.Missed(c)
			m = m.Plus(Misses{Busy: n.Busy, System: n.System, Stopped: n.Stopped})
		}
	}
	return m
}

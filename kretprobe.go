package kprobes

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// Kretprobe is a probe on a function's return.
type Kretprobe struct {
	// Kp says which function, by its name or its entry. Its pre and post handler must be
	// nil; its FaultHandler and its Flags serve the Kretprobe.
	Kp Kprobe
	// Handler runs when the function returns. What it returns is ignored. Of several probes
	// the one that was registered last is the first.
	Handler func(ri *KretprobeInstance, regs *Regs) int
	// EntryHandler runs at the entry. Not 0: the call is let go: Handler will not run for
	// it, and it does not count as missed. 0: Handler runs when this call returns. Calls that
	// begin before the registration, or EnableKretprobe, has returned may pass unseen.
	EntryHandler func(ri *KretprobeInstance, regs *Regs) int
	// MaxActive is the most calls that are followed at once, at most 4096; further ones
	// are counted as missed. At or below 0: what the target's common pool holds, at least
	// 65,536 of all such probes together. Calls that never return count until they are
	// found, within some tenths of a second (not in a guest's kernel).
	MaxActive int
	// DataSize is the number of bytes of Data that each call has, at most 4096.
	DataSize int
}

// KretprobeInstance is one call of a function that a Kretprobe follows. It is valid while
// a handler runs; between the handlers of one call only what is in Data is kept.
type KretprobeInstance struct {
	RetAddr uint64     // where the call returns to
	Rp      *Kretprobe // whose instance it is
	Task    Task       // who made the call
	// Data is the call's own, from its EntryHandler to its Handler. At first it holds
	// what an earlier call may have left. It must not be kept.
	Data []byte
	// Tail says that the function ends with a jump to another one, whose results will be
	// the call's: they are not known yet.
	Tail bool
}

// Task is what makes a call.
type Task struct {
	// ID is the goroutine's in a Go function, else the thread's; 0 if it is not known.
	ID uint64
}

// Limits of a Kretprobe.
const (
	MaxMaxActive = 4096 // the largest MaxActive
	MaxDataSize  = 4096 // the largest DataSize, in bytes
)

// RegisterKretprobe arms a return probe. Besides those of RegisterKprobe errors are EINVAL
// (not a function's entry), E2BIG (MaxActive or DataSize above their limit), ENOMEM (no
// room for the data).
func (c *Core) RegisterKretprobe(r *Kretprobe) error { return c.RegisterKretprobes([]*Kretprobe{r}) }

// RegisterKretprobes arms all of the probes in one stop of the target, or none.
func (c *Core) RegisterKretprobes(rs []*Kretprobe) error {
	return registerAll(c, rs, newKretprobe, nil)
}

// RegisterKretprobesOrSkip arms those of the probes that can be, in one stop of the target. The others are
// told to skip with the reason, once the stop is over; they are as they were. The error is what keeps all
// of them from being armed: then nothing has been changed, but skip may have been called.
func (c *Core) RegisterKretprobesOrSkip(rs []*Kretprobe, skip func(*Kretprobe, error)) error {
	return registerAll(c, rs, newKretprobe, skip)
}

// UnregisterKretprobe disarms a probe and forgets it, as UnregisterKprobe does. Calls in
// progress return without a handler.
func (c *Core) UnregisterKretprobe(r *Kretprobe) { c.UnregisterKretprobes([]*Kretprobe{r}) }

// UnregisterKretprobes disarms probes in one stop of the target.
func (c *Core) UnregisterKretprobes(rs []*Kretprobe) {
	ks := make([]*Kprobe, 0, len(rs))
	for _, r := range rs {
		if r != nil {
			ks = append(ks, &r.Kp)
		}
	}
	c.unregister(kindKretprobe, ks)
}

// EnableKretprobe is EnableKprobe for a return probe.
func (c *Core) EnableKretprobe(r *Kretprobe) error { return c.enable(r.base(), true) }

// DisableKretprobe is DisableKprobe for a return probe. Calls in progress are forgotten by it.
func (c *Core) DisableKretprobe(r *Kretprobe) error { return c.enable(r.base(), false) }

// NMissed is the number of calls without Handler for want of a free instance, or for the
// other reasons that State tells, since registration.
func (r *Kretprobe) NMissed() uint64 { return r.Kp.NMissed() }

// Unwound is the number of calls that were found to have been left by a panic, Goexit,
// longjmp or an exception, and so never return, since registration.
func (r *Kretprobe) Unwound() uint64 { return r.Kp.State().Unwound }

// State is that of the Kp.
func (r *Kretprobe) State() State { return r.Kp.State() }

// Fault is that of the Kp.
func (r *Kretprobe) Fault() error { return r.Kp.Fault() }

func (r *Kretprobe) base() *Kprobe {
	if r == nil {
		return nil
	}
	return &r.Kp
}

// newKretprobe checks what can be told without the target.
func newKretprobe(r *Kretprobe) (*registration, error) { return fittingKretprobe(r, nil) }

// fittingKretprobe is newKretprobe for handlers that serve only what fits says; nil: any function.
func fittingKretprobe(r *Kretprobe, fits fitting) (*registration, error) {
	switch {
	case r == nil:
		return nil, errno.Errorf(unix.EINVAL, "kretprobe: nil")
	case r.MaxActive > MaxMaxActive:
		return nil, errno.Errorf(unix.E2BIG, "MaxActive %d: at most %d, or 0 for the pool that grows", r.MaxActive, MaxMaxActive)
	case r.DataSize > MaxDataSize:
		return nil, errno.Errorf(unix.E2BIG, "DataSize %d: at most %d", r.DataSize, MaxDataSize)
	case r.DataSize < 0:
		return nil, errno.Errorf(unix.EINVAL, "DataSize %d: negative", r.DataSize)
	}
	if err := checkNoHandlers(&r.Kp, "kretprobe"); err != nil {
		return nil, err
	}
	h := engine.Handlers{
		Entry: ofCalls(r.EntryHandler), Return: ofCalls(r.Handler),
		NewCall: func(c *engine.Call) { c.Owner = unsafe.Pointer(r) }, Fits: fits,
	}
	return newRegistration(&r.Kp, kindKretprobe, h, engine.ProbeOptions{Return: true, MaxActive: max(r.MaxActive, 0), DataSize: r.DataSize})
}

// ofCalls is a handler as the engine calls it: a KretprobeInstance is the memory of an engine.Call, and no hit pays for
// a func in between. TestInstanceIsCall compares the fields.
func ofCalls(h func(*KretprobeInstance, *Regs) int) func(*engine.Call, *Regs) int {
	return *(*func(*engine.Call, *Regs) int)(unsafe.Pointer(&h))
}

var _ [unsafe.Sizeof(engine.Call{})]byte = [unsafe.Sizeof(KretprobeInstance{})]byte{}

// fitting is engine.Handlers.Fits.
type fitting = func(*symbol.Func, *symbol.Image) (stack, spill int, err error)

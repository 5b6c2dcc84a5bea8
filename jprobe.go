package kprobes

import (
	"fmt"
	"reflect"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/goabi"
	"kprobes.dev/kprobes/internal/symbol"
)

// Jprobe is a probe at a function's entry whose handler is called with the function's own
// arguments.
type Jprobe struct {
	// Kp says which function, by its name or its entry. Its pre and post handler must be
	// nil; its FaultHandler and its Flags serve the Jprobe.
	Kp Kprobe
	// Entry is a func with the probed function's signature. It is called with the
	// arguments of the call, and to return from it is jprobe_return(): the probed function
	// goes on with its arguments as they were, whatever Entry has done to its own. What
	// Entry returns is dropped. It may not keep pointers to its arguments' memory.
	Entry any
}

// RegisterJprobe arms a probe. Besides those of RegisterKprobe errors are EINVAL (Entry is
// no func or has another signature, not a function's entry) and EEXIST (the function has a
// jprobe).
func (c *Core) RegisterJprobe(j *Jprobe) error { return c.RegisterJprobes([]*Jprobe{j}) }

// RegisterJprobes arms all of the probes in one stop of the target, or none.
func (c *Core) RegisterJprobes(js []*Jprobe) error { return registerAll(c, js, newJprobe, nil) }

// RegisterJprobesOrSkip arms those of the probes that can be, in one stop of the target. The others are
// told to skip with the reason, once the stop is over; they are as they were. The error is what keeps all
// of them from being armed: then nothing has been changed, but skip may have been called.
func (c *Core) RegisterJprobesOrSkip(js []*Jprobe, skip func(*Jprobe, error)) error {
	return registerAll(c, js, newJprobe, skip)
}

// UnregisterJprobe disarms a probe and forgets it, as UnregisterKprobe does.
func (c *Core) UnregisterJprobe(j *Jprobe) { c.UnregisterJprobes([]*Jprobe{j}) }

// UnregisterJprobes disarms probes in one stop of the target.
func (c *Core) UnregisterJprobes(js []*Jprobe) {
	ks := make([]*Kprobe, 0, len(js))
	for _, j := range js {
		if j != nil {
			ks = append(ks, &j.Kp)
		}
	}
	c.unregister(kindJprobe, ks)
}

// EnableJprobe is EnableKprobe for a jprobe.
func (c *Core) EnableJprobe(j *Jprobe) error { return c.enable(j.base(), true) }

// DisableJprobe is DisableKprobe for a jprobe.
func (c *Core) DisableJprobe(j *Jprobe) error { return c.enable(j.base(), false) }

// NMissed is the number of calls for which Entry was not run, since registration.
func (j *Jprobe) NMissed() uint64 { return j.Kp.NMissed() }

// State is that of the Kp.
func (j *Jprobe) State() State { return j.Kp.State() }

// Fault is that of the Kp.
func (j *Jprobe) Fault() error { return j.Kp.Fault() }

func (j *Jprobe) base() *Kprobe {
	if j == nil {
		return nil
	}
	return &j.Kp
}

// newJprobe checks what can be told without the target.
func newJprobe(j *Jprobe) (*registration, error) {
	if j == nil {
		return nil, errno.Errorf(unix.EINVAL, "jprobe: nil")
	}
	v := reflect.ValueOf(j.Entry)
	if v.Kind() != reflect.Func || v.IsNil() {
		return nil, errno.Errorf(unix.EINVAL, "jprobe's Entry is %s: it must be a func with the probed function's signature", describe(v))
	}
	if err := checkNoHandlers(&j.Kp, "jprobe"); err != nil {
		return nil, err
	}
	h := engine.Handlers{
		Jump: closure(j.Entry),
		Fits: func(fn *symbol.Func, im *symbol.Image) (stack, spill int, err error) {
			if stack, spill, err = goabi.Match(fn, im, v.Type()); err != nil {
				err = fmt.Errorf("jprobe: %w", err)
			}
			return stack, spill, err
		},
	}
	return newRegistration(&j.Kp, kindJprobe, h, engine.ProbeOptions{})
}

package kprobes

import (
	"sync"
	"sync/atomic"

	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/target/self"
)

// own is the registry of the process itself, once it has been opened.
var own struct {
	mu   sync.Mutex // held while it is opened
	core atomic.Pointer[Core]
}

// Self is the registry of the program's own process, which the functions of this package
// act on. It is opened by the first call that needs it; an error says why the program can
// not probe itself here, and the next call tries again. It must not be closed.
func Self() (*Core, error) {
	if c := own.core.Load(); c != nil {
		return c, nil
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	if c := own.core.Load(); c != nil {
		return c, nil
	}
	t, err := self.Attach(nil)
	if err != nil {
		return nil, err
	}
	c, err := Open(t, nil)
	if err != nil {
		return nil, err
	}
	own.core.Store(c)
	return c, nil
}

// withSelf calls f with the own process's registry.
func withSelf(f func(*Core) error) error {
	c, err := Self()
	if err != nil {
		return err
	}
	return f(c)
}

// RegisterKprobe arms a probe of the own process: see Core.RegisterKprobe.
func RegisterKprobe(k *Kprobe) error { return RegisterKprobes([]*Kprobe{k}) }

// RegisterKprobes arms all of the probes of the own process, or none.
func RegisterKprobes(ks []*Kprobe) error {
	return withSelf(func(c *Core) error { return c.RegisterKprobes(ks) })
}

// RegisterKprobesOrSkip arms those probes of the own process that can be: see
// Core.RegisterKprobesOrSkip.
func RegisterKprobesOrSkip(ks []*Kprobe, skip func(*Kprobe, error)) error {
	return withSelf(func(c *Core) error { return c.RegisterKprobesOrSkip(ks, skip) })
}

// UnregisterKprobe disarms a probe of the own process: see Core.UnregisterKprobe.
func UnregisterKprobe(k *Kprobe) { UnregisterKprobes([]*Kprobe{k}) }

// UnregisterKprobes disarms probes of the own process.
func UnregisterKprobes(ks []*Kprobe) { ownOrNone().UnregisterKprobes(ks) }

// EnableKprobe arms a probe of the own process that was disabled.
func EnableKprobe(k *Kprobe) error { return ownOrNone().EnableKprobe(k) }

// DisableKprobe disarms a probe of the own process until it is enabled.
func DisableKprobe(k *Kprobe) error { return ownOrNone().DisableKprobe(k) }

// RegisterKretprobe arms a return probe of the own process: see Core.RegisterKretprobe.
func RegisterKretprobe(r *Kretprobe) error { return RegisterKretprobes([]*Kretprobe{r}) }

// RegisterKretprobes arms all of the return probes of the own process, or none.
func RegisterKretprobes(rs []*Kretprobe) error {
	return withSelf(func(c *Core) error { return c.RegisterKretprobes(rs) })
}

// RegisterKretprobesOrSkip arms those return probes of the own process that can be: see
// Core.RegisterKretprobesOrSkip.
func RegisterKretprobesOrSkip(rs []*Kretprobe, skip func(*Kretprobe, error)) error {
	return withSelf(func(c *Core) error { return c.RegisterKretprobesOrSkip(rs, skip) })
}

// UnregisterKretprobe disarms a return probe of the own process.
func UnregisterKretprobe(r *Kretprobe) { UnregisterKretprobes([]*Kretprobe{r}) }

// UnregisterKretprobes disarms return probes of the own process.
func UnregisterKretprobes(rs []*Kretprobe) { ownOrNone().UnregisterKretprobes(rs) }

// EnableKretprobe arms a return probe of the own process that was disabled.
func EnableKretprobe(r *Kretprobe) error { return ownOrNone().EnableKretprobe(r) }

// DisableKretprobe disarms a return probe of the own process until it is enabled.
func DisableKretprobe(r *Kretprobe) error { return ownOrNone().DisableKretprobe(r) }

// RegisterJprobe arms a jprobe of the own process: see Core.RegisterJprobe.
func RegisterJprobe(j *Jprobe) error { return RegisterJprobes([]*Jprobe{j}) }

// RegisterJprobes arms all of the jprobes of the own process, or none.
func RegisterJprobes(js []*Jprobe) error {
	return withSelf(func(c *Core) error { return c.RegisterJprobes(js) })
}

// RegisterJprobesOrSkip arms those jprobes of the own process that can be: see
// Core.RegisterJprobesOrSkip.
func RegisterJprobesOrSkip(js []*Jprobe, skip func(*Jprobe, error)) error {
	return withSelf(func(c *Core) error { return c.RegisterJprobesOrSkip(js, skip) })
}

// UnregisterJprobe disarms a jprobe of the own process.
func UnregisterJprobe(j *Jprobe) { UnregisterJprobes([]*Jprobe{j}) }

// UnregisterJprobes disarms jprobes of the own process.
func UnregisterJprobes(js []*Jprobe) { ownOrNone().UnregisterJprobes(js) }

// EnableJprobe arms a jprobe of the own process that was disabled.
func EnableJprobe(j *Jprobe) error { return ownOrNone().EnableJprobe(j) }

// DisableJprobe disarms a jprobe of the own process until it is enabled.
func DisableJprobe(j *Jprobe) error { return ownOrNone().DisableJprobe(j) }

// NoKprobe puts a function of the own process on the blacklist: see Core.NoKprobe.
func NoKprobe(fn any) error { return withSelf(func(c *Core) error { return c.NoKprobe(fn) }) }

// none is a registry in which no probe is registered.
var none = &Core{e: &engine.Core{}}

// ownOrNone is the own process's registry, or one without probes if it was never opened.
func ownOrNone() *Core {
	if c := own.core.Load(); c != nil {
		return c
	}
	return none
}

// Package modules has modules of C in a target, as a kernel has them in itself: they are loaded and removed, register probes whose handlers run
// in line, and write a log. It knows nothing of how they are compiled (internal/kmod), nor of how the target is changed (target.ModuleLoader).
package modules

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/kmod"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

// Table has the modules of a target. It may be used by several goroutines.
type Table struct {
	core *engine.Core
	t    target.Target
	load target.ModuleLoader
	def  *event.Def // of the log's records
	take bool       // they come to the log by themselves

	mu      sync.Mutex            // held while a module is loaded or removed
	options *target.ModuleOptions // nil: none has been loaded yet
	runtime *target.ModuleRuntime // of when one was loaded last
	faulted []*engine.Probe       // that lead to ModuleRuntime.Faulted

	listMu sync.Mutex
	list   []*Module
	log    Log
}

// New makes the table of the target whose engine is core. The records of the log are given out as hits with this user's number, and are for
// Take. EOPNOTSUPP: the target takes no modules.
func New(core *engine.Core, user uint32) (*Table, error) {
	t := core.Target()
	load := t.Capabilities().ModuleLoader
	if load == nil {
		return nil, errno.Errorf(unix.EOPNOTSUPP, "modules are not loaded into this target: they are into processes and guests")
	}
	tb := &Table{core: core, t: t, load: load, def: &event.Def{Group: "printk", Name: "printk", User: user}}
	tb.log.ownTime = t.Capabilities().Clocked != nil
	tb.log.symbol = func(addr uint64) string {
		s, ok := core.Symbol(addr)
		if !ok {
			return fmt.Sprintf("0x%x", addr)
		}
		return fmt.Sprintf("%s+0x%x/0x%x", s.Name, s.Off, s.Size)
	}
	return tb, nil
}

// TakeRecords has the log's records come to the log whenever somebody reads records, and not be given out as hits. It comes before the first module.
func (tb *Table) TakeRecords() { tb.take = true }

// SetUser has the log's records be another user's. Nobody may read records meanwhile.
func (tb *Table) SetUser(user uint32) { tb.def.User = user }

// Module is a module that has been loaded.
type Module struct {
	Name string
	Size uint64 // bytes of its memory
	m    *Linked
	// vectors: its code uses XMM0 to XMM15.
	vectors bool
	redZone string            // where its code uses memory below the stack pointer; "": nowhere
	exit    uint64            // 0: it can not be removed
	probes  map[uint64]*probe // by the address of their structs
	aliases map[string]string
}

// named is the name that the target has for what the module calls so.
func (m *Module) named(name string) string {
	if other, ok := m.aliases[name]; ok {
		return other
	}
	return name
}

// Permanent says whether the module can not be removed: it has a start, and no end.
func (m *Module) Permanent() bool { return m.exit == 0 }

// open has the target prepared for modules.
func (tb *Table) open() error {
	if tb.options == nil {
		var take func(*hit.Hit)
		if tb.take {
			take = tb.log.Take
		}
		id, err := tb.core.NewLog(tb.def, take)
		if err != nil {
			return err
		}
		c, err := ring.NewClock(ring.SourceTSC)
		if err != nil {
			return err
		}
		now := c.Now()
		tb.options = &target.ModuleOptions{
			Event: id, Clock: target.ModuleClock{Tick: now, Nanos: c.Nanos(now), Length: uint64(c.Rate() * (1 << 32))}, Exclusive: tb.core.Exclusive,
		}
	}
	return tb.core.Exclusive(func() (err error) {
		tb.runtime, err = tb.load.OpenModules(tb.options)
		return err
	})
}

// Insert is insmod: it loads an object, and runs its start. aliases has, by the names that the module uses, those that the target has for them. Errors: EEXIST, what the target says, those of Link, and what the module's start has returned.
func (tb *Table) Insert(name string, o *kmod.Object, params []kmod.Param, aliases map[string]string) error {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if tb.find(name) != nil {
		return errno.Errorf(unix.EEXIST, "module %s is loaded already: remove it first", name)
	}
	m := &Module{Name: name, probes: map[uint64]*probe{}, aliases: aliases}
	if err := m.look(o); err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	if err := tb.open(); err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	if err := m.fits(o, tb.runtime); err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	tb.catchFaults()
	unknown := func(param string) { tb.log.say(4, fmt.Sprintf("%s: unknown parameter '%s' ignored\n", name, param)) }
	var k *Linked
	err := tb.core.Exclusive(func() (err error) {
		k, err = Link(tb.load, tb.runtime, o, params, unknown)
		return err
	})
	if err != nil {
		tb.uncatchFaults()
		return fmt.Errorf("module %s: %w", name, err)
	}
	m.m, m.Size = k, k.size()
	tb.log.add(k.formats)
	tb.set(append(slices.Clone(tb.all()), m))
	if start, ok := k.Image.Symbol("init_module"); ok {
		result, err := tb.call(m, start)
		if err == nil && result < 0 {
			err = errno.Errorf(unix.Errno(-result), "module %s: its start has returned %d", name, result)
		}
		if err != nil {
			return errors.Join(err, tb.takeOut(m))
		}
		m.exit, _ = k.Image.Symbol("cleanup_module")
	}
	return nil
}

// CheckFaults disables the probes in whose handlers something has faulted, or that do not end, and says so in the log.
func (tb *Table) CheckFaults() {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	var faulted []target.FaultedHandler
	_ = tb.core.Exclusive(func() error {
		tb.load.EndLoops()
		faulted = tb.load.FaultedHandlers()
		return nil
	})
	for _, f := range faulted {
		what := "a fault in a handler"
		if f.Loops {
			what = "a handler that does not end"
		}
		for _, m := range tb.all() {
			p := m.probes[f.Of]
			if p == nil {
				continue
			}
			err := errors.Join(tb.core.Enable(p.p, false), tb.tell(m, p))
			tb.log.say(3, fmt.Sprintf("%s: %s of the probe at %s: the probe is disabled\n", m.Name, what, tb.log.symbol(p.addr)))
			if err != nil {
				tb.log.say(3, fmt.Sprintf("%s: %v\n", m.Name, err))
			}
		}
	}
}

// look finds out which registers the code of the module's object uses.
func (m *Module) look(o *kmod.Object) error {
	for _, s := range o.Code() {
		use, at, err := native.UseOf(s.Bytes)
		switch {
		case err != nil:
			return errno.Errorf(unix.ENOEXEC, "its code can not be read at %s+0x%x: %w", s.Name, at, err)
		case use == native.StateWide:
			return errno.Errorf(unix.ENOEXEC, "its code at %s+0x%x uses registers that no handler may change: compile it with -mgeneral-regs-only (kprobe cc has the flags)", s.Name, at)
		}
		if at := native.UsesKernelData(s.Bytes); at >= 0 {
			return errno.Errorf(unix.ENOEXEC, "its code at %s+0x%x refers to a CPU's own data, which a kernel has (-fstack-protector does, with -mcmodel=kernel): compile it with -fno-stack-protector, or by kprobe cc", s.Name, at)
		}
		m.vectors = m.vectors || use == native.StateVectors
		if at, is := native.BelowStack(s.Bytes); is && m.redZone == "" {
			m.redZone = fmt.Sprintf("%s+0x%x", s.Name, at)
		}
	}
	return nil
}

// fits says why the module's code can not run in the target.
func (m *Module) fits(o *kmod.Object, rt *target.ModuleRuntime) error {
	switch {
	case m.vectors && rt.Strict:
		return errno.Errorf(unix.ENOEXEC, "its code uses vector registers, which a kernel does not save for it: compile it with -mgeneral-regs-only (kprobe cc has the flags)")
	case m.redZone != "" && rt.Strict:
		return errno.Errorf(unix.ENOEXEC, "its code at %s uses the stack below its end, where a kernel's interrupts come: compile it with -mno-red-zone (kprobe cc has the flags)", m.redZone)
	}
	if rt.Strict {
		return checkStacks(o, maxKernelFrame, "kernel")
	}
	return checkStacks(o, maxFrame, "program")
}

// How much a function of a module may take of its stack, in bytes: the stack is a thread's of the program, or a kernel's of 16 KB, of which nobody knows how much is left.
const (
	maxFrame       = 8 << 10
	maxKernelFrame = 2 << 10 // CONFIG_FRAME_WARN
)

// checkStacks refuses functions that take more than most, or of which nobody knows how much.
func checkStacks(o *kmod.Object, most int64, whose string) error {
	for _, f := range o.Functions() {
		u := native.StackOf(f.Bytes)
		how := fmt.Sprintf("%d bytes", u.Bytes)
		switch {
		case u.Varies:
			how = "memory of a size that is known when it runs only (alloca, an array of variable or huge size)"
		case int64(u.Bytes) <= most:
			continue
		}
		return errno.Errorf(unix.ENOEXEC, "%s+0x%x takes %s of the stack, which is the %s's: up to %d bytes; use static memory, per-CPU variables or kmalloc", f.Name, u.At, how, whose, most)
	}
	return nil
}

// Remove is rmmod: it runs the module's end, takes out what it has registered, waits until nobody runs it, and unloads it. Errors: ENOENT, EBUSY.
func (tb *Table) Remove(name string) error {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	m := tb.find(name)
	switch {
	case m == nil:
		return errno.Errorf(unix.ENOENT, "module %s is not loaded", name)
	case m.Permanent():
		return errno.Errorf(unix.EBUSY, "module %s has no end (module_exit), and stays as long as the target is probed: kprobe detach takes it out of another process", name)
	}
	_, err := tb.call(m, m.exit)
	return errors.Join(err, tb.takeOut(m))
}

// takeOut takes out what a module has registered, and unloads it.
func (tb *Table) takeOut(m *Module) error {
	var ps []*probe
	for _, p := range m.probes {
		ps = append(ps, p)
	}
	tb.unregister(m, ps)
	tb.set(slices.DeleteFunc(slices.Clone(tb.all()), func(o *Module) bool { return o == m }))
	err := tb.core.Exclusive(m.m.Unload)
	if err == nil {
		tb.uncatchFaults()
	}
	return err
}

func (tb *Table) all() []*Module {
	tb.listMu.Lock()
	defer tb.listMu.Unlock()
	return tb.list
}

func (tb *Table) set(list []*Module) {
	tb.listMu.Lock()
	defer tb.listMu.Unlock()
	tb.list = list
}

// List gives the modules, the last that was loaded first.
func (tb *Table) List() []*Module {
	out := slices.Clone(tb.all())
	slices.Reverse(out)
	return out
}

// Empty says whether there is no module.
func (tb *Table) Empty() bool { return len(tb.all()) == 0 }

func (tb *Table) find(name string) *Module {
	for _, m := range tb.all() {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// Log is the log of all modules that there were.
func (tb *Table) Log() *Log { return &tb.log }

package engine

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// A return address is replaced only where everybody is known who may read it: the function
// itself, those to which it leads by a jump, the unwinder (libgcc's, which is probed), and nobody
// else in the process (symbol.Readers, target.ReturnReplacer.Replaceable).

// readsCaller has the functions that look at their own return address, or keep it where it can
// not be put back, or return twice.
func readsCaller(name string) bool {
	switch name {
	case "dlopen", "dlmopen", "dlsym", "dlvsym", "dl_iterate_phdr", "__libc_dlsym", "__libc_dlvsym", "__libc_dlopen_mode",
		"setjmp", "_setjmp", "__setjmp", "sigsetjmp", "__sigsetjmp", "savectx",
		"getcontext", "swapcontext", "makecontext", "setcontext", "__start_context", "vfork", "__vfork", "clone", "__clone", "__clone3",
		"mcount", "_mcount", "__fentry__", "__cyg_profile_func_enter", "__cyg_profile_func_exit", "__morestack":
		return true
	}
	return false
}

// noTrampoline says why the return addresses of the event's function may not be replaced.
func (c *Core) noTrampoline(e *Event) error {
	t := c.can.ReturnReplacer
	if t == nil {
		return errno.Errorf(unix.EOPNOTSUPP, "return addresses are left alone in this target")
	}
	fn, m := e.Place.Func, e.Place.Module
	if fn.Lang == symbol.LangGo || fn.PLT {
		return errno.Errorf(unix.EOPNOTSUPP, "the function is Go's, or only leads to another")
	}
	if s := m.Image.Soname(); strings.HasPrefix(s, "ld-") || strings.HasPrefix(s, "libgcc_s.") {
		return errno.Errorf(unix.EOPNOTSUPP, "%s looks at return addresses", s)
	}
	if err := named(fn); err != nil {
		return err
	}
	if err := m.Image.Called(fn); err != nil {
		return err
	}
	if !c.stubbed.asked || c.stubbed.late != e.deferred {
		c.askReaders(t, e.deferred)
	}
	if err := c.stubbed.never; err != nil {
		return err
	}
	if err := c.stubbed.unknown; err != nil && !e.wantStub {
		return err
	}
	return c.functionReads(e.fn, m, maxTails)
}

// askReaders finds out who in the process may read return addresses.
func (c *Core) askReaders(t target.ReturnReplacer, late bool) {
	s := &c.stubbed
	s.asked, s.late, s.reads = true, late, nil
	s.never, s.unknown = c.readers()
	if s.never == nil {
		s.never = errors.Join(t.Replaceable(), c.unseen(late))
	}
}

// readers says why return addresses are never to be replaced in the process, or only if that is
// asked for, by what is mapped.
func (c *Core) readers() (never, unknown error) {
	for _, m := range c.t.Space().Modules() {
		r := m.Image.Readers()
		if r.Runtime != "" {
			return errno.Errorf(unix.EOPNOTSUPP, "%s has %s: a return address that is not the caller's would not be understood", m.Name, r.Runtime), nil
		}
		if r.Unknown != nil && unknown == nil {
			unknown = errno.Errorf(unix.EOPNOTSUPP, "%s: %w (--trampoline, or AddOptions.Trampoline, replaces return addresses all the same)", m.Name, r.Unknown)
		}
	}
	return nil, unknown
}

// named says which of a function's names reads its caller.
func named(fn *symbol.Func) error {
	for _, raw := range append([]string{fn.Name}, fn.Aliases...) {
		if err := namedSo(raw); err != nil {
			return err
		}
	}
	return nil
}

func namedSo(raw string) error {
	name, _, _ := strings.Cut(raw, "@")
	if readsCaller(name) || strings.HasPrefix(name, "_Unwind_") {
		return errno.Errorf(unix.EOPNOTSUPP, "%s looks at its return address, or keeps it", name)
	}
	return nil
}

// maxTails bounds a chain of jumps from function to function that is followed.
const maxTails = 32

// functionReads says that a function reads its return address, or jumps to one that does: the
// return address of the one is the other's then.
func (c *Core) functionReads(f *function, m *symbol.Module, depth int) error {
	if at, ok := f.Code.ReadsReturn(); ok {
		return errno.Errorf(unix.EOPNOTSUPP, "%s reads its return address at +0x%x", f.Name, at-f.Start)
	}
	for _, t := range f.Code.Tails() {
		var err error
		switch {
		case t.Slot != 0:
			err = c.symbolReads(m.Image.SlotName(m.Linktime(t.Slot)), depth-1)
		default:
			err = c.addressReads(t.Target, depth-1)
		}
		if err != nil {
			return fmt.Errorf("it jumps to another function: %w", err)
		}
	}
	return nil
}

// addressReads is functionReads for the function at an address.
func (c *Core) addressReads(addr uint64, depth int) error {
	m := c.t.Space().ModuleAt(addr)
	if m == nil {
		return nil
	}
	fn, _, ok := m.Image.At(m.Linktime(addr))
	switch {
	case !ok:
		return nil
	case fn.PLT:
		return c.symbolReads(fn.Name, depth)
	}
	start := m.Runtime(fn.Addr)
	if err, known := c.stubbed.reads[start]; known {
		return err
	}
	if c.stubbed.reads == nil {
		c.stubbed.reads = map[uint64]error{}
	}
	if depth <= 0 {
		return errno.Errorf(unix.ELOOP, "more than %d functions that jump to one another", maxTails)
	}
	c.stubbed.reads[start] = nil // for circles
	err := named(fn)
	if err == nil && fn.Lang != symbol.LangGo && !fn.IFunc {
		f := c.fns[start]
		if f == nil {
			if f, err = c.newFunction(resolvedAt(m, fn)); err == nil {
				defer f.Code.Release()
			}
		}
		if err == nil {
			err = c.functionReads(f, m, depth)
		}
	}
	c.stubbed.reads[start] = err
	return err
}

// symbolReads is functionReads for what a dynamic symbol may be bound to.
func (c *Core) symbolReads(raw string, depth int) error {
	name, _, _ := strings.Cut(raw, "@")
	if name == "" {
		return nil
	}
	if err := namedSo(name); err != nil {
		return err
	}
	for _, m := range c.t.Space().Modules() {
		fns, err := m.Image.Lookup(name)
		if err != nil {
			continue
		}
		for _, fn := range fns {
			if fn.PLT || fn.Local {
				continue
			}
			if err := c.addressReads(m.Runtime(fn.Addr), depth); err != nil {
				return err
			}
		}
	}
	return nil
}

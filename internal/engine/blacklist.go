package engine

import (
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// Why functions are on the blacklist, beside what their code says (codescan.Scanner.FuncDenied).
const (
	whyOurs  = "it is code of another probe"
	whyAsked = "the program has asked for it (NoKprobe)"
)

// blacklisted says why the function at a resolved place must not be probed, nil if it may be.
// The error answers EINVAL, as the kernel does for its own blacklist.
func (c *Core) blacklisted(r symbol.Resolved) error {
	why := c.scan.FuncDenied(r)
	if why == "" && c.asked(r) {
		why = whyAsked
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("%s is on the blacklist: %s; probe what calls it: %w", r.Func.Pretty(), why, unix.EINVAL)
}

// forbidden says why nothing may be probed where a definition points to, function or not:
// in the kernel's objects, and in generated code; and why there are no watchpoints.
func (c *Core) forbidden(d *event.Def) error {
	if d.Kind == event.Watch && c.can.Watcher == nil {
		return errno.Errorf(unix.EOPNOTSUPP, "this target has no watchpoints: probe the instructions that access the memory")
	}
	if why := codescan.ObjectDenied(d.Place.Module); why != "" {
		return fmt.Errorf("%s is on the blacklist: %s: %w", d.Place.Module, why, unix.EINVAL)
	}
	if at := d.Place.Addr; d.Place.Kind == event.PlaceAddr && d.Place.Module == "" && c.generated(at) {
		return fmt.Errorf("0x%x is on the blacklist: %s: %w", at, whyOurs, unix.EINVAL)
	}
	return nil
}

// generated says whether an address lies in the code of a probe, which is in no object.
func (c *Core) generated(addr uint64) bool {
	if s := c.space.Load(); s != nil {
		if m := s.ModuleAt(addr); m != nil && m.Image.Executable(m.Linktime(addr)) {
			return false
		}
	}
	for _, f := range c.fns {
		for _, s := range f.sites {
			if addr-s.Detour.Addr < uint64(s.Room) {
				return true
			}
		}
	}
	return false
}

// asked says whether NoKprobe has put the function on the blacklist, or the one it is a
// part of.
func (c *Core) asked(r symbol.Resolved) bool {
	if len(c.barred) == 0 {
		return false
	}
	if _, ok := c.barred[r.Module.Runtime(r.Func.Addr)]; ok {
		return true
	}
	for _, b := range c.barred {
		if r.Func.PartOf != "" && b.Module == r.Module && b.Func.Name == r.Func.PartOf {
			return true
		}
	}
	return false
}

package codescan

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
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

// ReturnDenied says why the return addresses of a function's calls must not be replaced, by what the function is; nil: they
// may, as far as that tells.
func ReturnDenied(m *symbol.Module, fn *symbol.Func) error {
	if fn.Lang == symbol.LangGo || fn.PLT {
		return errno.Errorf(unix.EOPNOTSUPP, "the function is Go's, or only leads to another")
	}
	if s := m.Image.Soname(); strings.HasPrefix(s, "ld-") || strings.HasPrefix(s, "libgcc_s.") {
		return errno.Errorf(unix.EOPNOTSUPP, "%s looks at return addresses", s)
	}
	if err := named(fn); err != nil {
		return err
	}
	return m.Image.Called(fn)
}

// ReturnReaders tells who in the target may read return addresses. What it has found out about functions holds until
// objects come or go. It serves one goroutine at a time.
type ReturnReaders struct {
	s     *Scanner
	known func(start uint64) *Function
	reads map[uint64]error // by the function's address
}

// ReturnReaders begins to look. known gives the function that begins at an address if it has been analysed; else nil.
func (s *Scanner) ReturnReaders(known func(start uint64) *Function) *ReturnReaders {
	return &ReturnReaders{s: s, known: known, reads: map[uint64]error{}}
}

// Mapped says why return addresses are never to be replaced in the target, or only if that is
// asked for, by what is mapped.
func (r *ReturnReaders) Mapped() (never, unknown error) {
	for _, m := range r.s.t.Space().Modules() {
		in := m.Image.Readers()
		if in.Runtime != "" {
			return errno.Errorf(unix.EOPNOTSUPP, "%s has %s: a return address that is not the caller's would not be understood", m.Name, in.Runtime), nil
		}
		if in.Unknown != nil && unknown == nil {
			unknown = errno.Errorf(unix.EOPNOTSUPP, "%s: %w (--trampoline, or AddOptions.Trampoline, replaces return addresses all the same)", m.Name, in.Unknown)
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

// Function says that a function of m reads its return address, or jumps to one that does: the
// return address of the one is the other's then.
func (r *ReturnReaders) Function(m *symbol.Module, f *Function) error {
	return r.function(m, f, maxTails)
}

func (r *ReturnReaders) function(m *symbol.Module, f *Function, depth int) error {
	if at, ok := f.Code.ReadsReturn(); ok {
		return errno.Errorf(unix.EOPNOTSUPP, "%s reads its return address at +0x%x", f.Name, at-f.Start)
	}
	for _, t := range f.Code.Tails() {
		var err error
		switch {
		case t.Slot != 0:
			err = r.symbol(m.Image.SlotName(m.Linktime(t.Slot)), depth-1)
		default:
			err = r.address(t.Target, depth-1)
		}
		if err != nil {
			return fmt.Errorf("it jumps to another function: %w", err)
		}
	}
	return nil
}

// address is function for the function at an address.
func (r *ReturnReaders) address(addr uint64, depth int) error {
	m := r.s.t.Space().ModuleAt(addr)
	if m == nil {
		return nil
	}
	fn, _, ok := m.Image.At(m.Linktime(addr))
	switch {
	case !ok:
		return nil
	case fn.PLT:
		return r.symbol(fn.Name, depth)
	}
	start := m.Runtime(fn.Addr)
	if err, known := r.reads[start]; known {
		return err
	}
	if depth <= 0 {
		return errno.Errorf(unix.ELOOP, "more than %d functions that jump to one another", maxTails)
	}
	r.reads[start] = nil // for circles
	err := named(fn)
	if err == nil && fn.Lang != symbol.LangGo && !fn.IFunc {
		err = r.at(m, fn, start, depth)
	}
	r.reads[start] = err
	return err
}

// at is function for one of m that begins at start.
func (r *ReturnReaders) at(m *symbol.Module, fn *symbol.Func, start uint64, depth int) error {
	if f := r.known(start); f != nil {
		return r.function(m, f, depth)
	}
	f, err := r.s.Function(symbol.Resolved{Module: m, Func: fn})
	if err != nil {
		return err
	}
	defer f.Code.Release()
	return r.function(m, &f, depth)
}

// symbol is function for what a dynamic symbol may be bound to.
func (r *ReturnReaders) symbol(raw string, depth int) error {
	name, _, _ := strings.Cut(raw, "@")
	if name == "" {
		return nil
	}
	if err := namedSo(name); err != nil {
		return err
	}
	for _, m := range r.s.t.Space().Modules() {
		for _, fn := range m.Image.All(name) {
			if fn.PLT || fn.Local {
				continue
			}
			if err := r.address(m.Runtime(fn.Addr), depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// Unwinder tells which unwinder a file has.
func (s *Scanner) Unwinder(im *symbol.Image) symbol.Unwinder {
	s.unwinders.mu.Lock()
	defer s.unwinders.mu.Unlock()
	u, ok := s.unwinders.of[im]
	if !ok {
		u = im.Unwinder()
		if s.unwinders.of == nil {
			s.unwinders.of = map[*symbol.Image]symbol.Unwinder{}
		}
		s.unwinders.of[im] = u
	}
	return u
}

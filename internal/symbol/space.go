package symbol

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"sort"
	"sync"

	"kprobes.dev/kprobes/internal/interval"
)

// Module is an image mapped into an address space.
type Module struct {
	Image *Image
	Bias  uint64 // run-time address minus link-time address, modulo 2^64
	Name  string // base name of the mapped file, what MOD matches besides the soname
	Main  bool   // the program's own file
}

// Runtime turns a link-time address into a run-time address.
func (m *Module) Runtime(vaddr uint64) uint64 { return vaddr + m.Bias }

// Linktime turns a run-time address into a link-time address.
func (m *Module) Linktime(addr uint64) uint64 { return addr - m.Bias }

// Space is what one process maps: the program and its shared objects. It is safe for
// concurrent use. The zero value is an empty space.
type Space struct {
	mu    sync.RWMutex
	mods  []*Module
	spans []span // of all modules, sorted by start
}

// span is the run-time range of one segment.
type span struct {
	interval.Range
	mod  *Module
	exec bool
}

// NewSpace makes an empty space.
func NewSpace() *Space { return &Space{} }

// Add enters an image that is loaded with a bias. The first one is the program's own
// file. The name is the file's base name; "" takes that of the image's path.
func (s *Space) Add(im *Image, bias uint64, name string) *Module {
	if name == "" {
		name = im.ModName()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &Module{Image: im, Bias: bias, Name: path.Base(name), Main: len(s.mods) == 0}
	s.mods = append(s.mods, m)
	s.index()
	return m
}

// Remove takes a module out, for instance after dlclose.
func (s *Space) Remove(m *Module) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mods = slices.DeleteFunc(s.mods, func(x *Module) bool { return x == m })
	s.index()
}

// index makes spans anew; mu is held.
func (s *Space) index() {
	s.spans = nil
	for _, m := range s.mods {
		for _, g := range m.Image.elf.segs {
			lo := m.Runtime(g.Vaddr)
			if hi := lo + g.Memsz; hi > lo {
				s.spans = append(s.spans, span{interval.Range{Start: lo, End: hi}, m, g.Exec})
			}
		}
	}
	sort.Slice(s.spans, func(i, j int) bool { return s.spans[i].Start < s.spans[j].Start })
}

// Modules gives the modules in the order in which they were added, the program first.
func (s *Space) Modules() []*Module {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.mods)
}

// Main is the program's own file, nil in an empty space.
func (s *Space) Main() *Module {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, m := range s.mods {
		if m.Main {
			return m
		}
	}
	return nil
}

// ModuleAt gives the module that has a segment at a run-time address, nil if there is
// none.
func (s *Space) ModuleAt(addr uint64) *Module {
	if g, ok := s.spanAt(addr); ok {
		return g.mod
	}
	return nil
}

func (s *Space) spanAt(addr uint64) (span, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	i, exact := slices.BinarySearchFunc(s.spans, addr, func(g span, a uint64) int { return cmpU64(g.Start, a) })
	if !exact {
		i--
	}
	if i >= 0 && s.spans[i].Contains(addr) {
		return s.spans[i], true
	}
	return span{}, false
}

// Module finds the module that MOD names: by base name ("libc.so.6"), soname, base name
// without version ("libc.so", "libc"), or whole path. The error is a *PlaceError with
// ErrNoModule, or an *AmbiguousError if several match equally well.
func (s *Space) Module(name string) (*Module, error) {
	mods := s.Modules()
	for _, match := range []func(*Module) bool{
		func(m *Module) bool { return m.Name == name || m.isFile(name) },
		func(m *Module) bool { return m.Image.Soname() == name },
		func(m *Module) bool { return withoutVersion(m.Name, true) == name },
		func(m *Module) bool { return withoutVersion(m.Name, false) == name },
	} {
		var found []*Module
		for _, m := range mods {
			if match(m) {
				found = append(found, m)
			}
		}
		switch len(found) {
		case 0:
			continue
		case 1:
			return found[0], nil
		}
		e := &AmbiguousError{Name: name}
		for _, m := range found {
			e.Candidates = append(e.Candidates, Candidate{Name: m.Image.Path(), Module: m.Name, Addr: m.Bias})
		}
		return nil, e
	}
	return nil, &PlaceError{Place: name, Why: fmt.Sprintf("no mapped object is called %q%s", name, meant(name, mods)), Err: ErrNoModule}
}

// Bias gives the load bias of an image from an executable mapping of it, which begins at
// run-time address start and holds the file from offset off on: whole pages around an
// executable segment. ok is false if there is no such segment.
func (im *Image) Bias(start, off uint64) (bias uint64, ok bool) {
	const page = 4096
	for _, g := range im.elf.segs {
		if g.Exec && g.Filesz > 0 && off >= g.Off&^(page-1) && off < g.Off+g.Filesz {
			return start - (off - g.Off + g.Vaddr), true
		}
	}
	return 0, false
}

// Location is a run-time address in terms of a symbol.
type Location struct {
	Name   string // raw name of the function, see Func.String
	Func   *Func
	Off    uint64 // bytes from the function's entry
	Size   uint64 // bytes of the function
	Module *Module
}

// SymbolAt gives the function that holds a run-time address; ok is false if none is known.
func (s *Space) SymbolAt(addr uint64) (loc Location, ok bool) {
	m := s.ModuleAt(addr)
	if m == nil {
		return Location{}, false
	}
	fn, off, ok := m.Image.At(m.Linktime(addr))
	if !ok {
		return Location{}, false
	}
	return Location{Name: fn.String(), Func: fn, Off: off, Size: fn.Size, Module: m}, true
}

// Data finds what @SYM means: the symbol and its run-time address, in one module or, with
// mod "", in the program's own file, then in the others in their order.
func (s *Space) Data(mod, name string) (Sym, uint64, error) {
	mods := s.Modules()
	if mod != "" {
		m, err := s.Module(mod)
		if err != nil {
			return Sym{}, 0, err
		}
		mods = []*Module{m}
	}
	var first error = &NotFoundError{Name: name, Reason: "nothing is mapped"}
	for i, m := range mods {
		sym, err := m.Image.Data(name)
		if err == nil {
			return sym, m.Runtime(sym.Addr), nil
		}
		var missing *NotFoundError
		if !errors.As(err, &missing) {
			return Sym{}, 0, err
		}
		if i == 0 {
			first = err
		}
	}
	return Sym{}, 0, first
}

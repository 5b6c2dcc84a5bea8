package symbol

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
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
	m := &Module{Image: im, Bias: bias, Name: filepath.Base(name), Main: len(s.mods) == 0}
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
	slices.SortFunc(s.spans, func(a, b span) int { return cmpU64(a.Start, b.Start) })
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

// Answers says whether MOD may name a file with a base name that is not mapped: by that, or by it
// without version, as Module has it.
func Answers(base, mod string) bool {
	return base == mod || withoutVersion(base, true) == mod || withoutVersion(base, false) == mod
}

// withoutVersion takes the version off the name of a shared object, NAME[-VERSION].so[.VERSION],
// and .so too unless keepSo. Another name stays as it is.
func withoutVersion(name string, keepSo bool) string {
	for at := 1; at < len(name); at++ {
		if !strings.HasPrefix(name[at:], ".so") || !isSoVersion(name[at+len(".so"):]) {
			continue
		}
		bare := name[:at]
		if i := strings.LastIndexByte(bare, '-'); i > 0 && isVersion(bare[i+1:]) {
			bare = bare[:i]
		}
		if keepSo {
			return bare + ".so"
		}
		return bare
	}
	return name
}

// isSoVersion says whether s is empty or numbers with a dot before each: .1.2.3.
func isSoVersion(s string) bool {
	for s != "" {
		rest := strings.TrimLeft(s[1:], digits)
		if s[0] != '.' || len(rest) == len(s)-1 {
			return false
		}
		s = rest
	}
	return true
}

// isVersion says whether s begins with a digit, and has digits and dots only.
func isVersion(s string) bool {
	return s != "" && s[0] != '.' && strings.Trim(s, digits+".") == ""
}

const digits = "0123456789"

// meant says which objects somebody may mean by a name or a path: those with a name like it, or
// all that are mapped.
func meant(name string, mods []*Module) string {
	isPath := strings.Contains(name, "/")
	base := path.Base(name)
	var names []string
	for _, m := range mods {
		whole := m.Name
		if isPath {
			whole = m.Image.Path()
		}
		if len(Nearest(base, []string{m.Name, withoutVersion(m.Name, true)})) > 0 {
			names = append(names, whole)
		}
	}
	if len(names) > 0 {
		return DidYouMean(names[:min(len(names), MaxNearest)])
	}
	return "; mapped: " + modNames(mods)
}

func modNames(mods []*Module) string {
	var names []string
	for i, m := range mods {
		if i == maxListed {
			names = append(names, fmt.Sprintf("… (%d in all)", len(mods)))
			break
		}
		names = append(names, fmt.Sprintf("%q", m.Name))
	}
	return strings.Join(names, ", ")
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

// Place names an instruction. Exactly one of these forms:
//
//	Sym, Offset      Offset bytes from a function's entry; Mod: in that module only
//	Addr             an address, see Resolve; Mod: of that module's file
//	Path, Addr       a file offset (Addr) in the mapped file of that path
type Place struct {
	Mod    string
	Sym    string
	Offset uint64
	Addr   uint64
	Path   string
}

// String writes the place as it is given in a probe's definition.
func (p Place) String() string {
	prefix := ""
	if p.Mod != "" {
		prefix = p.Mod + ":"
	}
	switch {
	case p.Path != "":
		return fmt.Sprintf("%s:0x%x", p.Path, p.Addr)
	case p.Sym == "":
		return fmt.Sprintf("%s0x%x", prefix, p.Addr)
	case p.Offset != 0:
		return fmt.Sprintf("%s%s+0x%x", prefix, p.Sym, p.Offset)
	}
	return prefix + p.Sym
}

// Resolved is an instruction's place in a running process.
type Resolved struct {
	Module *Module
	Func   *Func  // the function that holds it; nil if none is known
	Offset uint64 // bytes from the function's entry
	Vaddr  uint64 // link-time address
	Addr   uint64 // run-time address
}

// Resolve finds a place. A symbol without Mod is searched in the program's own file, then
// in the other modules, where visible functions go before file-local ones. An address
// without Mod is a link-time address of the program's file (what nm prints) if its
// executable segments hold it, else a run-time address inside an executable segment of any
// module. An offset behind the end of a function is refused; in a kernel it leads into the function
// that is there, as the kernel has it. Errors: *NotFoundError, *AmbiguousError, *PlaceError.
func (s *Space) Resolve(p Place) (Resolved, error) {
	switch {
	case p.Path != "":
		return s.resolveFileOff(p)
	case p.Sym == "":
		return s.resolveAddr(p)
	}
	m, fn, err := s.Lookup(p.Mod, p.Sym)
	if err != nil {
		return Resolved{}, err
	}
	v := fn.Addr + p.Offset
	if p.Offset >= fn.Size {
		if r := m.resolved(v); m.Image.opts.Kernel && v > fn.Addr && r.Func != nil {
			return r, nil
		}
		return Resolved{}, &PlaceError{Place: p.String(), Why: fmt.Sprintf("the offset lies behind the end of %q, which has 0x%x bytes", fn, fn.Size)}
	}
	return Resolved{Module: m, Func: fn, Offset: p.Offset, Vaddr: v, Addr: m.Runtime(v)}, nil
}

// Lookup finds the function of a name, in one module or, with mod "", as Resolve says.
func (s *Space) Lookup(mod, name string) (*Module, *Func, error) {
	if mod != "" {
		m, err := s.Module(mod)
		if err != nil {
			return nil, nil, err
		}
		return m.lookup(name)
	}
	mods := s.Modules()
	if len(mods) == 0 {
		return nil, nil, &NotFoundError{Name: name, Reason: "nothing is mapped"}
	}
	m, fn, err := mods[0].lookup(name)
	var missing *NotFoundError
	if err == nil || !errors.As(err, &missing) {
		return m, fn, err
	}
	return lookupOthers(mods[1:], name, missing)
}

func (m *Module) lookup(name string) (*Module, *Func, error) {
	fns, err := m.Image.Lookup(name)
	if err != nil {
		return nil, nil, err
	}
	return m, fns[0], nil
}

// found is a function of a module.
type found struct {
	mod *Module
	fn  *Func
}

// lookupOthers searches the shared objects after the program did not have the name.
func lookupOthers(mods []*Module, name string, missing *NotFoundError) (*Module, *Func, error) {
	all := &NotFoundError{Name: name, Reason: missing.Reason, Similar: missing.Similar, Problems: missing.Problems}
	var hits []found
	for _, m := range mods {
		fns, err := m.Image.Lookup(name)
		var nf *NotFoundError
		if errors.As(err, &nf) {
			all.Problems = append(all.Problems, nf.Problems...)
			all.Similar = mergeNames(all.Similar, nf.Similar)
			if all.Reason == "" && nf.Variable {
				all.Reason = fmt.Sprintf("%q has it: %s", m.Name, nf.Reason)
			}
		}
		for _, fn := range fns {
			hits = append(hits, found{m, fn})
		}
	}
	if visible := slices.DeleteFunc(slices.Clone(hits), func(f found) bool { return f.fn.Local }); len(visible) > 0 {
		hits = visible
	}
	switch len(hits) {
	case 0:
		return nil, nil, all
	case 1:
		return hits[0].mod, hits[0].fn, nil
	}
	e := &AmbiguousError{Name: name}
	for _, h := range hits {
		e.Candidates = append(e.Candidates, Candidate{h.fn.String(), h.fn.File, h.mod.Name, h.fn.Addr, h.fn.Size})
	}
	return nil, nil, e
}

func mergeNames(a, b []string) []string {
	for _, n := range b {
		if len(a) < MaxNearest && !slices.Contains(a, n) {
			a = append(a, n)
		}
	}
	return a
}

func (s *Space) resolveAddr(p Place) (Resolved, error) {
	if p.Mod != "" {
		m, err := s.Module(p.Mod)
		if err != nil {
			return Resolved{}, err
		}
		if !m.Image.Executable(p.Addr) {
			return Resolved{}, &PlaceError{Place: p.String(), Why: fmt.Sprintf("not an address in the code of %q; %s", m.Name, m.describe()), Err: ErrNotMapped}
		}
		return m.resolved(p.Addr), nil
	}
	main := s.Main()
	if main != nil && main.Image.Executable(p.Addr) {
		return main.resolved(p.Addr), nil
	}
	if g, ok := s.spanAt(p.Addr); ok && g.exec {
		return g.mod.resolved(g.mod.Linktime(p.Addr)), nil
	}
	why := "neither an address in the code of the program's file nor a run-time address inside a mapped object's code"
	if main != nil {
		why += "; " + main.describe()
	}
	return Resolved{}, &PlaceError{Place: p.String(), Why: why, Err: ErrNotMapped}
}

// describe tells where a module's code is.
func (m *Module) describe() string {
	var parts []string
	for _, g := range m.Image.elf.segs {
		if g.Exec && len(parts) < 4 {
			parts = append(parts, fmt.Sprintf("0x%x-0x%x", g.Vaddr, g.Vaddr+g.Memsz))
		}
	}
	return fmt.Sprintf("the code of %q is at %s, loaded with bias 0x%x", m.Name, strings.Join(parts, ", "), m.Bias)
}

func (m *Module) resolved(vaddr uint64) Resolved {
	r := Resolved{Module: m, Vaddr: vaddr, Addr: m.Runtime(vaddr)}
	r.Func, r.Offset, _ = m.Image.At(vaddr)
	return r
}

// resolveFileOff finds a file offset in the mapped file of a path: the same path, or one
// that ends in it, since /lib may be a link to /usr/lib.
func (s *Space) resolveFileOff(p Place) (Resolved, error) {
	path := filepath.Clean(p.Path)
	var hits []*Module
	mods := s.Modules()
	for _, m := range mods {
		if m.isFile(path) {
			hits = append(hits, m)
		}
	}
	if len(hits) == 0 {
		return Resolved{}, &PlaceError{Place: p.String(), Why: "no such file is mapped" + meant(p.Path, mods), Err: ErrNoModule}
	}
	v, ok := hits[0].Image.Vaddr(p.Addr)
	if !ok || !hits[0].Image.Executable(v) {
		return Resolved{}, &PlaceError{Place: p.String(), Why: "no executable segment holds that file offset", Err: ErrNotMapped}
	}
	return hits[0].resolved(v), nil
}

// isFile says whether a path is that of the module's file, or an absolute one in which it ends.
func (m *Module) isFile(path string) bool {
	mp, path := filepath.Clean(m.Image.Path()), filepath.Clean(path)
	return mp == path || filepath.IsAbs(path) && strings.HasSuffix(mp, path)
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

package symbol

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

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
	name := path.Clean(p.Path)
	var hits []*Module
	mods := s.Modules()
	for _, m := range mods {
		if m.isFile(name) {
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
func (m *Module) isFile(name string) bool {
	mapped, name := path.Clean(m.Image.Path()), path.Clean(name)
	return mapped == name || path.IsAbs(name) && strings.HasSuffix(mapped, name)
}

package symbol

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// table is what the symbol tables of an image amount to.
type table struct {
	funcs    []*Func  // sorted by address, unique by address
	starts   []uint64 // their addresses, for binary search
	outer    []int32  // for each function the one that encloses its start, -1 for none
	names    []nameRef
	byName   map[string]int32 // raw name to the last of its names, see nameRef.next
	bases    map[string][]int32
	parts    map[string][]int32 // names of functions to those of their parts
	objs     []object
	fdes     []fde
	goTab    *goTable
	slots    *gotSlots
	problems []error

	scans      atomic.Int32 // lookups of demangled names that took a scan
	prettyOnce sync.Once
	pretty     map[string][]int32 // demangled names without parameter list to names
}

// nameRef is one raw name of a function.
type nameRef struct {
	str    string
	ver    string
	fn     int32 // index in funcs
	next   int32 // next of the same string in table.names, -1 at the end
	hidden bool  // of a version that is not the default
	clone  bool  // has a clone suffix
}

// object is a symbol that is no function.
type object struct {
	name, file, ver string
	addr, size      uint64
	hidden, tls     bool
}

// loader collects what the tables hold.
type loader struct {
	im    *Image
	t     *table
	syms  []rawSym // functions and labels in code
	rtext uint64   // runtime.text
}

// load reads every table of the image.
func (im *Image) load() *table {
	l := &loader{im: im, t: &table{slots: &gotSlots{}}}
	l.problem(im.elf.sectErr)
	l.problem(im.dynErr)
	l.loadSymtabs()
	if im.opts.Kernel {
		l.build()
		return l.t
	}
	dynNames := l.loadDynsym()
	l.loadGo()
	var err error
	l.t.fdes, err = im.elf.loadFDEs()
	l.problem(err)
	l.t.fdes = slices.DeleteFunc(l.t.fdes, func(d fde) bool {
		r, ok := findRange(im.exec, d.start)
		return !ok || d.end > r.End
	})
	l.loadPLT(dynNames)
	l.build()
	return l.t
}

func (l *loader) problem(err error) {
	if err != nil {
		l.t.problems = append(l.t.problems, err)
	}
}

// loadSymtabs reads the best full symbol table: the file's own, a separate debug file's,
// else that of .gnu_debugdata.
func (l *loader) loadSymtabs() {
	if l.readSymtab(l.im.elf, SourceSymtab) {
		return
	}
	if !l.im.opts.NoDebugFiles {
		f, closer, problems := l.im.openDebugFile()
		l.t.problems = append(l.t.problems, problems...)
		if f != nil {
			defer closer.Close()
			if l.readSymtab(f, SourceDebugFile) {
				return
			}
		}
	}
	m, err := l.im.elf.debugData()
	l.problem(err)
	if m != nil {
		l.readSymtab(m, SourceDebugData)
	}
}

// readSymtab reads the .symtab of a file; false if it has none.
func (l *loader) readSymtab(f *elfFile, src Source) bool {
	span, ok, err := f.sectionSpan(secSymtab)
	l.problem(err)
	if !ok {
		return false
	}
	strs, err := f.symbolStrings(span, src.String())
	if err == nil {
		err = f.eachSymbol(span, strs, src, nil, l.add)
	}
	l.problem(err)
	return err == nil
}

// loadDynsym reads the dynamic symbols and gives the names of all of them, undefined ones
// too, by index.
func (l *loader) loadDynsym() func(uint32) string {
	none := func(uint32) string { return "" }
	f := l.im.elf
	span, ok, err := f.sectionSpan(secDynsym)
	if err != nil || !ok {
		span, ok, err = f.dynamicSpan(&l.im.dyn)
	}
	l.problem(err)
	if !ok || err != nil {
		return none
	}
	strs, err := f.symbolStrings(span, ".dynsym")
	if err != nil {
		l.problem(err)
		return none
	}
	vers, err := f.readVersions(&l.im.dyn, span.symSize/24, strs)
	l.problem(err)
	l.problem(f.eachSymbol(span, strs, SourceDynsym, vers, l.add))
	return func(i uint32) string {
		if uint64(i) >= span.symSize/24 {
			return ""
		}
		b, err := f.bytesAt(span.symOff+uint64(i)*24, 24, ".dynsym")
		if err != nil {
			return ""
		}
		s, _ := parseSym(b, strs)
		return s.name
	}
}

// add takes one symbol: code, data, or neither.
func (l *loader) add(s *rawSym) {
	if s.name == "runtime.text" {
		l.rtext = s.addr
	}
	switch s.typ {
	case symFunc, symIFunc:
		if l.im.InText(s.addr) && !boundaryName(s.name) {
			l.syms = append(l.syms, *s)
		}
	case symNone:
		if l.im.InText(s.addr) {
			if s.bind != symLocal && s.name[0] != '.' && s.name[0] != '$' && !boundaryName(s.name) {
				l.syms = append(l.syms, *s)
			}
			return
		}
		l.addObject(s)
	case symObject, symCommon, symTLS:
		l.addObject(s)
	}
}

func (l *loader) addObject(s *rawSym) {
	tls := s.typ == symTLS
	if !tls && l.im.elf.segment(s.addr) == nil && l.im.elf.segment(s.addr-1) == nil {
		return // _end and its like stand right behind a segment
	}
	l.t.objs = append(l.t.objs, object{s.name, s.file, s.ver, s.addr, s.size, s.hidden, tls})
}

// boundaryName tells names that linkers give to the edges of code, not to functions.
func boundaryName(name string) bool {
	switch name {
	case "etext", "_etext", "__etext", "runtime.text", "runtime.etext", "go:buildid",
		"go:textfipsstart", "go:textfipsend":
		return true
	}
	return false
}

// loadGo reads the pclntab. Its functions replace the bounds of every symbol in its range.
func (l *loader) loadGo() {
	t, err := l.im.elf.loadGo(&l.im.dyn, l.rtext)
	l.problem(err)
	l.t.goTab = t
}

// loadPLT names the PLT stubs and keeps the GOT slots they use.
func (l *loader) loadPLT(dynNames func(uint32) string) {
	all := slices.ContainsFunc(l.im.elf.pltSections(), func(s section) bool { return s.name == ".plt.got" })
	slots, err := l.im.elf.readSlots(&l.im.dyn, dynNames, all)
	l.problem(err)
	l.t.slots = slots
	stubs, err := l.im.elf.pltStubs(slots, l.resolverName())
	l.problem(err)
	for _, p := range stubs {
		if !l.im.InText(p.addr) {
			continue
		}
		l.syms = append(l.syms, rawSym{name: p.name, addr: p.addr, size: p.size, typ: symFunc, bind: symGlobal, source: SourcePLT})
	}
}

// resolverName gives the name of an IFUNC resolver by its address.
func (l *loader) resolverName() func(uint64) string {
	var names map[uint64]string
	return func(addr uint64) string {
		if names == nil {
			names = map[uint64]string{}
			for i := range l.syms {
				if s := &l.syms[i]; s.typ == symIFunc && (names[s.addr] == "" || betterName(s.name, names[s.addr])) {
					names[s.addr] = s.name
				}
			}
		}
		return names[addr]
	}
}

// betterName prefers names without leading underscores, then short ones, then the first
// by alphabet.
func betterName(a, b string) bool {
	ua, ub := len(a)-len(strings.TrimLeft(a, "_")), len(b)-len(strings.TrimLeft(b, "_"))
	switch {
	case ua != ub:
		return ua < ub
	case len(a) != len(b):
		return len(a) < len(b)
	}
	return a < b
}

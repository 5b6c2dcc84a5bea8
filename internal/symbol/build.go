package symbol

import (
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/interval"
)

// build turns the collected symbols into functions.
func (l *loader) build() {
	slices.SortStableFunc(l.syms, func(a, b rawSym) int { return cmpU64(a.addr, b.addr) })
	covered := l.coverage()
	store := make([]Func, 0, len(l.syms)/2+len(l.t.fdes)/4)
	var groups [][]rawSym
	for i := 0; i < len(l.syms); {
		j := i + 1
		for j < len(l.syms) && l.syms[j].addr == l.syms[i].addr {
			j++
		}
		if g := l.syms[i:j]; l.isFunction(g, covered) {
			store = append(store, l.fromSymbols(g))
			groups = append(groups, g)
		}
		i = j
	}
	store = l.addGo(store)
	store = l.addFDEs(store)
	l.t.funcs, l.t.starts = make([]*Func, len(store)), make([]uint64, len(store))
	for i := range store {
		l.t.funcs[i] = &store[i]
	}
	slices.SortFunc(l.t.funcs, func(a, b *Func) int { return cmpU64(a.Addr, b.Addr) })
	for i, fn := range l.t.funcs {
		l.t.starts[i] = fn.Addr
	}
	l.fillSizes()
	l.t.nest()
	l.indexNames(groups)
	l.syms = nil
}

// coverage gives the ranges of sized function symbols, joined.
func (l *loader) coverage() []interval.Range {
	var rs []interval.Range
	for i := range l.syms {
		if s := &l.syms[i]; s.typ != symNone && s.size > 0 && s.addr+s.size > s.addr {
			rs = append(rs, interval.Range{Start: s.addr, End: s.addr + s.size})
		}
	}
	return mergeRanges(rs)
}

// isFunction decides whether the symbols at one address make a function: untyped ones do
// only where no function's code is, symbols in Go's range only where Go has none of its
// own (addGo brings those).
func (l *loader) isFunction(g []rawSym, covered []interval.Range) bool {
	addr := g[0].addr
	if t := l.t.goTab; t != nil && t.text.Contains(addr) {
		return false
	}
	for i := range g {
		if g[i].typ != symNone {
			return true
		}
	}
	d, in := l.t.fdeAt(addr)
	return in && d.start == addr || !in && !inRanges(covered, addr)
}

// fdeAt gives the frame description that holds an address.
func (t *table) fdeAt(addr uint64) (fde, bool) {
	i, exact := slices.BinarySearchFunc(t.fdes, addr, func(d fde, a uint64) int { return cmpU64(d.start, a) })
	if !exact {
		i--
	}
	if i >= 0 && i < len(t.fdes) && t.fdes[i].end > addr {
		return t.fdes[i], true
	}
	return fde{}, false
}

// fromSymbols makes the function of the symbols at one address.
func (l *loader) fromSymbols(g []rawSym) Func {
	best := &g[0]
	for i := range g[1:] {
		if !l.im.opts.Kernel && preferred(&g[i+1], best) {
			best = &g[i+1]
		}
	}
	fn := Func{Name: best.name, Addr: best.addr, File: best.file, Source: best.source, Lang: mangling(best.name), Local: true}
	for i := range g {
		s := &g[i]
		fn.Local = fn.Local && s.bind == symLocal
		fn.IFunc = fn.IFunc || s.typ == symIFunc
		if s.size > fn.Size && (fn.Size == 0 || s == best) {
			fn.Size, fn.SizeFrom = s.size, s.source
		}
	}
	fn.PLT = best.source == SourcePLT
	fn.Aliases = aliases(g, best.name)
	if _, kind, of := splitSuffix(best.name); kind >= suffixPart {
		fn.Cold, fn.Part, fn.PartOf = kind == suffixCold, kind == suffixPart, of
	}
	return fn
}

// preferred says which of two names at an address is shown: one of a whole function, then
// one that is visible, then the default version, then the plainest.
func preferred(a, b *rawSym) bool {
	rank := func(s *rawSym) int {
		r := 0
		if _, kind, _ := splitSuffix(s.name); kind >= suffixPart {
			r += 8
		}
		if s.bind == symLocal {
			r += 4
		}
		if s.hidden {
			r += 2
		}
		if s.typ == symNone {
			r++
		}
		return r
	}
	ra, rb := rank(a), rank(b)
	if ra != rb {
		return ra < rb
	}
	return a.name != b.name && betterName(a.name, b.name)
}

// aliases lists the other names at an address.
func aliases(g []rawSym, best string) []string {
	var out []string
	for i := range g {
		n := g[i].name
		if g[i].hidden && g[i].ver != "" {
			n += "@" + g[i].ver
		}
		if n != best && !slices.Contains(out, n) {
			out = append(out, n)
		}
		if len(out) == maxAliases {
			break
		}
	}
	return out
}

// maxAliases bounds Func.Aliases; names beyond it are still found.
const maxAliases = 256

// addGo brings the functions of the pclntab, with the symbol table's names as aliases.
func (l *loader) addGo(store []Func) []Func {
	t := l.t.goTab
	if t == nil {
		return store
	}
	store = slices.Grow(store, len(t.funcs))
	inner, last := t.wrapped(), -1 // last: the newest that is foreign
	for i := range t.funcs {
		switch g := &t.funcs[i]; {
		case boundaryName(g.name) || !l.im.InText(t.textStart+g.entry):
		case g.foreign && last >= 0 && store[last].Addr == t.textStart+g.entry: // each name is listed
			store[last].alias(g.name)
		case g.foreign:
			last = len(store)
			store = append(store, l.foreignFunc(g))
		default:
			store = append(store, l.goFunc(g, inner))
		}
	}
	return store
}

// wrapped finds the functions that have an ABI wrapper of the same name. A few functions
// are marked as wrappers themselves, to be left out of tracebacks (cmd/internal/objabi,
// funcIDs): of two such the larger is the function.
func (t *goTable) wrapped() map[string]*goFunc {
	inner := map[string]*goFunc{}
	seen := make(map[string]*goFunc, len(t.funcs))
	for i := range t.funcs {
		b := &t.funcs[i]
		a := seen[b.name]
		seen[b.name] = b
		if a == nil {
			continue
		}
		aw, bw := t.isWrapper(a), t.isWrapper(b)
		if !aw && !bw {
			continue // file-static assembly of two packages
		}
		if aw && (!bw || b.size > a.size) {
			a = b
		}
		inner[a.name], seen[a.name] = a, a
	}
	return inner
}

func (t *goTable) isWrapper(g *goFunc) bool { return int(g.id) == t.wrapper }

// goFunc makes one Go function. Of a pair with one name the wrapper calls the other by
// the other's ABI: an assembly function is ABI0, a compiled one ABIInternal.
func (l *loader) goFunc(g *goFunc, inner map[string]*goFunc) Func {
	t := l.t.goTab
	fn := Func{
		Name: g.name, Addr: t.textStart + g.entry, Size: g.size, Lang: LangGo,
		Source: SourcePclntab, SizeFrom: SourcePclntab, Asm: g.asm, Wrapper: t.isWrapper(g),
	}
	if in := inner[g.name]; in != nil && t.wrapper >= 0 {
		fn.Wrapper = in != g
		fn.ABI0 = fn.Wrapper != in.asm
	}
	for _, s := range l.symsAt(fn.Addr) {
		if s.size > 0 {
			fn.Size, fn.SizeFrom = s.size, s.source
		}
		name, abi0 := strings.CutSuffix(s.name, ".abi0")
		fn.ABI0 = fn.ABI0 || abi0
		fn.alias(name)
	}
	return fn
}

// foreignFunc makes a function of another language that the pclntab lists: it has the name and the
// place. Symbols that are not the function's own stand for the whole text of an object.
func (l *loader) foreignFunc(g *goFunc) Func {
	fn := Func{Name: g.name, Addr: l.t.goTab.textStart + g.entry, Lang: mangling(g.name), Source: SourcePclntab}
	for _, s := range l.symsAt(fn.Addr) {
		switch {
		case s.name == g.name:
			fn.Size, fn.SizeFrom = s.size, s.source
			fn.Local, fn.IFunc = s.bind == symLocal, s.typ == symIFunc
		case !strings.ContainsRune(s.name, '('):
			fn.alias(s.name)
		}
	}
	if _, kind, of := splitSuffix(g.name); kind >= suffixPart {
		fn.Cold, fn.Part, fn.PartOf = kind == suffixCold, kind == suffixPart, of
	}
	return fn
}

// alias adds another name of the function.
func (f *Func) alias(name string) {
	if name != f.Name && !slices.Contains(f.Aliases, name) && len(f.Aliases) < maxAliases {
		f.Aliases = append(f.Aliases, name)
	}
}

// symsAt gives the collected symbols at an address.
func (l *loader) symsAt(addr uint64) []rawSym {
	i, _ := slices.BinarySearchFunc(l.syms, addr, func(s rawSym, a uint64) int { return cmpU64(s.addr, a) })
	j := i
	for j < len(l.syms) && l.syms[j].addr == addr {
		j++
	}
	return l.syms[i:j]
}

// addFDEs brings functions that only .eh_frame tells of: FDEs whose start no known
// function covers. Those of the PLT describe many stubs at once and are left out, and so are
// signal frames: glibc's begin one byte before their code, inside padding, because unwinders
// look one byte before a return address. Nothing calls that code.
func (l *loader) addFDEs(store []Func) []Func {
	known := make([]uint64, 0, len(store))
	var covered []interval.Range
	for i := range store {
		known = append(known, store[i].Addr)
		if store[i].Size > 0 {
			covered = append(covered, interval.Range{Start: store[i].Addr, End: store[i].Addr + store[i].Size})
		}
	}
	slices.Sort(known)
	for _, s := range l.im.elf.pltSections() {
		covered = append(covered, interval.Range{Start: s.addr, End: s.addr + s.size})
	}
	covered = mergeRanges(covered)
	for i, d := range l.t.fdes {
		if d.signal {
			continue
		}
		if i > 0 && l.t.fdes[i-1].start == d.start || inRanges(covered, d.start) {
			continue
		}
		if _, ok := slices.BinarySearch(known, d.start); ok {
			continue
		}
		store = append(store, Func{
			Addr: d.start, Size: d.end - d.start, Source: SourceEHFrame, SizeFrom: SourceEHFrame,
			Cold: d.inner, Local: true,
		})
	}
	return store
}

// fillSizes gives every function a size that stays in its code range: an FDE's that
// begins or holds its start, else up to the next function.
func (l *loader) fillSizes() {
	fns := l.t.funcs
	for i, fn := range fns {
		r, _ := findRange(l.im.exec, fn.Addr)
		next := r.End
		if i+1 < len(fns) {
			next = min(next, fns[i+1].Addr)
		}
		if fn.Size == 0 {
			fn.Size, fn.SizeFrom = next-fn.Addr, SourceNext
			if d, ok := l.t.fdeAt(fn.Addr); ok {
				fn.Size, fn.SizeFrom = min(d.end, next)-fn.Addr, SourceEHFrame
			}
		}
		fn.Size = min(fn.Size, r.End-fn.Addr)
	}
}

// nest computes which function encloses the start of each.
func (t *table) nest() {
	t.outer = make([]int32, len(t.funcs))
	var open []int32
	for i, fn := range t.funcs {
		for len(open) > 0 && t.funcs[open[len(open)-1]].End() <= fn.Addr {
			open = open[:len(open)-1]
		}
		t.outer[i] = -1
		if len(open) > 0 {
			t.outer[i] = open[len(open)-1]
		}
		open = append(open, int32(i))
	}
}

// at gives the innermost function that holds an address.
func (t *table) at(addr uint64) *Func {
	i, exact := slices.BinarySearch(t.starts, addr)
	if !exact {
		i--
	}
	for i >= 0 {
		if t.funcs[i].Contains(addr) {
			return t.funcs[i]
		}
		i = int(t.outer[i])
	}
	return nil
}

// indexNames makes the index of raw names. groups are the symbols of the functions that
// came from symbols, in order of address; Go's names come from the functions themselves.
func (l *loader) indexNames(groups [][]rawSym) {
	t := l.t
	t.byName = make(map[string]int32, len(t.funcs))
	t.bases, t.parts = map[string][]int32{}, map[string][]int32{}
	g := 0
	for i, fn := range t.funcs {
		switch {
		case fn.Source == SourceEHFrame:
		case fn.Source == SourcePclntab:
			t.addName(nameRef{str: fn.Name, fn: int32(i)})
			if plain, ok := unescapeGo(fn.Name); ok {
				t.addName(nameRef{str: plain, fn: int32(i)})
			}
			for _, a := range fn.Aliases {
				t.addName(nameRef{str: a, fn: int32(i)})
			}
		default:
			for j := range groups[g] {
				s := &groups[g][j]
				t.addName(nameRef{str: s.name, ver: s.ver, hidden: s.hidden, fn: int32(i)})
			}
			g++
		}
	}
}

func (t *table) addName(n nameRef) {
	base, kind, _ := splitSuffix(n.str)
	if t.funcs[n.fn].Lang == LangGo {
		kind = suffixNone
	}
	n.clone = kind == suffixClone
	n.next = -1
	if head, ok := t.byName[n.str]; ok {
		n.next = head
	}
	at := int32(len(t.names))
	t.names = append(t.names, n)
	t.byName[n.str] = at
	for _, s := range partSuffixes {
		if of, ok := strings.CutSuffix(n.str, s); ok && of != "" {
			t.parts[of] = append(t.parts[of], at)
		}
	}
	if n.clone {
		t.bases[base] = append(t.bases[base], at)
	}
}

package symbol

import (
	"errors"
	"slices"
	"sort"
	"strings"
)

// Lookup finds the function of a name. It tries, and takes the first that matches:
//
//  1. raw names (a default version name@@V before name@V), Go names as in tracebacks,
//     stub names (sym@plt), and raw names with their version (name@V, name@@V);
//  2. compiler-made copies: name.isra.N, name.constprop.N, name.lto_priv.N for name;
//  3. demangled C++ and Rust names, with or without parameter list;
//  4. the same, and Go names, without template or type arguments.
//
// The result is one function and a nil error. If the name means several addresses, it is
// all of them and an *AmbiguousError; if none, a *NotFoundError. Cold and split-off parts
// never answer to a name.
func (im *Image) Lookup(name string) ([]*Func, error) {
	fns := im.All(name)
	switch len(fns) {
	case 0:
		return nil, im.notFound(name)
	case 1:
		return fns, nil
	}
	return fns, im.ambiguous(name, fns)
}

// All is Lookup for who needs no error: what else a name may mean is not looked for, which takes long.
func (im *Image) All(name string) []*Func {
	t := im.table()
	for _, find := range []func(string) []int32{t.rawNames, t.cloneNames, t.demangledNames, t.shortNames} {
		if fns := t.resolve(find(name)); len(fns) > 0 {
			return fns
		}
	}
	return nil
}

// rawNames gives the names equal to name, or to its part before a version.
func (t *table) rawNames(name string) []int32 {
	refs := t.named(name)
	if len(refs) > 0 {
		return refs
	}
	base, ver, ok := strings.Cut(name, "@")
	if !ok || base == "" {
		return nil
	}
	ver, isDefault := strings.CutPrefix(ver, "@")
	for _, i := range t.named(base) {
		if n := &t.names[i]; n.ver == ver && !(isDefault && n.hidden) {
			refs = append(refs, i)
		}
	}
	return refs
}

// named gives the names of one spelling.
func (t *table) named(name string) []int32 {
	var refs []int32
	i, ok := t.byName[name]
	for ok && i >= 0 {
		refs = append(refs, i)
		i = t.names[i].next
	}
	return refs
}

func (t *table) cloneNames(name string) []int32 { return t.bases[name] }

// demangledNames gives the names that read name when demangled: ones without clone suffix
// if there are any. The first lookups scan the names that hold the query's words, later
// ones use an index.
func (t *table) demangledNames(name string) []int32 {
	want := squeeze(name)
	if t.scans.Load() >= scansBeforeIndex {
		refs := t.prettyIndex()[want]
		if len(refs) > 0 || !strings.Contains(want, "(") {
			return t.withoutClones(refs)
		}
	}
	t.scans.Add(1)
	var refs []int32
	t.eachMangled(tokens(name), func(i int32, raw string) {
		if demanglesTo(raw, want) {
			refs = append(refs, i)
		}
	})
	return t.withoutClones(refs)
}

// scansBeforeIndex is the number of lookups that scan all names before it pays to
// demangle every name once.
const scansBeforeIndex = 32

// prettyIndex demangles every name, at its first call.
func (t *table) prettyIndex() map[string][]int32 {
	t.prettyOnce.Do(func() {
		t.pretty = map[string][]int32{}
		t.eachMangled(nil, func(i int32, raw string) {
			if s, ok := demangled(raw, NoParams); ok {
				s = squeeze(s)
				t.pretty[s] = append(t.pretty[s], i)
			}
		})
	})
	return t.pretty
}

// withoutClones drops the names of compiler-made copies if there are others.
func (t *table) withoutClones(refs []int32) []int32 {
	isClone := func(i int32) bool { return t.names[i].clone }
	if slices.ContainsFunc(refs, func(i int32) bool { return !isClone(i) }) {
		return slices.DeleteFunc(slices.Clone(refs), isClone)
	}
	return refs
}

// eachMangled calls fn for the mangled names that hold all words.
func (t *table) eachMangled(words []string, fn func(i int32, raw string)) {
	for i := range t.names {
		if n := &t.names[i]; len(n.str) > 2 && n.str[0] == '_' && mangling(n.str) != LangC && holdsAll(n.str, words) {
			fn(int32(i), n.str)
		}
	}
}

// demanglesTo reports whether a raw name reads want, which is squeezed: whole, without
// parameter list, or with it but without the return type that only templates show.
func demanglesTo(raw, want string) bool {
	short, ok := demangled(raw, NoParams)
	if !ok {
		return false
	}
	short = squeeze(short)
	if short == want {
		return true
	}
	if !strings.HasPrefix(want, short) && !strings.Contains(want, " ") {
		return false
	}
	full, _ := demangled(raw, WithParams)
	full = squeeze(full)
	return full == want || strings.HasPrefix(want, short) && strings.HasSuffix(full, " "+want)
}

// squeeze takes out the blanks that do not part two words.
func squeeze(s string) string {
	if strings.IndexByte(s, ' ') < 0 {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if s[i] == ' ' && (i == 0 || i+1 == len(s) || !isIdent(s[i-1]) || !isIdent(s[i+1])) && !afterWord(s, i) {
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// afterWord keeps the blank between a return type and what follows it, as in "f<int> g".
func afterWord(s string, i int) bool {
	return i > 0 && i+1 < len(s) && (s[i-1] == '>' || s[i-1] == '*' || s[i-1] == '&' || s[i-1] == ')') && isIdent(s[i+1])
}

// shortNames gives the names that read name without template or type arguments.
func (t *table) shortNames(name string) []int32 {
	want := squeeze(name)
	words := tokens(name)
	var refs []int32
	t.eachMangled(words, func(i int32, raw string) {
		s, ok := demangled(raw, NoTemplateArgs)
		if ok && squeeze(s) == want {
			refs = append(refs, i)
		}
	})
	for i := range t.names {
		n := &t.names[i]
		if t.funcs[n.fn].Lang == LangGo && strings.IndexByte(n.str, '[') > 0 && withoutTypeArgs(n.str) == name {
			refs = append(refs, int32(i))
		}
	}
	return refs
}

// withoutTypeArgs takes the bracketed parts out of a Go name.
func withoutTypeArgs(s string) string {
	var b strings.Builder
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '[':
			depth++
		case ']':
			depth--
		default:
			if depth == 0 {
				b.WriteByte(s[i])
			}
		}
	}
	return b.String()
}

// resolve turns names into functions: parts never, hidden versions only if nothing else
// has the name, Go's wrappers only if there is nothing to wrap; sorted by address.
func (t *table) resolve(refs []int32) []*Func {
	visible := slices.ContainsFunc(refs, func(i int32) bool { return !t.names[i].hidden })
	var fns []*Func
	for _, i := range refs {
		n := &t.names[i]
		if fn := t.funcs[n.fn]; fn.Candidate() && !(visible && n.hidden) {
			if _, kind, _ := splitSuffix(n.str); kind < suffixPart || fn.Lang == LangGo {
				fns = append(fns, fn)
			}
		}
	}
	slices.SortFunc(fns, func(a, b *Func) int { return cmpU64(a.Addr, b.Addr) })
	fns = slices.Compact(fns)
	if slices.ContainsFunc(fns, func(f *Func) bool { return !f.Wrapper }) {
		fns = slices.DeleteFunc(fns, func(f *Func) bool { return f.Wrapper })
	}
	return fns
}

func (im *Image) ambiguous(name string, fns []*Func) error {
	e := &AmbiguousError{Name: name}
	for _, f := range fns {
		e.Candidates = append(e.Candidates, Candidate{f.String(), f.File, im.ModName(), f.Addr, f.Size})
	}
	return e
}

// Funcs gives all functions, sorted by address and unique by it, parts and PLT stubs
// included.
func (im *Image) Funcs() []*Func { return slices.Clone(im.table().funcs) }

// At gives the function that holds a link-time address, the innermost if they overlap,
// and the offset in it.
func (im *Image) At(vaddr uint64) (fn *Func, off uint64, ok bool) {
	fn = im.table().at(vaddr)
	if fn == nil {
		return nil, 0, false
	}
	return fn, vaddr - fn.Addr, true
}

// Parts gives the cold parts of a function, sorted by address: code that it jumps to and
// that uses its frame. Where names are stripped they can not be told from each other and
// none is given. Functions split off by .part are no parts in this sense: they are called.
func (im *Image) Parts(fn *Func) []*Func {
	t := im.table()
	if len(t.parts) == 0 {
		return nil
	}
	out := t.partsNamed(nil, fn, fn.Name)
	for _, alias := range fn.Aliases {
		out = t.partsNamed(out, fn, alias)
	}
	slices.SortFunc(out, func(a, b *Func) int { return cmpU64(a.Addr, b.Addr) })
	return slices.Compact(out)
}

// partsNamed appends the parts of a function whose names tell of one of its names.
func (t *table) partsNamed(out []*Func, fn *Func, name string) []*Func {
	for _, i := range t.parts[name] {
		if p := t.funcs[t.names[i].fn]; p != fn && t.belongs(p, fn) {
			out = append(out, p)
		}
	}
	return out
}

// partSuffixes are those of names of parts.
var partSuffixes = []string{".cold", ".cold.0", ".cold.1", ".__part.1"}

// belongs decides between file-local functions of one name by their source file.
func (t *table) belongs(part, fn *Func) bool {
	if part.Candidate() {
		return false
	}
	return part.File == fn.File || !fn.Local || len(t.resolve(t.named(fn.Name))) == 1
}

// Namesakes says whether other functions have a name of a function's, and may be of the same
// source file: then Parts may give parts of theirs.
func (im *Image) Namesakes(fn *Func) bool {
	t := im.table()
	for _, raw := range append([]string{fn.Name}, fn.Aliases...) {
		for _, i := range t.named(raw) {
			if o := t.funcs[t.names[i].fn]; raw != "" && o != fn && (o.File == fn.File || o.File == "") {
				return true
			}
		}
	}
	return false
}

// Clones gives the compiler-made copies of a function (name.constprop.N and the like),
// which run in its place for some callers.
func (im *Image) Clones(fn *Func) []*Func {
	t := im.table()
	var refs []int32
	for _, raw := range append([]string{fn.Name}, fn.Aliases...) {
		refs = append(refs, t.bases[raw]...)
	}
	fns := t.resolve(refs)
	return slices.DeleteFunc(fns, func(f *Func) bool { return f == fn })
}

// Data finds a symbol of any kind by its name, variables before functions: what @SYM
// means. Errors are as those of Lookup; a thread-local variable is not found, with the
// reason, because it has no single address.
func (im *Image) Data(name string) (Sym, error) {
	t := im.table()
	im.dataOnce.Do(im.indexData)
	found := im.objects(name)
	if len(found) == 1 {
		o := found[0]
		if o.tls {
			return Sym{}, &NotFoundError{Name: name, Where: im.elf.path, Reason: "it is thread-local, each thread has its own at another address"}
		}
		return Sym{Name: o.name, Addr: o.addr, Size: o.size, File: o.file}, nil
	}
	if len(found) > 1 {
		e := &AmbiguousError{Name: name}
		for _, o := range found {
			e.Candidates = append(e.Candidates, Candidate{o.name, o.file, im.ModName(), o.addr, o.size})
		}
		return Sym{}, e
	}
	fns, err := im.Lookup(name)
	if err != nil {
		if nf := (*NotFoundError)(nil); errors.As(err, &nf) && len(nf.Similar) == 0 {
			nf.Similar = nearest(name, func(yield func(string)) {
				for i := range t.objs {
					yield(t.objs[i].name)
				}
			})
		}
		return Sym{}, err
	}
	return Sym{Name: fns[0].Name, Addr: fns[0].Addr, Size: fns[0].Size, File: fns[0].File, IsFunc: true}, nil
}

func (im *Image) indexData() {
	im.data = make(map[string][]int32, len(im.tab.objs))
	for i := range im.tab.objs {
		n := im.tab.objs[i].name
		im.data[n] = append(im.data[n], int32(i))
	}
}

// objects gives the objects of a name, one per address, hidden versions only if there is
// no other; a mangled variable answers to its demangled name too.
func (im *Image) objects(name string) []object {
	t := im.tab
	idx := im.data[name]
	if len(idx) == 0 {
		words := tokens(name)
		want := squeeze(name)
		for i := range t.objs {
			if n := t.objs[i].name; mangling(n) != LangC && holdsAll(n, words) && demanglesTo(n, want) {
				idx = append(idx, int32(i))
			}
		}
	}
	var out []object
	visible := slices.ContainsFunc(idx, func(i int32) bool { return !t.objs[i].hidden })
	for _, i := range idx {
		if o := t.objs[i]; !(visible && o.hidden) {
			out = append(out, o)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].addr < out[j].addr })
	return slices.CompactFunc(out, func(a, b object) bool { return a.addr == b.addr })
}

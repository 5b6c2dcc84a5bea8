package kernel

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"kprobes.dev/kprobes/internal/btf"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
)

// Limits on what a module may say of itself. The largest modules (amdgpu, i915) have about
// 60,000 symbols and 20 MB.
const (
	maxModules       = 4096
	maxModuleSize    = 1 << 30
	maxModuleSymbols = 1 << 20
	maxModuleTable   = 64 << 20
)

// Module is a module that is loaded and ready (MODULE_STATE_LIVE).
type Module struct {
	Name   string
	Struct uint64           // address of its struct module
	Text   interval.Range   // its code; init code has been freed
	Data   []interval.Range // its other memory
	// Symbols are sorted by address; of aliases the first is the one that the kernel prints.
	// A type in upper case is a global symbol's; /proc/kallsyms has an exported one's so.
	Symbols []Symbol

	kernel *Kernel
	lay    moduleLayout

	typesOnce sync.Once
	types     *btf.Spec
	typesErr  error
}

// moduleLayout is where struct module has its members.
type moduleLayout struct {
	state, list, name, kallsyms  uint64
	base, size, textSize         uint64 // core_layout, until 6.3
	mem, memSize, memCount       uint64 // mem[], since 6.4
	memBase, memLen, memInitText uint64
	symtab, numSymtab            uint64
	strtab, typetab              uint64
	extable, numExtable          uint64
	jumps, numJumps              uint64
	statics, numStatics          uint64
	bugs, numBugs                uint64
	blacklist, numBlacklist      uint64
	kprobesText, kprobesTextLen  uint64
	noinstrText, noinstrTextLen  uint64
}

// moduleLayout finds the members by the kernel's types.
func (k *Kernel) moduleLayout() (l moduleLayout, err error) {
	t, err := k.Types()
	if err != nil {
		return l, err
	}
	m := &offsets{t: t, typ: "module"}
	l.state, l.list, l.name, l.kallsyms = m.of("state"), m.of("list"), m.of("name"), m.of("kallsyms")
	if _, size, err := t.Offset("module", "mem"); err == nil {
		mm := &offsets{t: t, typ: "module_memory"}
		l.mem, l.memBase, l.memLen = m.of("mem"), mm.of("base"), mm.of("size")
		n, err := t.Size("module_memory")
		if m.err = cmp.Or(m.err, mm.err, err); m.err == nil {
			l.memSize, l.memCount = uint64(n), uint64(size/max(n, 1))
		}
		if l.memInitText, err = t.Enum("mod_mem_type", "MOD_INIT_TEXT"); err != nil {
			m.err = cmp.Or(m.err, err)
		}
	} else {
		l.base, l.size, l.textSize = m.of("core_layout.base"), m.of("core_layout.size"), m.of("core_layout.text_size")
	}
	s := &offsets{t: t, typ: "mod_kallsyms"}
	l.symtab, l.numSymtab, l.strtab, l.typetab = s.of("symtab"), s.of("num_symtab"), s.of("strtab"), s.of("typetab")
	l.extable, l.numExtable = m.of("extable"), m.of("num_exentries")
	l.bugs, l.numBugs = m.of("bug_table"), m.of("num_bugs")
	l.optional(m)
	return l, cmp.Or(m.err, s.err)
}

// optional finds members that depend on the kernel's configuration; 0 where there is none.
func (l *moduleLayout) optional(m *offsets) {
	o := &offsets{t: m.t, typ: "module"}
	l.jumps, l.numJumps = o.of("jump_entries"), o.of("num_jump_entries")
	l.statics, l.numStatics = o.of("static_call_sites"), o.of("num_static_call_sites")
	l.blacklist, l.numBlacklist = o.of("kprobe_blacklist"), o.of("num_kprobe_blacklist")
	l.kprobesText, l.kprobesTextLen = o.of("kprobes_text_start"), o.of("kprobes_text_size")
	l.noinstrText, l.noinstrTextLen = o.of("noinstr_text_start"), o.of("noinstr_text_size")
}

// Modules gives the modules that are loaded and ready, in the order of /proc/modules. It
// reads their symbols. A module that comes or goes while its memory is read is left out.
// Errors: no types (ENOENT), or a list that is damaged or was caught changing (EAGAIN).
func (k *Kernel) Modules() ([]*Module, error) {
	l, err := k.moduleLayout()
	if err != nil {
		return nil, fmt.Errorf("modules: %w", err)
	}
	var mods []*Module
	err = k.eachModule(&l, func(at uint64) {
		if m, err := k.module(&l, at); err == nil {
			mods = append(mods, m)
		}
	})
	return mods, err
}

// eachModule walks the list of modules that are ready.
func (k *Kernel) eachModule(l *moduleLayout, f func(at uint64)) error {
	head, ok := k.Addr("modules")
	if !ok {
		return nil // CONFIG_MODULES=n
	}
	seen := map[uint64]bool{}
	at, err := k.u64(head)
	for err == nil && at != head {
		if seen[at] || len(seen) == maxModules {
			return errno.Errorf(syscall.EAGAIN, "the list of modules has a loop, or more than %d entries: it is damaged or was caught changing", maxModules)
		}
		seen[at] = true
		mod := at - l.list
		var state uint32
		if state, err = k.u32(mod + l.state); err != nil {
			break
		}
		if state == 0 { // MODULE_STATE_LIVE (include/linux/module.h)
			f(mod)
		}
		at, err = k.u64(at)
	}
	if err != nil {
		return errno.Errorf(syscall.EAGAIN, "the list of modules is damaged or was caught changing: %w", err)
	}
	return nil
}

// ModulesVersion gives a number that is another when the list of ready modules is another.
// It takes microseconds.
func (k *Kernel) ModulesVersion() (uint64, error) {
	l, err := k.moduleLayout()
	if err != nil {
		return 0, err
	}
	const offset, prime = 0xcbf29ce484222325, 0x100000001b3 // FNV-1a
	sum := uint64(offset)
	mix := func(w uint64) {
		for range 8 {
			sum = (sum ^ w&0xff) * prime
			w >>= 8
		}
	}
	err = k.eachModule(&l, func(at uint64) {
		mix(at)
		var name [16]byte
		if k.Read(at+l.name, name[:]) == nil {
			mix(binary.LittleEndian.Uint64(name[:]))
			mix(binary.LittleEndian.Uint64(name[8:]))
		}
		r, _, _ := k.moduleMemory(&l, at)
		mix(r.Start)
		mix(r.End)
	})
	return sum, err
}

// module reads one module.
func (k *Kernel) module(l *moduleLayout, at uint64) (*Module, error) {
	m := &Module{Struct: at, kernel: k, lay: *l}
	var err error
	if m.Name, err = k.cstring(at+l.name, 64-8); err != nil || m.Name == "" {
		return nil, errno.Errorf(syscall.EAGAIN, "module at 0x%x: no name", at)
	}
	if m.Text, m.Data, err = k.moduleMemory(l, at); err != nil {
		return nil, fmt.Errorf("module %s: %w", m.Name, err)
	}
	if m.Symbols, err = k.moduleSymbols(l, at); err != nil {
		return nil, fmt.Errorf("module %s: %w", m.Name, err)
	}
	return m, nil
}

// moduleMemory gives where a module's code and its other memory lie.
func (k *Kernel) moduleMemory(l *moduleLayout, at uint64) (text interval.Range, data []interval.Range, err error) {
	if l.memCount == 0 {
		base, err1 := k.u64(at + l.base)
		size, err2 := k.u32(at + l.size)
		code, err3 := k.u32(at + l.textSize)
		if err := cmp.Or(err1, err2, err3); err != nil {
			return text, nil, err
		}
		if err := sane(base, uint64(size)); err != nil || code > size {
			return text, nil, cmp.Or(err, errno.Errorf(syscall.EAGAIN, "its code is larger than itself"))
		}
		text = interval.Range{Start: base, End: base + uint64(code)}
		return text, []interval.Range{{Start: text.End, End: base + uint64(size)}}, nil
	}
	for i := range min(l.memCount, l.memInitText) {
		mm := at + l.mem + i*l.memSize
		base, err1 := k.u64(mm + l.memBase)
		size, err2 := k.u32(mm + l.memLen)
		if err := cmp.Or(err1, err2); err != nil {
			return text, nil, err
		}
		if size == 0 {
			continue
		}
		if err := sane(base, uint64(size)); err != nil {
			return text, nil, err
		}
		if r := (interval.Range{Start: base, End: base + uint64(size)}); i == 0 { // MOD_TEXT
			text = r
		} else {
			data = append(data, r)
		}
	}
	return text, data, nil
}

// sane refuses impossible places of modules.
func sane(base, size uint64) error {
	if base < 1<<63 || size > maxModuleSize || base+size < base {
		return errno.Errorf(syscall.EAGAIN, "its memory is said to be 0x%x+0x%x", base, size)
	}
	return nil
}

// moduleSymbols reads a module's part of kallsyms (struct mod_kallsyms).
func (k *Kernel) moduleSymbols(l *moduleLayout, at uint64) ([]Symbol, error) {
	ks, err := k.u64(at + l.kallsyms)
	if err != nil {
		return nil, err
	}
	symtab, err1 := k.u64(ks + l.symtab)
	num, err2 := k.u32(ks + l.numSymtab)
	strtab, err3 := k.u64(ks + l.strtab)
	typetab, err4 := k.u64(ks + l.typetab)
	if err := cmp.Or(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	const entry = 24 // Elf64_Sym
	syms, err := k.bytes(symtab, uint64(num)*entry, maxModuleSymbols*entry, "symbols")
	if err != nil {
		return nil, err
	}
	types, err := k.bytes(typetab, uint64(num), maxModuleSymbols, "types of symbols")
	if err != nil {
		return nil, err
	}
	names := nameReader{k: k, base: strtab}
	out := make([]Symbol, 0, num)
	for i := range int(num) {
		s := syms[i*entry:]
		if shndx := le16(s, 6); i == 0 || shndx == 0 {
			continue
		}
		name, err := names.at(le32(s, 0))
		if err != nil {
			return nil, err
		}
		typ := types[i]
		if s[4]>>4 != 0 && typ >= 'a' && typ <= 'z' { // st_info: not STB_LOCAL
			typ -= 'a' - 'A'
		}
		if name != "" {
			out = append(out, Symbol{name, le64(s, 8), typ})
		}
	}
	slices.SortStableFunc(out, func(a, b Symbol) int { return cmp.Compare(a.Addr, b.Addr) })
	return out, nil
}

// nameReader reads names from a string table of unknown length, page by page.
type nameReader struct {
	k     *Kernel
	base  uint64
	pages map[uint64][]byte
}

func (r *nameReader) at(off uint32) (string, error) {
	if off > maxModuleTable {
		return "", errno.Errorf(syscall.EAGAIN, "a symbol's name is said to be at 0x%x of its table", off)
	}
	var name []byte
	for va := r.base + uint64(off); len(name) < maxName; {
		page, err := r.page(va &^ (pageSize - 1))
		if err != nil {
			return "", err
		}
		rest := page[va%pageSize:]
		if i := slices.Index(rest, 0); i >= 0 {
			return string(append(name, rest[:i]...)), nil
		}
		name = append(name, rest...)
		va += uint64(len(rest))
	}
	return "", errno.Errorf(syscall.EAGAIN, "a symbol's name has no end")
}

func (r *nameReader) page(va uint64) ([]byte, error) {
	if b, ok := r.pages[va]; ok {
		return b, nil
	}
	b := make([]byte, pageSize)
	if err := r.k.Read(va, b); err != nil {
		return nil, err
	}
	if r.pages == nil {
		r.pages = map[uint64][]byte{}
	}
	r.pages[va] = b
	return b, nil
}

// SymbolAt gives the module's symbol that holds an address, and the offset in it.
func (m *Module) SymbolAt(va uint64) (s Symbol, off uint64, ok bool) {
	if !m.Text.Contains(va) && !slices.ContainsFunc(m.Data, func(r interval.Range) bool { return r.Contains(va) }) {
		return Symbol{}, 0, false
	}
	i, ok := symbolAt(m.Symbols, va)
	if !ok {
		return Symbol{}, 0, false
	}
	return m.Symbols[i], va - m.Symbols[i].Addr, true
}

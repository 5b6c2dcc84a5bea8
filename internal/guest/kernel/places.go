package kernel

import (
	"cmp"
	"debug/elf"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
)

// Kept is a run of bytes that must stay as and where it is, and why. Of an instruction whose
// length is not known it is the first byte.
type Kept struct {
	interval.Range
	Why string
}

// Places are the places in the code of the kernel and its modules that nobody may patch, or
// that others patch. They are as of one moment; Kernel.Places gives them anew when modules
// have come or gone. It is safe for concurrent use.
type Places struct {
	version uint64
	barred  spans
	kept    spans
	entries []uint64 // sorted
	ftrace  []uint64 // sorted
	records bool     // ftrace holds what the kernel's own records tell
	kernel  *Kernel
}

// spans are ranges sorted by start, each with the greatest end of those up to it.
type spans []span

type span struct {
	Kept
	reach uint64
}

func newSpans(all []Kept) spans {
	slices.SortStableFunc(all, func(a, b Kept) int { return cmp.Compare(a.Start, b.Start) })
	out := make(spans, len(all))
	reach := uint64(0)
	for i, r := range all {
		reach = max(reach, r.End)
		out[i] = span{r, reach}
	}
	return out
}

// overlapping calls f for each that has a byte in [lo, hi), until it gives false.
func (s spans) overlapping(lo, hi uint64, f func(Kept) bool) {
	i, _ := slices.BinarySearchFunc(s, hi, func(e span, a uint64) int { return cmp.Compare(e.Start, a) })
	for i--; i >= 0 && s[i].reach > lo; i-- {
		if s[i].End > lo && !f(s[i].Kept) {
			return
		}
	}
}

// Places reads the kernel's tables, or gives what it gave before if no module has come or
// gone since. It takes some tens of milliseconds the first time. The error is that of a table
// that can not be read: nothing must be patched then.
func (k *Kernel) Places() (*Places, error) {
	version, err := k.ModulesVersion()
	if err != nil {
		return nil, fmt.Errorf("places that may not be patched: %w", err)
	}
	k.placesMu.Lock()
	defer k.placesMu.Unlock()
	if k.places != nil && k.places.version == version {
		return k.places, nil
	}
	p, err := k.readPlaces()
	if err != nil {
		return nil, fmt.Errorf("places that may not be patched: %w", err)
	}
	p.version = version
	k.places = p
	return p, nil
}

func (k *Kernel) readPlaces() (*Places, error) {
	mods, err := k.Modules()
	if err != nil {
		return nil, err
	}
	p := &Places{kernel: k}
	barred, err := k.blacklist()
	if err != nil {
		return nil, err
	}
	barred = append(barred, k.sections()...)
	barred = append(barred, special(k.syms)...)
	for _, m := range mods {
		barred = append(barred, special(m.Symbols)...)
		barred = append(barred, m.sections()...)
	}
	listed := newSpans(slices.Clone(barred))
	barred = append(barred, k.inherited(listed, k.syms)...)
	for _, m := range mods {
		barred = append(barred, k.inherited(listed, m.Symbols)...)
	}
	p.barred = newSpans(barred)
	if p.ftrace, p.records, err = k.ftraceSites(); err != nil {
		return nil, err
	}
	r := tableReader{k: k}
	r.ownTables()
	for _, m := range mods {
		r.moduleTables(m)
	}
	r.smpLocks()
	if r.err != nil {
		return nil, r.err
	}
	for _, ip := range p.ftrace {
		r.keep(ip, 5, "the kernel's function tracer patches it")
	}
	p.kept = newSpans(r.kept)
	slices.Sort(r.entries)
	p.entries = slices.Compact(r.entries)
	return p, nil
}

// FuncDenied says why no probe may stand in [lo, hi), "" if nothing speaks against it: what
// register_kprobe of Linux 6.18 refuses by address.
func (p *Places) FuncDenied(lo, hi uint64) (why string) {
	p.barred.overlapping(lo, hi, func(r Kept) bool {
		why = r.Why
		return false
	})
	return why
}

// Kept lists the bytes in [lo, hi) that must stay as and where they are, by address.
func (p *Places) Kept(lo, hi uint64) []Kept {
	var out []Kept
	p.kept.overlapping(lo, hi, func(r Kept) bool {
		out = append(out, r)
		return true
	})
	slices.Reverse(out)
	return out
}

// Entries lists the addresses in [lo, hi) that are jumped to from elsewhere: targets of jump
// labels, fix-ups of exceptions.
func (p *Places) Entries(lo, hi uint64) []uint64 {
	i, _ := slices.BinarySearch(p.entries, lo)
	j, _ := slices.BinarySearch(p.entries, hi)
	return slices.Clone(p.entries[i:max(i, j)])
}

// landings are what a function begins with in a kernel whose indirect jumps are tracked
// (CONFIG_X86_KERNEL_IBT): endbr64, or what the kernel has put in its place where no indirect jump
// leads (apply_seal_endbr in arch/x86/kernel/alternative.c): gen_endbr_poison of 5.18 and of 6.15.
var landings = []string{"\xf3\x0f\x1e\xfa", "\x66\x0f\x1f\x00", "\x0f\x1f\x40\xd6"}

// FtraceSite says whether the function tracer patches a function's entry, and how many bytes,
// behind a landing instruction if there is one. It is taken from the kernel's own records; where
// the kernel has none (no CONFIG_DYNAMIC_FTRACE) from the bytes.
func (p *Places) FtraceSite(fn uint64) (n int, ok bool) {
	const site, landing = 5, 4
	at := fn
	var b [site]byte
	if p.kernel.Read(fn, b[:landing]) == nil && slices.Contains(landings, string(b[:landing])) {
		at += landing
	}
	if _, ok := slices.BinarySearch(p.ftrace, at); ok {
		return site, true
	}
	if p.records || p.kernel.Read(at, b[:]) != nil {
		return 0, false
	}
	if string(b[:]) == "\x0f\x1f\x44\x00\x00" {
		return site, true
	}
	return 0, false
}

// Traced says whether the kernel's function tracer knows a function of some bytes, be its site at the
// entry or not (within_notrace_func in kernel/trace/trace_kprobe.c); true where the kernel does not
// tell.
func (p *Places) Traced(fn, size uint64) bool {
	if !p.records {
		return true
	}
	i, _ := slices.BinarySearch(p.ftrace, fn)
	return i < len(p.ftrace) && p.ftrace[i]-fn < size
}

// FtraceSites gives the addresses that the function tracer patches, sorted.
func (p *Places) FtraceSites() []uint64 { return slices.Clone(p.ftrace) }

// blacklist reads the kernel's own list of what kprobes may not be on (kernel/kprobes.c).
func (k *Kernel) blacklist() ([]Kept, error) {
	head, ok := k.Addr("kprobe_blacklist")
	if !ok {
		return nil, nil // CONFIG_KPROBES=n: the sections and names below are all there is
	}
	t, err := k.Types()
	if err != nil {
		return nil, err
	}
	o := &offsets{t: t, typ: "kprobe_blacklist_entry"}
	list, start, end := o.of("list"), o.of("start_addr"), o.of("end_addr")
	if o.err != nil {
		return nil, o.err
	}
	const most = 1 << 16
	var out []Kept
	at, err := k.u64(head)
	for n := 0; err == nil && at != head; n++ {
		if n == most {
			return nil, errno.Errorf(syscall.EAGAIN, "the kernel's list kprobe_blacklist has more than %d entries: it is damaged or was caught changing", most)
		}
		e := at - list
		lo, err1 := k.u64(e + start)
		hi, err2 := k.u64(e + end)
		if err = cmp.Or(err1, err2); err == nil && lo < hi {
			out = append(out, Kept{interval.Range{Start: lo, End: hi}, "it is on the kernel's own blacklist for kprobes (NOKPROBE_SYMBOL)"})
			at, err = k.u64(at)
		}
	}
	if err != nil {
		return nil, errno.Errorf(syscall.EAGAIN, "the kernel's list kprobe_blacklist is damaged or was caught changing: %w", err)
	}
	return out, nil
}

// sections gives the kernel's sections in which no probe may stand.
func (k *Kernel) sections() []Kept {
	var out []Kept
	for _, s := range []struct{ start, end, why string }{
		{"__kprobes_text_start", "__kprobes_text_end", "it is code of kprobes themselves (.kprobes.text)"},
		{"__noinstr_text_start", "__noinstr_text_end", "it must not be instrumented (.noinstr.text)"},
		{"__entry_text_start", "__entry_text_end", "it is entry code, which runs before the kernel's state is set up (.entry.text)"},
		{"__cpuidle_text_start", "__cpuidle_text_end", "it is idle code, which RCU does not watch (.cpuidle.text)"},
		{"__indirect_thunk_start", "__indirect_thunk_end", "it is a thunk that stands in for indirect jumps and returns"},
	} {
		if r, ok := k.between(s.start, s.end); ok {
			out = append(out, Kept{r, s.why})
		}
	}
	return out
}

// sections gives the module's, which the kernel enters into its own list only where it has
// kprobes.
func (m *Module) sections() []Kept {
	var out []Kept
	for _, s := range []struct {
		start, size uint64
		why         string
	}{
		{m.lay.kprobesText, m.lay.kprobesTextLen, "it is code that kprobes use (.kprobes.text)"},
		{m.lay.noinstrText, m.lay.noinstrTextLen, "it must not be instrumented (.noinstr.text)"},
	} {
		if s.start == 0 || s.size == 0 {
			continue
		}
		lo, err1 := m.kernel.u64(m.Struct + s.start)
		n, err2 := m.kernel.u32(m.Struct + s.size)
		if cmp.Or(err1, err2) == nil && n > 0 && m.Text.Contains(lo) {
			out = append(out, Kept{interval.Range{Start: lo, End: lo + uint64(n)}, s.why})
		}
	}
	return out
}

// special gives symbols that no probe may stand on by their names.
func special(syms []Symbol) []Kept {
	var out []Kept
	for i := range syms {
		s := &syms[i]
		why := ""
		switch {
		case strings.HasPrefix(s.Name, "__SCT__"):
			why = "it is the trampoline of a static call, which the kernel patches"
		case s.preamble():
			why = "it is what stands before a function, not code that is run (__pfx_, __cfi_)"
		case s.Name == "__x86_return_thunk" || strings.HasPrefix(s.Name, "__x86_indirect_"):
			why = "it is a thunk that stands in for indirect jumps and returns"
		default:
			continue
		}
		if hi := end(syms, i); hi > s.Addr {
			out = append(out, Kept{interval.Range{Start: s.Addr, End: hi}, why})
		}
	}
	return out
}

// inherited bars what the compiler made of a barred function: name.cold, name.isra.0.
func (k *Kernel) inherited(listed spans, syms []Symbol) []Kept {
	var out []Kept
	for i := range syms {
		s := &syms[i]
		base, _, suffixed := strings.Cut(s.Name, ".")
		if !suffixed || base == "" || s.elfType([]interval.Range{{Start: s.Addr, End: s.Addr + 1}}) != elf.STT_FUNC {
			continue
		}
		va, ok := k.Addr(base)
		if !ok {
			continue
		}
		listed.overlapping(va, va+1, func(r Kept) bool {
			out = append(out, Kept{interval.Range{Start: s.Addr, End: end(syms, i)}, fmt.Sprintf("it belongs to %s, and %s", base, strings.TrimPrefix(r.Why, "it "))})
			return false
		})
	}
	return out
}

package kernel

import (
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/interval"
)

// Banner gives the kernel's linux_banner, as the first line of its log and /proc/version.
func (k *Kernel) Banner() string { return k.banner }

// Release gives what uname -r prints: 6.1.0-56-cloud-amd64.
func (k *Kernel) Release() string {
	release, _, _ := strings.Cut(strings.TrimPrefix(k.banner, bannerStart), " ")
	return release
}

// Layout names the kernel version that introduced the layout of the kallsyms tables.
func (k *Kernel) Layout() string { return k.layout }

// Base gives the addresses of _text, virtual and physical.
func (k *Kernel) Base() (va, pa uint64) { return k.image.Start, k.phys }

// Symbols gives the kernel's own symbols in the order of their addresses, aliases in the
// order of kallsyms: the first of them is the one that the kernel prints. The slice is
// shared and must not be written.
func (k *Kernel) Symbols() []Symbol { return k.syms }

// Addr gives the address of the first symbol of a name, as kallsyms_lookup_name does for the
// kernel's own.
func (k *Kernel) Addr(name string) (uint64, bool) {
	k.namesOnce.Do(func() {
		k.names = make(map[string]int32, len(k.syms))
		for i := len(k.syms) - 1; i >= 0; i-- {
			k.names[k.syms[i].Name] = int32(i)
		}
	})
	i, ok := k.names[name]
	if !ok {
		return 0, false
	}
	return k.syms[i].Addr, true
}

// between gives the range between two symbols; ok is false if either is missing or the range
// is empty.
func (k *Kernel) between(start, end string) (interval.Range, bool) {
	lo, ok1 := k.Addr(start)
	hi, ok2 := k.Addr(end)
	return interval.Range{Start: lo, End: hi}, ok1 && ok2 && lo < hi
}

// Text gives the kernel's own code: _stext to _etext. Init code is not in it: its memory was
// freed when the kernel was up.
func (k *Kernel) Text() []interval.Range {
	if r, ok := k.between("_stext", "_etext"); ok {
		return []interval.Range{r}
	}
	return nil
}

// InText says whether an address is in the kernel's own code.
func (k *Kernel) InText(va uint64) bool {
	return slices.ContainsFunc(k.Text(), func(r interval.Range) bool { return r.Contains(va) })
}

// end gives where a symbol ends: at the next one with a higher address, as in
// kallsyms_lookup_size_offset.
func end(syms []Symbol, i int) uint64 {
	for j := i + 1; j < len(syms); j++ {
		if syms[j].Addr > syms[i].Addr {
			return syms[j].Addr
		}
	}
	return syms[i].Addr
}

// symbolAt gives the symbol that holds an address, as kallsyms_lookup does: of aliases the
// first.
func symbolAt(syms []Symbol, va uint64) (i int, ok bool) {
	i, exact := slices.BinarySearchFunc(syms, va, func(s Symbol, a uint64) int {
		switch {
		case s.Addr < a:
			return -1
		case s.Addr > a:
			return 1
		}
		return 0
	})
	if !exact {
		i--
	}
	if i < 0 {
		return 0, false
	}
	for i > 0 && syms[i-1].Addr == syms[i].Addr {
		i--
	}
	return i, true
}

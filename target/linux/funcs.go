package linux

import (
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/internal/interval"
)

// Func is a function of the kernel that can be probed.
type Func struct {
	Name   string
	Module string // "" for the kernel itself
	Addr   uint64
	Size   uint64 // bytes up to the next symbol; 0 if that is not known
}

// Funcs lists the functions that can be probed and match a pattern (of path.Match, with
// [!…] too), by address: the functions of /proc/kallsyms that ftrace can hook, which are
// those that a kernel takes probes on (others are notrace), without the kernel's own
// blacklist. A kernel without ftrace takes probes on all others.
func Funcs(glob string) ([]Func, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	syms, err := loadSymbols()
	if err != nil {
		return nil, err
	}
	if len(syms) == 0 {
		return nil, errors.New("/proc/kallsyms shows no addresses: run as root, with kernel.kptr_restrict below 2")
	}
	traced, err := read(dir, "available_filter_functions")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var barred []interval.Range
	if list, err := debugfs("blacklist"); err == nil {
		text, err := read(list)
		if err != nil {
			return nil, err
		}
		barred = parseBlacklist(text)
	}
	return probeable(syms, parseTraced(traced), barred, glob)
}

// probeable picks the functions; traced is nil where the kernel does not tell.
func probeable(syms symbols, traced map[string]bool, barred []interval.Range, glob string) ([]Func, error) {
	var out []Func
	hooked := addresses(syms, traced)
	for i := range syms {
		k := &syms[i]
		ok, err := match(glob, k.name)
		if err != nil {
			return nil, err
		}
		if !ok || !k.code() || traced != nil && !hooked[k.addr] || interval.AnyContains(barred, k.addr) {
			continue
		}
		out = append(out, Func{Name: k.name, Module: k.module, Addr: k.addr, Size: syms.size(i)})
	}
	return out, nil
}

// addresses gives where the functions lie that ftrace names: of several names at one place
// it lists one.
func addresses(syms symbols, traced map[string]bool) map[uint64]bool {
	out := make(map[uint64]bool, len(traced))
	for i := range syms {
		if traced[syms[i].key()] {
			out[syms[i].addr] = true
		}
	}
	return out
}

// match is path.Match that knows [!…] too.
func match(glob, name string) (bool, error) {
	return path.Match(strings.ReplaceAll(glob, "[!", "[^"), name)
}

// key is the symbol as available_filter_functions writes it.
func (k *ksym) key() string {
	if k.module == "" {
		return k.name
	}
	return k.name + " [" + k.module + "]"
}

// parseTraced reads available_filter_functions; nil if it is empty.
func parseTraced(text string) map[string]bool {
	if text == "" {
		return nil
	}
	out := map[string]bool{}
	for line := range strings.Lines(text) {
		out[strings.TrimSpace(line)] = true
	}
	return out
}

// parseBlacklist reads lines `0xSTART-0xEND\tNAME`.
func parseBlacklist(text string) []interval.Range {
	var out []interval.Range
	for line := range strings.Lines(text) {
		addrs, _, _ := strings.Cut(line, "\t")
		from, to, ok := strings.Cut(addrs, "-")
		start, err := strconv.ParseUint(from, 0, 64)
		end, err2 := strconv.ParseUint(to, 0, 64)
		if ok && err == nil && err2 == nil {
			out = append(out, interval.Range{Start: start, End: end})
		}
	}
	return out
}

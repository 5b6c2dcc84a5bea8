package linux

import (
	"bufio"
	"cmp"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/internal/fetch"
)

// symbols are the kernel's, sorted by address.
type symbols []ksym

type ksym struct {
	addr   uint64
	kind   byte // as nm has it: t and T, w and W are code
	name   string
	module string
}

// loadSymbols reads /proc/kallsyms. Whoever may not see addresses gets none.
func loadSymbols() (symbols, error) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseSymbols(f)
}

// kernelHalf is where the kernel's addresses begin; below are offsets into a CPU's own data.
const kernelHalf = 1 << 63

// parseSymbols reads lines `ADDRESS KIND NAME[\t[MODULE]]`.
func parseSymbols(r io.Reader) (symbols, error) {
	var out symbols
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) < 3 || len(f[1]) != 1 {
			continue
		}
		addr, err := strconv.ParseUint(f[0], 16, 64)
		if err != nil || addr < kernelHalf {
			continue
		}
		s := ksym{addr: addr, kind: f[1][0], name: f[2]}
		if len(f) > 3 {
			s.module = strings.Trim(f[3], "[]")
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b ksym) int { return cmp.Compare(a.addr, b.addr) })
	return out, sc.Err()
}

// at finds the symbol that holds an address: of several at one place the first, up to the
// next one of the same module, as the kernel's own lookup does (kernel/kallsyms.c).
func (s symbols) at(addr uint64) (fetch.Sym, bool) {
	i, exact := slices.BinarySearchFunc(s, addr, func(k ksym, a uint64) int { return cmp.Compare(k.addr, a) })
	if !exact {
		if i == 0 {
			return fetch.Sym{}, false
		}
		i--
	}
	for i > 0 && s[i-1].addr == s[i].addr {
		i--
	}
	size := s.size(i)
	off := addr - s[i].addr
	if off != 0 && off >= size {
		return fetch.Sym{}, false
	}
	return fetch.Sym{Name: s[i].name, Module: s[i].module, Off: off, Size: size}, true
}

// size is the distance to the next symbol of the same module; 0 if there is none.
func (s symbols) size(i int) uint64 {
	for _, k := range s[i+1:] {
		if k.addr != s[i].addr {
			if k.module != s[i].module {
				break
			}
			return k.addr - s[i].addr
		}
	}
	return 0
}

// code says whether a symbol is a function's.
func (k *ksym) code() bool { return strings.IndexByte("tTwW", k.kind) >= 0 }

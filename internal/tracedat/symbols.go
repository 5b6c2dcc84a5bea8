package tracedat

import (
	"cmp"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// parseSymbols reads symbols, of which the file's end marks tell the sizes.
func (f *File) parseSymbols(text string) {
	for line := range strings.Lines(text) {
		w := strings.Fields(line)
		if len(w) < 3 {
			continue
		}
		addr, err := strconv.ParseUint(w[0], 16, 64)
		if err != nil {
			continue
		}
		if w[1] == "A" || w[1] == "a" {
			if n := len(f.symbols); n > 0 && f.symbols[n-1].Name == w[2] && addr > f.symbols[n-1].Addr {
				f.symbols[n-1].Size = addr - f.symbols[n-1].Addr
			}
			continue
		}
		s := Symbol{Addr: addr, Name: w[2]}
		if len(w) > 3 {
			s.Module = strings.Trim(w[3], "[]")
		}
		f.symbols = append(f.symbols, s)
	}
	slices.SortStableFunc(f.symbols, func(a, b Symbol) int { return cmp.Compare(a.Addr, b.Addr) })
}

// symbol finds the last symbol that does not lie behind an address; nil: there is none. Of the last
// symbol no other address than its first is known, as with trace-cmd.
func (f *File) symbol(addr uint64) *Symbol {
	i := sort.Search(len(f.symbols), func(i int) bool { return f.symbols[i].Addr > addr })
	if i == 0 || i == len(f.symbols) && f.symbols[i-1].Addr != addr {
		return nil
	}
	return &f.symbols[i-1]
}

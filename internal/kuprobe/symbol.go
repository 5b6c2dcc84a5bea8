//go:build linux

package kuprobe

import (
	"debug/elf"
	"fmt"
)

// Find returns the place of symbol+plus in a program's file: a lookup by the standard
// library's ELF reader, independent of package symbol on purpose.
func Find(path, symbol string, plus uint64) (Place, error) {
	f, err := elf.Open(path)
	if err != nil {
		return Place{}, fmt.Errorf("uprobe: %w", err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		return Place{}, fmt.Errorf("uprobe on %s: %w", path, err)
	}
	for _, s := range syms {
		if s.Name != symbol || s.Section == elf.SHN_UNDEF || s.Value == 0 {
			continue
		}
		for _, p := range f.Progs {
			if addr := s.Value + plus; p.Type == elf.PT_LOAD && addr-p.Vaddr < p.Filesz {
				return Place{Path: path, Offset: addr - p.Vaddr + p.Off}, nil
			}
		}
	}
	return Place{}, fmt.Errorf("uprobe on %s: no symbol %s", path, symbol)
}

package main

import (
	"fmt"
	"io"

	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/target"
)

// listLine is a line of kprobes/list (report_probe of kernel/kprobes.c, Linux 6.18): address, kind (k or r),
// symbol+offset, module or a space, state. [OPTIMIZED] means that a hit takes no trap.
func listLine(n hit.Namer, addr uint64, kind byte, state string) string {
	sym, ok := n.Symbol(addr)
	place := fmt.Sprintf("0x%x", addr)
	if ok {
		place = fmt.Sprintf("%s+0x%x", clean(sym.Name), sym.Off)
	}
	module := clean(sym.Module)
	if module == "" {
		module = " "
	}
	return placeLine(addr, kind, place, module, state)
}

func placeLine(addr uint64, kind byte, place, module, state string) string {
	return fmt.Sprintf("%x  %c  %s  %s %s", addr, kind, place, module, state)
}

// writePoints writes the lines of a site's probes.
func writePoints(w io.Writer, points []target.Point, line func(at uint64, kind byte) string) {
	for _, p := range points {
		for range p.Probes {
			fmt.Fprintln(w, line(p.Addr, 'k'))
		}
		for range p.Returns {
			fmt.Fprintln(w, line(p.Addr, 'r'))
		}
	}
}

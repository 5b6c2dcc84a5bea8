package codescan

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// Implementation finds the function that an IFUNC stands for in the target: what its
// resolver chose stands in the slots of those who call it.
func (s *Scanner) Implementation(r symbol.Resolved) (symbol.Resolved, error) {
	if r.Func == nil || !r.Func.IFunc || r.Offset != 0 {
		return r, nil
	}
	for _, slot := range s.slots(r) {
		var b [8]byte
		if s.t.Read(slot, b[:]) != nil {
			continue
		}
		addr := binary.LittleEndian.Uint64(b[:])
		if addr == r.Addr || s.t.Space().ModuleAt(addr) != r.Module {
			continue // not chosen yet: a stub of the PLT
		}
		if fn, off, ok := r.Module.Image.At(r.Module.Linktime(addr)); ok && off == 0 {
			return symbol.Resolved{Module: r.Module, Func: fn, Vaddr: fn.Addr, Addr: addr}, nil
		}
	}
	return r, errno.Errorf(unix.EAGAIN, "%s is an IFUNC and no caller in the process has it resolved yet: probe one of its implementations by name", r.Func.Pretty())
}

// slots lists where the address of an IFUNC's implementation may stand.
func (s *Scanner) slots(r symbol.Resolved) []uint64 {
	var out []uint64
	for _, rel := range r.Module.Image.IRelatives() {
		if rel.Resolver == r.Func.Addr {
			out = append(out, r.Module.Runtime(rel.Slot))
		}
	}
	for _, m := range s.t.Space().Modules() {
		for _, name := range append([]string{r.Func.Name}, r.Func.Aliases...) {
			for _, slot := range m.Image.Slots(name) {
				out = append(out, m.Runtime(slot))
			}
		}
	}
	return out
}

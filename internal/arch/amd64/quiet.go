package amd64

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// A program may take on a seccomp filter at any time, and a system call that it forbids then ends
// the program. What was seen of its filters when probes were armed proves nothing about the next
// hit. So the functions by which programs take on filters have a probe of the engine's own
// (RoleQuiet), which counts up a word of the process before the filter is there, and no generated
// code makes a system call while that word is not 0. The tracer sets it back once it has seen that
// the filters permit all calls.

// installs emits the counting, if the registers are those of a call that takes on a filter.
func (f *frame) installs(w *arch.ProbeOp) {
	done, found := f.Label(), f.Label()
	for _, way := range w.Installs {
		other := f.Label()
		for _, v := range way {
			f.register(RAX, fetch.Base{Kind: fetch.BaseReg, Reg: v.Reg})
			f.OpRI(OpCmp, 4, RAX, int32(v.Bits))
			f.Jcc(CondNE, other)
		}
		f.Jmp(found)
		f.Bind(other)
	}
	f.Jmp(done)
	f.Bind(found)
	f.MovRI(RAX, f.w.Quiet)
	f.Lock().IncM(8, At(RAX, 0))
	f.Bind(done)
}

// ifQuiet emits a jump to where no system call is made, if none may be. It clobbers tmp and the
// flags.
func (f *frame) ifQuiet(tmp Reg, quiet Label) {
	if f.w.Quiet == 0 {
		return
	}
	f.MovRI(tmp, f.w.Quiet)
	f.OpMI(OpCmp, 8, At(tmp, 0), 0)
	f.Jcc(CondNE, quiet)
}

package self

//lint:file-ignore U1000 the assembly uses what looks unused

import (
	"unsafe"

	"kprobes.dev/kprobes/internal/arch/amd64"
)

// callFunc calls a closure by Go's ABIInternal with the argument registers of regs, a copy
// of n bytes of stack arguments from args, and spill bytes above them for its use.
func callFunc(fn unsafe.Pointer, regs *amd64.Regs, args uint64, n, spill uint64)

// callGo is callFunc for a handler.
//
//go:norace
func callGo(fn unsafe.Pointer, regs *amd64.Regs, args uint64, stack, spill int) {
	callFunc(fn, regs, args, uint64(stack), uint64(spill))
}

// callEntry calls a jprobe's Entry with the probed function's own arguments.
//
//go:norace
func callEntry(d *desc, h *hit) {
	args := h.regs.SP + 8
	if d.point.Ret > 0 {
		args += uint64(d.point.Ret)
	}
	callFunc(d.h.Entry, &h.regs, args, uint64(d.h.Stack), uint64(d.h.Spill))
}

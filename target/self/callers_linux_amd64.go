package self

import "kprobes.dev/kprobes/internal/arch/amd64"

// callers fills pcs with the return addresses of the calls in progress, the innermost first:
// the one at the stack pointer where the point knows its place, then those that the frame
// pointers lead to. Go's code keeps frame pointers (cmd/compile, since Go 1.7). It reads only
// within the goroutine's stack, and makes no system call.
//
//go:norace
func (t *Target) callers(r *amd64.Regs, pcs []uint64) int {
	g := hitOf(r).g
	lo, hi := word(g), word(g+8)
	n := 0
	bp := r.BP
	if ret := hitOf(r).desc.point.Ret; ret >= 0 && len(pcs) > 0 {
		at := r.SP + uint64(ret)
		if at < lo || at > hi-8 {
			return 0
		}
		pcs[0] = word(at)
		n = 1
		lo = at
	}
	for n < len(pcs) && bp > lo && bp <= hi-16 && bp&7 == 0 {
		pcs[n] = word(bp + 8)
		if pcs[n] == 0 {
			break
		}
		n++
		lo, bp = bp, word(bp)
	}
	return n
}

package amd64

import "kprobes.dev/kprobes/internal/arch"

// returnUse is what Tails and ReadsReturn answer.
type returnUse struct {
	tails []arch.Tail
	reads uint64
	ok    bool
}

// Tails lists where the jumps go that leave the function, as far as that is one place.
func (fn *function) Tails() []arch.Tail { return fn.uses().tails }

// ReadsReturn gives the first instruction that reads the function's own return address.
func (fn *function) ReadsReturn() (addr uint64, ok bool) { return fn.uses().reads, fn.uses().ok }

// uses finds out once what the function does with its return address.
func (fn *function) uses() *returnUse {
	if fn.use == nil {
		u := &returnUse{tails: fn.flow().tails()}
		u.reads, u.ok = fn.flow().readsReturn()
		fn.use = u
	}
	return fn.use
}

func (fl *Flow) tails() []arch.Tail {
	all, _ := fl.Exits()
	var out []arch.Tail
	for _, e := range all {
		switch e.Kind {
		case ExitTailJmp, ExitTailJcc, ExitFallThrough:
			out = append(out, arch.Tail{Target: e.Target})
		case ExitIndirectTail:
			in, ok := fl.Inst(e.Addr)
			if slot, fixed := in.Target(e.Addr); ok && in.RIPMem && fixed {
				out = append(out, arch.Tail{Slot: slot})
			}
		}
	}
	return out
}

// readsReturn looks for instructions that read the word at which the return address lies: with an
// operand at that distance from the stack pointer, or from a copy of it in rbp, or a pop there. lea
// does not count: the end of an array that lies below is the same place.
func (fl *Flow) readsReturn() (addr uint64, ok bool) {
	fl.depthOnce.Do(func() {
		fl.linkOnce.Do(fl.linkLate)
		fl.depth = fl.depths()
	})
	for _, id := range fl.order {
		n, d := &fl.nodes[id], fl.depth[id]
		if n.in.Kind == KindRet || n.in.Enc == EncLegacy && n.in.Map == MapOne && n.in.Opcode == 0x8d {
			continue
		}
		if by, moves := pushed(&n.in); moves && by > 0 && d.sp == 0 && !n.swept {
			return n.addr, true
		}
		a, mem := fl.operand(n)
		if !mem || !a.hasBase || a.hasIndex {
			continue
		}
		at := int32(depthUnknown)
		switch a.base {
		case RSP:
			at = d.sp
		case RBP:
			at = d.bp
		}
		if at > depthSwitched && int64(at)+int64(a.disp) == 0 {
			return n.addr, true
		}
	}
	return 0, false
}

package amd64

import (
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// uses says what the work at a point needs of its frame.
type uses struct {
	regs  RegSet // registers that arguments read
	flags bool   // %flags is read
	calls bool   // a handler is called
	mark  bool   // return addresses are replaced, or have been
	count bool   // nothing is done but counting
	timed bool   // some hits are timed
	// sampled: it is decided whether a call has an instance.
	sampled bool
	left    bool // it is told of calls that a goroutine leaves
	temps   int
}

func (wr writer) usesOf(ws []arch.ProbeOp) uses {
	u := uses{mark: replaces(ws), count: wr.Kernel == nil}
	for i := range ws {
		w := &ws[i]
		u.count = u.count && w.Count && w.Role == arch.RoleRecord
		if w.Role == arch.RoleUnwind || w.Role == arch.RoleShare {
			u.regs |= Set(RDI, RSI, RDX, R9)
			continue
		}
		if w.Role == arch.RoleQuiet {
			for _, vs := range w.Installs {
				for _, v := range vs {
					u.regs |= Set(Reg(v.Reg))
				}
			}
			continue
		}
		if w.Left != nil {
			wr.leftUses(&u, w.Left)
		}
		u.calls = u.calls || w.Call != nil
		u.timed = u.timed || w.Budget != nil && w.Budget.Timed
		u.sampled = u.sampled || w.Sample != nil && w.Sample.Paired
		if w.Role == arch.RoleExit && w.Call != nil {
			u.temps = max(u.temps, fixedTemps)
		}
		if (w.Count || w.Call != nil) && w.Role != arch.RoleEntry {
			continue
		}
		bases := w.Prog.PointBases()
		if w.Role == arch.RoleEntry {
			bases = w.Prog.EntryBases()
		}
		for _, b := range bases {
			if (b.Kind == fetch.BaseReg || b.Kind == fetch.BaseSpan) && b.Reg < 16 {
				u.regs |= Set(Reg(b.Reg))
			}
			u.flags = u.flags || b.Kind == fetch.BaseReg && b.Reg == fetch.RegFlags
		}
		u.temps = max(u.temps, wr.tempsOf(w))
	}
	return u
}

// tempsOf counts the temporaries of one work. A record of registers has one: they cost stack, of which there may be
// little.
func (wr writer) tempsOf(w *arch.ProbeOp) int {
	n := fixedTemps
	if wr.Kernel == nil && w.Role == arch.RoleRecord && w.Hist == nil && (w.Prog == nil || wr.plainly(w.Prog)) {
		return tempTID + 1
	}
	if w.Prog == nil {
		return n
	}
	for _, b := range w.Prog.EntryBases() {
		if w.Role != arch.RoleEntry || b.Kind == fetch.BaseSpan {
			n++
		}
	}
	if w.Role == arch.RoleEntry {
		return n
	}
	for i := range w.Prog.Args {
		n += wr.argTemps(&w.Prog.Args[i])
	}
	switch {
	case w.Hist != nil:
		n += histTemps(w.Hist)
	case w.Prog.Stack > 0 && wr.Kernel == nil:
		n += walkRegs
	}
	return n
}

// plainly says whether a program only stores registers and constants.
func (wr writer) plainly(p *fetch.Program) bool {
	return p.Stack == 0 && !slices.ContainsFunc(p.Args, func(a fetch.Arg) bool { return wr.argTemps(&a) > 0 || argReach(&a) > 0 })
}

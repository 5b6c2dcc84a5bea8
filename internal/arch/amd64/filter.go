package amd64

import (
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// filter emits the tests of the work's filter. A run that does not pass is counted as a hit, and goes on at done. What is
// loaded for a test is what the record has: memory may change meanwhile.
func (f *frame) filter(s *storing, done Label) {
	steps := s.w.Filter.Steps
	for i := range steps {
		t := steps[i].Test
		if n := t.Field.Arg; t.Field.Kind == event.FieldArg && (t.Field.Text || loads(&s.w.Prog.Args[n])) && !slices.Contains(s.loaded, n) {
			f.evaluateArg(s, n)
			s.loaded = append(s.loaded, n)
		}
	}
	at := make([]Label, len(steps))
	for i := range at {
		at[i] = f.Label()
	}
	pass, fail := f.Label(), f.Label()
	to := func(step int) Label {
		switch step {
		case fetch.Pass:
			return pass
		case fetch.Fail:
			return fail
		}
		return at[step]
	}
	for i := range steps {
		f.Bind(at[i])
		next := i + 1
		if next == len(steps) {
			next = fetch.Pass
		}
		f.filterTest(s, &steps[i], next, to)
	}
	f.Bind(pass)
	f.after(func() {
		f.Bind(fail)
		if s.w.CountPassing {
			f.countIn(s.w.Event, ring.CtrFiltered)
		} else {
			f.count(s.w.Event)
		}
		f.Jmp(done)
	})
}

// notKnown says whether an argument's value is not known in the work's records.
func notKnown(w *arch.ProbeOp, a *fetch.Arg) bool {
	return w.Unknown && a.Result || w.Role == arch.RoleLeft && a.AtReturn() && !a.Failed
}

// filterTest emits one test. The code of the step next follows.
func (f *frame) filterTest(s *storing, step *fetch.FilterStep, next int, to func(int) Label) {
	t := step.Test
	if t.Field.Kind == event.FieldArg && notKnown(s.w, &s.w.Prog.Args[t.Field.Arg]) { // a value that is not known passes no test
		f.goOn(step.Else, next, to)
		return
	}
	if step.Parts != nil {
		f.filterText(s, step, to)
		return
	}
	switch t.Field.Kind {
	case event.FieldArg:
		if slices.Contains(s.loaded, t.Field.Arg) {
			f.MovRM(8, RAX, f.tempAt(s.temps[t.Field.Arg]))
		} else {
			f.value(&s.w.Prog.Args[t.Field.Arg], s)
		}
	case event.FieldIP:
		f.MovRI(RAX, f.addr)
	default:
		f.MovRI(RAX, 0)
	}
	if t.Kind == event.TestRange {
		f.MovRI(RDX, t.Num)
		f.OpRR(OpSub, 8, RAX, RDX)
		f.MovRI(RDX, t.End-t.Num)
		f.OpRR(OpCmp, 8, RAX, RDX)
		f.branch(condIf(t.Op == event.FilterEQ, CondB, CondAE), step, next, to)
		return
	}
	shift := uint8(64 - 8*t.Field.Size)
	if shift > 0 {
		f.ShiftRI(Shl, 8, RAX, shift)
	}
	f.MovRI(RDX, t.Num<<shift)
	if t.Op == event.FilterAnd {
		f.TestRR(8, RAX, RDX)
	} else {
		f.OpRR(OpCmp, 8, RAX, RDX)
	}
	f.branch(condOf(t), step, next, to)
}

func condIf(is bool, then, other Cond) Cond {
	if is {
		return then
	}
	return other
}

// condOf is the condition under which a test of a number passes, behind its comparison.
func condOf(t *event.FilterTest) Cond {
	switch t.Op {
	case event.FilterEQ:
		return CondE
	case event.FilterLT:
		return condIf(t.Field.Signed, CondL, CondB)
	case event.FilterLE:
		return condIf(t.Field.Signed, CondLE, CondBE)
	case event.FilterGT:
		return condIf(t.Field.Signed, CondG, CondA)
	case event.FilterGE:
		return condIf(t.Field.Signed, CondGE, CondAE)
	}
	return CondNE // !=, and & that found a bit
}

// branch emits the way on from a test that passes under c.
func (f *frame) branch(c Cond, step *fetch.FilterStep, next int, to func(int) Label) {
	if step.Then == next {
		f.Jcc(c^1, to(step.Else)) // conditions come in pairs of opposites
		return
	}
	f.Jcc(c, to(step.Then))
	f.goOn(step.Else, next, to)
}

// goOn emits a jump to a step, if it does not follow.
func (f *frame) goOn(step, next int, to func(int) Label) {
	if step != next {
		f.Jmp(to(step))
	}
}

package amd64

import (
	"math/rand/v2"
	"strings"
	"testing"
)

const (
	flagMask   = 0x8d5 // CF PF AF ZF SF OF
	sigIll     = 4
	firstTries = 300 // states tried for each form
	goodStates = 12  // states without a signal that are used
	variants   = 2   // other values of a register in each good state
)

// trial is a form with a state in which it runs, and what it did.
type trial struct {
	form   *effectForm
	before runIn
	after  runOut
}

// randomValue is a value that fits one of the uses of a register.
func randomValue(r *rand.Rand) uint64 {
	mid := uint64(runnerData + runnerDataSize/2)
	switch r.IntN(8) {
	case 0, 1, 2:
		return mid + uint64(r.IntN(16))*64
	case 3:
		return mid + uint64(r.IntN(1024))
	case 4:
		return uint64(r.IntN(32))
	case 5:
		return uint64(r.IntN(4)) * 32
	case 6:
		return (mid + uint64(r.IntN(64))*8) / 8
	}
	return r.Uint64()
}

func randomState(r *rand.Rand, in runIn) runIn {
	for i := range in.Regs {
		in.Regs[i] = randomValue(r)
	}
	in.Flags = 2 | r.Uint64()&flagMask
	return in
}

// varied gives in with another value for a member of a RegSet, number n.
func varied(r *rand.Rand, in runIn, n int) runIn {
	if 1<<n == Flags {
		in.Flags ^= r.Uint64() & flagMask
		return in
	}
	in.Regs[n] = randomValue(r)
	return in
}

// firstTrials runs each form from many states.
func firstTrials(t *testing.T, r *rand.Rand, run effectRunner, forms []effectForm) []trial {
	t.Helper()
	var trials []trial
	for i := range forms {
		in := forms[i].aim()
		for range firstTries {
			trials = append(trials, trial{form: &forms[i], before: randomState(r, in)})
		}
	}
	runTrials(t, run, trials)
	return trials
}

func runTrials(t *testing.T, run effectRunner, trials []trial) {
	t.Helper()
	ins := make([]runIn, len(trials))
	for i := range trials {
		ins[i] = trials[i].before
	}
	for i, out := range run.run(t, ins) {
		out.Flags &= flagMask
		trials[i].after = out
	}
}

// goodTrials takes some trials of each form that raised no signal.
func goodTrials(t *testing.T, trials []trial) (good []trial) {
	t.Helper()
	n, illegal := 0, 0
	for i, tr := range trials {
		switch {
		case tr.after.Signal == 0 && n < goodStates:
			good = append(good, tr)
			n++
		case tr.after.Signal == sigIll:
			illegal++
		}
		if i+1 < len(trials) && trials[i+1].form == tr.form {
			continue
		}
		switch {
		case illegal == firstTries:
			t.Logf("%s: not known to this processor", tr.form.text)
		case n == 0:
			t.Errorf("%s: raised a signal in all of %d states", tr.form.text, firstTries)
		}
		n, illegal = 0, 0
	}
	return good
}

// value and result are the values of member n of a RegSet before and after a run.
func (in *runIn) value(n int) uint64 {
	if 1<<n == Flags {
		return in.Flags & flagMask
	}
	return in.Regs[n]
}

func (o *runOut) result(n int) uint64 {
	if 1<<n == Flags {
		return o.Flags
	}
	return o.Regs[n]
}

// without gives everything in o but member n.
func (o runOut) without(n int) runOut {
	if 1<<n == Flags {
		o.Flags = 0
	} else {
		o.Regs[n] = 0
	}
	return o
}

// seen is what executions showed of the effects of a form.
type seen struct {
	Effects
	survives RegSet // the old value of a register had a part in its new one
}

// observe collects what the trials show; those in again[i] differ from base[i] in
// one register each, and in the contents of memory.
func observe(all, base []trial, again [][]trial) map[*effectForm]*seen {
	forms := map[*effectForm]*seen{}
	for i := range all {
		s := forms[all[i].form]
		if s == nil {
			s = new(seen)
			forms[all[i].form] = s
		}
		s.MayFault = s.MayFault || all[i].after.Signal != 0 && all[i].after.Signal != sigIll
		s.MemWrite = s.MemWrite || all[i].after.Wrote != 0
	}
	for i := range base {
		s, b := forms[base[i].form], &base[i]
		for n := range members {
			if b.after.result(n) != b.before.value(n) {
				s.Writes |= 1 << n
			}
		}
		for j := range again[i] {
			s.compare(b, &again[i][j])
		}
	}
	return forms
}

// members is the number of members that a RegSet may have.
const members = 17

// variations gives the trials that differ from b in one thing.
func variations(r *rand.Rand, b trial) []trial {
	var vs []trial
	for n := range members {
		for range variants {
			vs = append(vs, trial{form: b.form, before: varied(r, b.before, n)})
		}
	}
	b.before.Other = 1
	return append(vs, b)
}

// compare takes in what changed in v, and what came of it.
func (s *seen) compare(b, v *trial) {
	if v.before.Other != b.before.Other {
		v.after.Memory, v.after.Wrote = b.after.Memory, b.after.Wrote
		s.MemRead = s.MemRead || v.after != b.after
		return
	}
	for n := range members {
		switch {
		case b.before.value(n) == v.before.value(n):
		case b.after.without(n) != v.after.without(n):
			s.Reads |= 1 << n
		case b.after.result(n) != v.after.result(n):
			s.survives |= 1 << n
		}
	}
}

// TestEffectsByExecution runs instructions from random states, and again with one
// register changed: what is no member of Writes stays; what is no member of Reads
// influences nothing but itself, and not even that if it is in Kills; memory
// matters only with MemRead, changes only with MemWrite, and signals come only
// with MayFault.
func TestEffectsByExecution(t *testing.T) {
	forms := readForms(t, "testdata/effects/forms.txt")
	run := buildRunner(t)
	r := rand.New(rand.NewPCG(1, 2))
	all := firstTrials(t, r, run, forms)
	base := goodTrials(t, all)
	var flat []trial
	for _, b := range base {
		flat = append(flat, variations(r, b)...)
	}
	runTrials(t, run, flat)
	again := make([][]trial, len(base))
	for i := range again {
		n := len(flat) / len(base)
		again[i] = flat[i*n:][:n]
	}
	for f, s := range observe(all, base, again) {
		s.check(t, f)
	}
	t.Logf("%d forms, %d runs", len(forms), len(all)+len(flat))
}

func (s *seen) check(t *testing.T, f *effectForm) {
	t.Helper()
	e := f.in.Effects()
	for _, c := range []struct {
		bad  RegSet
		what string
	}{
		{s.Reads &^ e.Reads, "reads these too"},
		{s.Writes &^ e.Writes, "writes these too"},
		{s.survives & e.Kills &^ e.Reads, "does not kill these"},
		{e.Kills &^ e.Writes, "kills these and does not write them"},
	} {
		if c.bad != 0 {
			t.Errorf("%s: % x: %s: %s", f.text, f.code, c.what, setNames(c.bad))
		}
	}
	if s.MemRead && !e.MemRead || s.MemWrite && !e.MemWrite || s.MayFault && !e.MayFault {
		t.Errorf("%s: % x: memory read %v, written %v, fault %v; claimed %v %v %v", f.text, f.code,
			s.MemRead, s.MemWrite, s.MayFault, e.MemRead, e.MemWrite, e.MayFault)
	}
}

// setNames spells out a set.
func setNames(s RegSet) string {
	list := []string{"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "flags"}
	text := ""
	for n, name := range list {
		if s>>n&1 != 0 {
			text += " " + name
		}
	}
	return strings.TrimSpace(text)
}

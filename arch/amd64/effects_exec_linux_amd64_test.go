package amd64

import (
	"math/rand/v2"
	"testing"
)

const (
	flagMask   = 0x8d5 // CF PF AF ZF SF OF
	sigIll     = 4
	firstTries = 400 // states tried for each form
	goodStates = 12  // states without a signal that are used
	variants   = 3   // other values of a register in each good state
)

// trial is a form with a state in which it runs, and what it did.
type trial struct {
	form   *form
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
	case 4, 5:
		return uint64(r.IntN(32))
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

// firstTrials finds for each form the states in which it raises no signal.
func firstTrials(t *testing.T, r *rand.Rand, run runner, forms []form) []trial {
	t.Helper()
	var trials []trial
	for i := range forms {
		in := forms[i].aim()
		for range firstTries {
			trials = append(trials, trial{form: &forms[i], before: randomState(r, in)})
		}
	}
	execute(t, run, trials)
	var good []trial
	for i := range forms {
		n := len(good)
		illegal := 0
		for _, tr := range trials[i*firstTries : (i+1)*firstTries] {
			if tr.after.Signal == 0 && len(good)-n < goodStates {
				good = append(good, tr)
			}
			if tr.after.Signal == sigIll {
				illegal++
			}
		}
		switch {
		case illegal == firstTries:
			t.Logf("%s: not known to this processor", forms[i].text)
		case len(good) == n:
			t.Errorf("%s: raised a signal in all of %d states", forms[i].text, firstTries)
		}
	}
	return good
}

func execute(t *testing.T, run runner, trials []trial) {
	t.Helper()
	ins := make([]runIn, len(trials))
	for i := range trials {
		ins[i] = trials[i].before
	}
	for i, out := range run.run(t, ins) {
		trials[i].after = out
	}
}

// result is the value of a member of a RegSet after a run.
func (o *runOut) result(n int) uint64 {
	if 1<<n == Flags {
		return o.Flags & flagMask
	}
	return o.Regs[n]
}

func (in *runIn) value(n int) uint64 {
	if 1<<n == Flags {
		return in.Flags & flagMask
	}
	return in.Regs[n]
}

// seen is what executions showed of the effects of a form.
type seen struct {
	reads, writes RegSet // observed
	survives      RegSet // written at times, but the result hangs on the old value
}

// others has what may not change with member n: everything but n itself.
func (o runOut) others(n int) runOut {
	o.Flags &= flagMask
	if 1<<n == Flags {
		o.Flags = 0
	} else {
		o.Regs[n] = 0
	}
	return o
}

// TestEffectsByExecution runs instructions from random states, and again with one
// register changed: what is no member of Writes stays, what is no member of Reads
// influences nothing but itself, and not even that if it is in Kills.
func TestEffectsByExecution(t *testing.T) {
	forms := readForms(t, "testdata/effects/forms.txt")
	run := buildRunner(t)
	r := rand.New(rand.NewPCG(1, 2))
	base := firstTrials(t, r, run, forms)

	var again []trial
	for _, b := range base {
		for n := range 17 {
			for range variants {
				again = append(again, trial{form: b.form, before: varied(r, b.before, n)})
			}
		}
	}
	execute(t, run, again)

	observed := map[*form]*seen{}
	for i := range base {
		s := observed[base[i].form]
		if s == nil {
			s = new(seen)
			observed[base[i].form] = s
		}
		for n := range 17 {
			if base[i].after.result(n) != base[i].before.value(n) {
				s.writes |= 1 << n
			}
			for _, v := range again[(i*17+n)*variants:][:variants] {
				s.add(n, &base[i], &v)
			}
		}
	}
	for i := range forms {
		if s := observed[&forms[i]]; s != nil {
			s.check(t, &forms[i])
		}
	}
	t.Logf("%d forms, %d runs", len(forms), len(forms)*firstTries+len(again))
}

func (s *seen) add(n int, base, v *trial) {
	if base.after.others(n) != v.after.others(n) {
		s.reads |= 1 << n
		return
	}
	if base.after.result(n) != v.after.result(n) {
		s.survives |= 1 << n
	}
}

func (s *seen) check(t *testing.T, f *form) {
	e := f.in.Effects()
	if x := s.reads &^ e.Reads; x != 0 {
		t.Errorf("%s: % x: reads %v too", f.text, f.code, x)
	}
	if x := s.writes &^ e.Writes; x != 0 {
		t.Errorf("%s: % x: writes %v too", f.text, f.code, x)
	}
	if x := s.survives & e.Kills &^ e.Reads; x != 0 {
		t.Errorf("%s: % x: does not kill %v", f.text, f.code, x)
	}
	if x := e.Reads &^ s.reads; x != 0 {
		t.Logf("OVER %s: claims to read %v", f.text, x)
	}
	if x := e.Writes &^ s.writes; x != 0 {
		t.Logf("OVER %s: claims to write %v", f.text, x)
	}
	if x := e.Writes & s.writes &^ e.Kills &^ s.survives &^ e.Reads; x != 0 {
		t.Logf("OVER %s: may kill %v", f.text, x)
	}
}

package amd64

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
)

// effectCase is one instruction, run from a state and from states that differ from it in one
// thing each.
type effectCase struct {
	*fuzzCase
	e    Effects
	jobs []*fuzzJob // the state, memory by itself, other memory, and a variation for each member
}

const (
	effectBase   = iota
	effectNop    // nothing is run
	effectMemory // other memory
	effectMember // the first of the members of RegSet
)

// newEffectCase makes a case of an instruction whose effects are known; nil for others.
func newEffectCase(code []byte, seed uint64) *effectCase {
	c := newFuzzCase(code, seed, 0)
	if c == nil || len(c.insts) != 1 {
		return nil
	}
	in := &c.insts[0].Inst
	if in.Effects() == unknown || in.Kind == KindSyscall || in.RelLen == 1 && in.Rel < 0 && in.Rel > -MaxLen {
		return nil
	}
	ec := &effectCase{fuzzCase: c, e: in.Effects()}
	c.job.Keep = c.how.base() + fuzzStack
	nop, other := c.job, c.job
	nop.NPieces = 0
	other.Memory += 2
	ec.jobs = []*fuzzJob{&c.job, &nop, &other}
	r := rand.New(rand.NewPCG(seed, 4))
	for n := range members {
		v := c.job
		if 1<<n == Flags {
			v.Flags ^= r.Uint64() & flagMask
		} else {
			v.Regs[n] = c.value(r, pointers>>n&1 != 0)
		}
		ec.jobs = append(ec.jobs, &v)
	}
	return ec
}

// went says whether a run went through, or branched: no fault ended it, and it did end.
func (c *effectCase) went(o *fuzzResult) bool {
	return syscall.Signal(o.Sig) == syscall.SIGTRAP && o.Flags&flagTF == 0
}

// result is a run's end without what does not count here, and without member n of RegSet.
func (c *effectCase) result(o *fuzzResult, n int) fuzzResult {
	r := *o
	r.Hits, r.Traps, r.All, r.DataSlot, r.StackSlot = 0, 0, 0, 0, 0
	switch {
	case n < 0:
	case 1<<n == Flags:
		r.Flags = 0
	default:
		r.Regs[n] = 0
	}
	return r
}

func memberOf(regs *[16]uint64, flags uint64, n int) uint64 {
	if 1<<n == Flags {
		return flags & flagMask
	}
	return regs[n]
}

// check holds the effects that are claimed to what was seen.
func (c *effectCase) check(out []fuzzResult) string {
	base := &out[effectBase]
	if !c.went(base) {
		if s := syscall.Signal(base.Sig); !c.e.MayFault && (s == syscall.SIGSEGV || s == syscall.SIGBUS || s == syscall.SIGFPE) {
			return fmt.Sprintf("raised %v", s)
		}
		return ""
	}
	var s seen
	for n := range members {
		before := memberOf(&c.job.Regs, c.job.Flags, n)
		if memberOf(&base.Regs, base.Flags, n) != before {
			s.Writes |= 1 << n
		}
		v, job := &out[effectMember+n], c.jobs[effectMember+n]
		switch {
		case memberOf(&job.Regs, job.Flags, n) == before:
		case c.result(v, n) != c.result(base, n):
			s.Reads |= 1 << n
		case memberOf(&v.Regs, v.Flags, n) != memberOf(&base.Regs, base.Flags, n):
			s.survives |= 1 << n
		}
	}
	s.MemWrite = base.Data != out[effectNop].Data || base.Stack != out[effectNop].Stack
	if !s.MemWrite {
		other := out[effectMemory]
		other.Data, other.Stack = base.Data, base.Stack
		s.MemRead = c.result(&other, -1) != c.result(base, -1)
	}
	return c.claims(&s)
}

// claims tells which claims do not hold.
func (c *effectCase) claims(s *seen) string {
	e, text := &c.e, ""
	for _, x := range []struct {
		bad  RegSet
		what string
	}{
		{s.Reads &^ e.Reads, "reads"},
		{s.Writes &^ e.Writes, "writes"},
		{s.survives & e.Kills &^ e.Reads, "does not kill"},
	} {
		if x.bad != 0 {
			text += fmt.Sprintf("%s %s; ", x.what, setNames(x.bad))
		}
	}
	if s.MemRead && !e.MemRead || s.MemWrite && !e.MemWrite {
		text += fmt.Sprintf("memory read %v, written %v; claimed %v %v", s.MemRead, s.MemWrite, e.MemRead, e.MemWrite)
	}
	return text
}

// TestEffectsRandom runs instructions of the generator to hold the tables of effects, on which
// the proof rests that a register is free, to what happens.
func TestEffectsRandom(t *testing.T) {
	const mostFinds = 10
	r, more := newFuzzRunner(t), fuzzing(t, 50, 3)
	r.single = true
	seeds := rand.New(rand.NewPCG(fuzzSeed(t), 1))
	n, went := 0, 0
	for finds := 0; finds < mostFinds && more(); {
		var cases []*effectCase
		var jobs []*fuzzJob
		for len(jobs)+effectMember+members <= fuzzJobs {
			seed := seeds.Uint64()
			if c := newEffectCase(generator{rand.New(rand.NewPCG(seed, 5))}.inst(), seed); c != nil {
				cases, jobs = append(cases, c), append(jobs, c.jobs...)
			}
		}
		out, dead, err := r.run(jobs)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range cases {
			if at := i * len(c.jobs); dead < 0 || at+len(c.jobs) <= dead {
				n++
				if c.went(&out[at]) {
					went++
				}
				if d := c.steady(t, r, out[at:at+len(c.jobs)]); d != "" {
					finds++
					t.Errorf("% x: %s", c.code, d)
				}
			}
		}
	}
	t.Logf("%d instructions, %d went through", n, went)
	if went < n/5 || n == 0 {
		t.Errorf("too few instructions go through")
	}
}

// steady is check, but what is wrong must be so each time, and no two equal runs may differ.
func (c *effectCase) steady(t *testing.T, r *fuzzRunner, out []fuzzResult) string {
	t.Helper()
	d := c.check(out)
	for range 3 {
		if d == "" {
			return ""
		}
		again, dead, err := r.run(append(c.jobs[:len(c.jobs):len(c.jobs)], c.jobs[effectBase]))
		if err != nil {
			t.Fatal(err)
		}
		if dead >= 0 || c.result(&again[effectBase], -1) != c.result(&again[len(again)-1], -1) {
			return ""
		}
		d = c.check(again[:len(c.jobs)])
	}
	return d
}

// lengthTells says whether faults tell the length of an instruction: an operand that lies behind
// it is not to be taken for one of its bytes, and some branches are shorter on AMD's processors.
func lengthTells(in *Inst) bool {
	const near = 64
	return in.Len > 1 && !(in.RIPMem && in.Rel > -near && in.Rel < near) && !(in.Prefix&PrefixOpSize != 0 && shortBranch(in.Kind))
}

// lengthJobs put an instruction before the end of what is mapped, whole and without its last
// byte, and elsewhere.
func lengthJobs(c *fuzzCase) (jobs [3]*fuzzJob) {
	const end = fuzzCode + fuzzCodeLen
	jobs[2] = &c.job
	for cut := range 2 {
		j := c.job
		b := c.code[:len(c.code)-cut]
		j.PC, j.NPieces = end-uint64(len(b)), 0
		if err := j.put(j.PC, b); err != nil {
			panic(err)
		}
		jobs[cut] = &j
	}
	return jobs
}

// wrongLength tells how the processor sees the length of an instruction otherwise: it asks for
// the byte behind the whole instruction, or does not ask for the one that was cut off. That of an
// instruction that it does not know means nothing.
func wrongLength(jobs [3]*fuzzJob, out []fuzzResult) string {
	const end = fuzzCode + fuzzCodeLen
	asks := func(i int) bool {
		return syscall.Signal(out[i].Sig) == syscall.SIGSEGV && out[i].Addr == end && out[i].PC == jobs[i].PC
	}
	unknown := syscall.Signal(out[2].Sig) == syscall.SIGILL && out[2].PC == jobs[2].PC
	switch {
	case unknown:
	case asks(0):
		return "it is longer"
	case !asks(1) && out[1].Sig != sigTimer:
		return fmt.Sprintf("it is shorter: without the last byte it ends with %v at %#x of %#x", syscall.Signal(out[1].Sig), out[1].PC, jobs[1].PC)
	}
	return ""
}

// TestLengthRandom lets the processor tell how long the generator's instructions are.
func TestLengthRandom(t *testing.T) {
	const mostFinds = 10
	r, more := newFuzzRunner(t), fuzzing(t, 50, 4)
	seeds := rand.New(rand.NewPCG(fuzzSeed(t), 2))
	n := 0
	for finds := 0; finds < mostFinds && more(); {
		var jobs []*fuzzJob
		var cases []*fuzzCase
		for len(jobs)+3 <= fuzzJobs {
			seed := seeds.Uint64()
			c := newFuzzCase(generator{rand.New(rand.NewPCG(seed, 6))}.inst(), seed, howAsIs)
			if c == nil || len(c.insts) != 1 || !lengthTells(&c.insts[0].Inst) {
				continue
			}
			three := lengthJobs(c)
			cases, jobs = append(cases, c), append(jobs, three[:]...)
		}
		out, dead, err := r.run(jobs)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range cases {
			if dead >= 0 && dead <= 3*i+2 {
				break
			}
			n++
			if d := wrongLength([3]*fuzzJob(jobs[3*i:]), out[3*i:]); d != "" {
				finds++
				t.Errorf("% x: %d bytes are told, %s", c.code, len(c.code), d)
			}
		}
	}
	t.Logf("%d instructions", n)
}

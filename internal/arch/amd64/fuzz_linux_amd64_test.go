package amd64

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
)

// fuzzTactics are those that need no kernel.
var fuzzTactics = []arch.Tactic{arch.TacticJump, arch.TacticBoost, arch.TacticStep}

// fuzzTally counts what became of cases.
type fuzzTally map[string]int

func (t fuzzTally) add(format string, args ...any) { t[fmt.Sprintf(format, args...)]++ }

func (t fuzzTally) String() string {
	var s strings.Builder
	for _, k := range slices.Sorted(maps.Keys(t)) {
		fmt.Fprintf(&s, "%9d %s\n", t[k], k)
	}
	return s.String()
}

// fuzzBatch is cases that are run at once: one at a time most of the time goes by until the
// child is scheduled.
type fuzzBatch struct {
	cases []*fuzzCase
	forms [][]*fuzzForm
	jobs  []*fuzzJob
}

// add takes a case in; false: there is no room for more.
func (b *fuzzBatch) add(c *fuzzCase, r *fuzzRunner, tally fuzzTally) (bool, error) {
	forms, err := c.forms(r, tally)
	if err != nil || len(forms) == 0 {
		return true, err
	}
	c.job.Skip = uint64(1 + len(forms))
	other := c.job
	if other.Scratch = 2*c.round + 1; c.round%4 != 3 { // small words, or large ones
		other.Scratch *= 0x9e3779b97f4a7c15
	}
	b.jobs = append(b.jobs, &c.job, &other)
	for _, f := range forms {
		f.job.Skip = 0
		b.jobs = append(b.jobs, &f.job)
	}
	b.cases, b.forms = append(b.cases, c), append(b.forms, forms)
	return len(b.jobs)+2+len(fuzzTactics) <= fuzzJobs, nil
}

// run executes the batch and gives what differs for each case, "" where nothing does. Where a
// case has ended the child, those behind it were not run.
func (b *fuzzBatch) run(r *fuzzRunner, tally fuzzTally) (diffs []string, err error) {
	out, dead, err := r.run(b.jobs)
	if err != nil {
		return nil, err
	}
	at := 0
	for i, c := range b.cases {
		n := 2 + len(b.forms[i])
		if dead >= 0 && dead < at+n {
			d := ""
			if dead >= at+2 {
				d = fmt.Sprintf("%s: the process has ended, and the original does not end it\n", b.forms[i][dead-at-2].tactic)
			}
			tally.add("the process has ended: % x", c.code)
			return append(diffs, d), nil
		}
		diffs = append(diffs, c.judge(out[at:at+n], b.forms[i], tally))
		at += n
	}
	return diffs, nil
}

// judge gives what differs in the results of a case.
func (c *fuzzCase) judge(out []fuzzResult, forms []*fuzzForm, tally fuzzTally) string {
	if why := c.ill(&out[0], &out[1]); why != "" {
		tally.add("ill: %s", why)
		return ""
	}
	tally.add("%s", c.endOf(&out[0]))
	for i, f := range forms {
		tally.add("form: %s", f.tactic)
		if d := c.compare(&out[0], &out[i+2], f); d != "" {
			return fmt.Sprintf("%s: detour at %#x, points %#x\n%s", f.tactic, f.at, f.pts, d)
		}
	}
	return ""
}

// check runs one case.
func (c *fuzzCase) check(r *fuzzRunner) (string, error) {
	var b fuzzBatch
	if _, err := b.add(c, r, fuzzTally{}); err != nil || len(b.cases) == 0 {
		return "", err
	}
	diffs, err := b.run(r, fuzzTally{})
	if err != nil {
		return "", err
	}
	return diffs[0], nil
}

func (c *fuzzCase) forms(r *fuzzRunner, tally fuzzTally) (forms []*fuzzForm, err error) {
	for _, tactic := range fuzzTactics {
		f, err := c.form(&r.writer, tactic)
		if err != nil {
			return nil, err
		}
		if f == nil {
			tally.add("no form: %s", tactic)
			continue
		}
		forms = append(forms, f)
	}
	return forms, nil
}

// ill says why nothing can be concluded from what the original does.
func (c *fuzzCase) ill(a, b *fuzzResult) string {
	const frame = 1024 // more than a detour takes
	if a.Sig == sigTimer {
		return ""
	}
	if a.Regs[RSP]-(c.how.base()+fuzzStack-frame) < 2*frame {
		return "it runs out of stack"
	}
	if sp := a.Regs[RSP] - c.how.base(); sp-fuzzStack >= fuzzStkLen && sp-fuzzData >= fuzzDataLen {
		return "it leaves its stack" // and so may have had none where a probe was hit
	}
	const user64 = 0x33
	if a.CS&0xffff != user64 {
		return "it leaves 64-bit mode"
	}
	if a.Flags&flagAC != 0 && (a.Regs[RSP]%8 != 0 || !c.aligned) {
		return "it checks alignment, and its stack is not aligned"
	}
	if x, y := c.ends(*a, nil), c.ends(*b, nil); x != y {
		return "what it does hangs on what lies below the red zone, or on the time"
	}
	traps := uint64(0)
	if syscall.Signal(a.Sig) == unix.SIGTRAP {
		traps = 1
	}
	if a.Flags&flagTF != 0 || a.Traps != traps || traps == 1 && a.Code != siKernel {
		return "it steps itself"
	}
	return ""
}

// compare gives what differs between the original's end and a form's.
func (c *fuzzCase) compare(orig, form *fuzzResult, f *fuzzForm) string {
	const many = 100 // of a loop, which takes longer with probes
	if form.Sig == sigTimer && (orig.Sig == sigTimer || form.All > many || f.tactic != arch.TacticJump) {
		return ""
	}
	a, b := c.ends(*orig, nil), c.ends(*form, f)
	d := differs(&a, &b)
	if d == "" && f.start && form.Hits == 0 {
		return "  the detour was not taken\n"
	}
	return d
}

// endOf says how a run of the original ended.
func (c *fuzzCase) endOf(o *fuzzResult) string {
	land := c.how.base() + fuzzLand
	switch pc := o.PC - 1; {
	case o.Sig == sigTimer:
		return "end: loops"
	case o.Sig == sigSys:
		return "end: system call"
	case syscall.Signal(o.Sig) != syscall.SIGTRAP:
		return fmt.Sprintf("end: %v code %d", syscall.Signal(o.Sig), int32(o.Code))
	case pc == c.addr+uint64(len(c.code)):
		return "end: runs through"
	case pc >= land && pc < land+fuzzLandLen:
		return "end: branches away"
	}
	return "end: elsewhere"
}

// find is check, but a difference must be there each time: a processor's or a kernel's noise
// is not, and what the scratch memory brings about hangs on what is in it: each bit of that is
// another in half of the rounds.
func (c *fuzzCase) find(r *fuzzRunner) (d string, err error) {
	for c.round = range uint64(16) {
		if d, err = c.check(r); d == "" || err != nil {
			return "", err
		}
	}
	return d, nil
}

// String is the case as a file of testdata/fuzz has it.
func (c *fuzzCase) String() string {
	return fmt.Sprintf("go test fuzz v1\n[]byte(%+q)\nuint64(%d)\nuint64(%d)\n", string(c.code), c.seed, uint64(c.how|howAsIs))
}

// FuzzRelocate runs code as it stands and with probes, by each tactic, and compares where it
// ends and with what state. Without code some is made up from the seed. Finds lie in
// testdata/fuzz/FuzzRelocate, and README.md there tells what they were.
func FuzzRelocate(f *testing.F) {
	runners := newFuzzRunners(f)
	for _, c := range relocCases {
		f.Add(unhex(f, c.in), c.addr, uint64(0))
	}
	f.Add([]byte(nil), uint64(1), uint64(0))
	f.Fuzz(func(t *testing.T, code []byte, seed, how uint64) {
		if len(code) == 0 {
			code = generated(seed)
		}
		c := newFuzzCase(code, seed, fuzzHow(how))
		if c == nil {
			return
		}
		d, err := c.find(runners[c.how&howHigh])
		if err != nil {
			t.Fatal(err)
		}
		if d != "" {
			t.Errorf("%s% x at %#x\n%s", c, c.code, c.addr, d)
		}
	})
}

// generated makes the code of a seed.
func generated(seed uint64) []byte {
	g := generator{rand.New(rand.NewPCG(seed, 3))}
	return g.code(1 + g.IntN(6))
}

// fuzzing says whether a random run goes on: for so many batches, and with KPROBES_E2E_LONG for a
// part of the time that it names, or of 10 minutes.
func fuzzing(t *testing.T, batches int, part time.Duration) func() bool {
	t.Helper()
	s := os.Getenv("KPROBES_E2E_LONG")
	if s == "" {
		return func() bool { batches--; return batches >= 0 }
	}
	d := 10 * time.Minute
	if s != "1" {
		var err error
		if d, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	end := time.Now().Add(d / part)
	return func() bool { return time.Now().Before(end) }
}

// fuzzSeed is a new number in a long run, else always the same: a test that fails once in a while
// tells whoever runs it nothing of their change. KPROBES_SEED is another.
func fuzzSeed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(5)
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		seed = rand.Uint64()
	}
	if s := os.Getenv("KPROBES_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 0, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("KPROBES_SEED=%#x", seed)
	return seed
}

// TestRelocateRandom runs what FuzzRelocate runs on code from the generator.
func TestRelocateRandom(t *testing.T) {
	const mostFinds = 10
	runners, tally, more := newFuzzRunners(t), fuzzTally{}, fuzzing(t, 100, 1)
	seeds := rand.New(rand.NewPCG(fuzzSeed(t), 0))
	for finds := 0; finds < mostFinds && more(); {
		r := runners[seeds.UintN(2)]
		b := randomBatch(t, r, seeds, tally)
		diffs, err := b.run(r, tally)
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range diffs {
			if d == "" {
				continue
			}
			c := b.cases[i]
			if d, err = c.find(r); err != nil {
				t.Fatal(err)
			}
			if d != "" {
				finds++
				t.Errorf("%s% x at %#x\n%s", c, c.code, c.addr, d)
			}
		}
	}
	t.Logf("\n%s", tally)
	if tally["end: runs through"] < tally["cases"]/20 || tally["form: jump"] < tally["cases"]/2 {
		t.Errorf("too few cases do something")
	}
}

// randomBatch fills a batch.
func randomBatch(t *testing.T, r *fuzzRunner, seeds *rand.Rand, tally fuzzTally) *fuzzBatch {
	t.Helper()
	b := &fuzzBatch{}
	for more := true; more; {
		seed, how := seeds.Uint64(), fuzzHow(seeds.Uint64()&0xff)
		if seeds.UintN(8) != 0 {
			how &^= howFar
		}
		how &^= howHigh
		if r.base != 0 {
			how |= howHigh
		}
		c := newFuzzCase(generated(seed), seed, how)
		if c == nil {
			continue
		}
		tally.add("cases")
		var err error
		if more, err = b.add(c, r, tally); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
)

func TestMain(m *testing.M) {
	if err := Fix(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// seedOfTests gives the rounds of TestRounds: the same each time, so that a failure can be
// repeated. The command takes new ones.
const seedOfTests = 20261121

// A round of most programs at small size, in long runs of all: the same output as without probes, and the counts of
// callgrind and of the kernel.
func TestRounds(t *testing.T) {
	o := &Options{Dir: t.TempDir(), Rounds: 1, Seed: seedOfTests, Probes: 80, Size: 1}
	for _, w := range Works() {
		if !slices.Contains([]string{"sha256sum", "gzip", "gunzip", "bunzip2", "shell", "perl", "python", "ssl-sha512", "ssl-unchacha", "ssl-poly1305", "go"}, w.Name) { // much like others
			o.Programs = append(o.Programs, w.Name)
		}
	}
	if d, err := time.ParseDuration(os.Getenv("KPROBES_E2E_LONG")); err == nil {
		o.Programs = nil
		o.For, o.Seed, o.Size = d, rand.Uint64(), 2
	}
	sum, err := Run(o, func(r fmt.Stringer) { t.Log(r) })
	t.Log(sum)
	if err != nil {
		t.Fatal(err)
	}
	if sum.ByCall < 100 || sum.ByKernel < 50 || sum.Armed*10 < sum.Probes*9 {
		t.Errorf("too little was compared: %s", sum)
	}
}

// kprobe comes to a program while it runs, a server with workers. The command visits all.
func TestVisits(t *testing.T) {
	dir := t.TempDir()
	kprobe := filepath.Join(dir, "kprobe")
	if out, err := exec.Command("go", "build", "-o", kprobe, "kprobes.dev/kprobes/cmd/kprobe").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	o := &Options{Dir: dir, Kprobe: kprobe, Rounds: 1, Seed: seedOfTests, Size: 1, Programs: []string{"nginx"}}
	for ; o.Seed < seedOfTests+10; o.Seed++ { // all visits of a round may be killed too soon
		sum, err := Run(o, func(r fmt.Stringer) { t.Log(r) })
		if err != nil {
			t.Fatal(err)
		}
		if len(sum.Sets["nginx"]) > 0 {
			return
		}
	}
	t.Error("no visit has probed nginx")
}

// stage readies a program at small size.
func stage(t *testing.T, w *Work) *Stage {
	t.Helper()
	s, err := NewStage(w, t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// stageOf readies the program with a name.
func stageOf(t *testing.T, name string) *Stage {
	t.Helper()
	for _, w := range Works() {
		if w.Name == name {
			return stage(t, w)
		}
	}
	t.Fatalf("no program is called %q", name)
	return nil
}

// Every mode of a program whose referee is callgrind, with handlers, breakpoints and probes that
// come and go in the middle.
func TestModes(t *testing.T) {
	s := stageOf(t, "bzip2")
	seen := map[string]bool{}
	for seed := uint64(1); len(seen) < len(s.modes()) && seed < 100; seed++ {
		m := s.modes()[rand.New(rand.NewPCG(seed, 0)).IntN(len(s.modes()))]
		if seen[m.name] {
			continue
		}
		seen[m.name] = true
		r, err := s.Round(seed, 60)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(r)
		if !r.OK() || r.ByCall == 0 {
			t.Errorf("%s", r)
		}
		if m.tactic != "" && r.Tactics[string(m.tactic)] == 0 {
			t.Errorf("no probe has the tactic %s: %v", m.tactic, r.Tactics)
		}
	}
}

// function is a return probe of a function of a stage's program, or a counter at its start.
func function(t *testing.T, s *Stage, name string, ret bool) *probe {
	t.Helper()
	fns, err := s.Objects[0].Image.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	kind := "p"
	if ret {
		kind = "r"
	}
	at := fns[0].Addr
	b := &probe{place: place{s.Objects[0].Name, at}, name: fmt.Sprintf("e%x", at), ret: ret, count: true}
	b.text = fmt.Sprintf("%s:%s 0x%x", kind, b.name, at)
	return b
}

// Every call counts for a return probe, also one that longjmp has left and whose place on the stack
// no later call has taken.
func TestCallsLeft(t *testing.T) {
	s := stageOf(t, "bash")
	// The script's `return` and `exit` leave it by longjmp.
	p := &plan{tactic: arch.TacticJump, probes: []*probe{function(t, s, "execute_command", true)}}
	j := &judge{Round: &Round{Stage: s}, plan: p}
	k, err := j.kernel(p.probes, 0)
	if err != nil {
		t.Fatal(err)
	}
	res, err := s.probed(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range p.probes {
		if want, ok := j.of(k, b); !ok || res.got[b] != want || want == 0 {
			t.Errorf("%s: %d entries, the kernel says %d (%t); refused: %v", b.text, res.got[b], want, ok, res.refused)
		}
	}
	if d := res.out.differs(s.plain); d != "" || len(res.wrong) > 0 {
		t.Errorf("%s, %q", d, res.wrong)
	}
	// Were it a program without longjmp, returns would have been lost.
	w := *s.Work
	w.Leaves, s.Work = false, &w
	if res, err = s.probed(p); err != nil || len(res.wrong) != 1 || !strings.Contains(res.wrong[0], "was not seen") {
		t.Errorf("%q, %v", res.wrong, err)
	}
}

// A program is held up in the middle, also the shell that runs others and one whose reading is done
// by Go's scheduler: what runs after it only is counted from there on.
func TestMiddle(t *testing.T) {
	for name, fn := range map[string]string{"shell": "execute_command", "compile": "cmd/compile/internal/ssa.Compile"} {
		s := stageOf(t, name)
		b := function(t, s, fn, false)
		var n [2]uint64
		for i := range n {
			res, err := s.probed(&plan{tactic: arch.TacticJump, late: i == 1, probes: []*probe{b}})
			if err != nil {
				t.Fatal(err)
			}
			if d := res.out.differs(s.plain); d != "" || len(res.wrong)+len(res.refused) > 0 {
				t.Errorf("%s: %s, %q, refused %v", name, d, res.wrong, res.refused)
			}
			n[i] = res.got[b]
		}
		// Only the shell has called it before the middle.
		if n[1] == 0 || (n[0] > n[1]) != (name == "shell") {
			t.Errorf("%s: of %d calls of %s %d came after the middle", name, n[0], fn, n[1])
		}
	}
}

// A probe that can not be armed when the program goes on, since a thread is in the way, is told and
// not compared.
func TestParked(t *testing.T) {
	w := &Work{
		Name: "stand", Path: testprog.Build(t, "stand"), Args: []string{"mask"}, Referee: Kernel,
		Input: func(*Stage, int) ([]byte, error) { return []byte("go 30000\nin\nout\ngo 5\n"), nil },
	}
	s := stage(t, w)
	stand, first := function(t, s, "stand", false), function(t, s, "first", false)
	p := &plan{tactic: arch.TacticJump, late: true, probes: []*probe{stand, first}}
	res, err := s.probed(p)
	if err != nil {
		t.Fatal(err)
	}
	r := &Round{Stage: s, Probes: 2, Armed: 2, Left: map[string]int{}}
	j := &judge{Round: r, plan: p, first: res}
	if err := j.all(); err != nil {
		t.Fatal(err)
	}
	r.bounds(p)
	if !strings.Contains(res.parked[stand], "queued: thread ") || res.parked[first] != "" || res.got[first] != 5 || r.Left[parked] != 1 || r.ByKernel != 1 || !r.OK() {
		t.Errorf("parked %q, counted %v: %s", res.parked, res.got, r)
	}
	if d := res.out.differs(s.plain); d != "" || len(res.wrong) > 0 {
		t.Errorf("%s, %q", d, res.wrong)
	}
	r.Left[parked] = parkedAny + 1
	if r.bounds(p); r.OK() {
		t.Errorf("%d of two probes were parked: %s", r.Left[parked], r)
	}
}

// The same seed gives the same probes.
func TestSeed(t *testing.T) {
	s := &Stage{Work: &Work{Name: "x", Referee: Callgrind}, ran: counts{}}
	o, err := openObject("/proc/self/exe", true)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	o.Name = "x"
	s.Objects = []*Object{o}
	texts := func(seed uint64) (out []string) {
		for _, b := range s.plan(rand.New(rand.NewPCG(seed, 0)), mode{toggle: true}, 40).probes {
			out = append(out, fmt.Sprintf("%s %t %t", b.text, b.toggle, b.half))
		}
		return out
	}
	a, b, c := texts(7), texts(7), texts(8)
	if !slices.Equal(a, b) || slices.Equal(a, c) || len(a) != 40 {
		t.Errorf("%d probes: %q, again %q, with another seed %q", len(a), a, b, c)
	}
}

// What is wrong is found: an output that differs, a count that differs.
func TestDifferences(t *testing.T) {
	plain := &outcome{status: "exit status 0", stdout: "abc", files: map[string]string{"f": "1"}}
	for want, o := range map[string]*outcome{
		"exit status":     {status: "signal: killed", stdout: "abc", files: map[string]string{"f": "1"}},
		"standard output": {status: "exit status 0", stdout: "abd", files: map[string]string{"f": "1"}},
		"file f":          {status: "exit status 0", stdout: "abc", files: map[string]string{"f": "2"}},
		"files":           {status: "exit status 0", stdout: "abc", files: map[string]string{"f": "1", "g": ""}},
		"standard error":  {status: "exit status 0", stderr: "x", stdout: "abc", files: map[string]string{"f": "1"}},
	} {
		if d := o.differs(plain); !strings.HasPrefix(d, want) {
			t.Errorf("%+v: %q, want %q", o, d, want)
		}
	}
	if d := plain.differs(plain); d != "" {
		t.Errorf("no difference: %q", d)
	}
}

func TestReadCallgrind(t *testing.T) {
	text := `version: 1
ob=/usr/bin/x
fn=f
0x10 3 5
0x12 3 5
cob=/lib/y
cfn=g
calls=5 0x40 0
0x12 3 20
ob=/lib/y
fn=g
0x10 0 20
fn=h
0x10 0 2
totals: 32
`
	got, err := readCallgrind(strings.NewReader(text))
	if err != nil || len(got) != 3 || got[place{"x", 0x10}] != 5 || got[place{"x", 0x12}] != 5 || got[place{"y", 0x10}] != 22 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{strings.Replace(text, "32", "33", 1), strings.Replace(text, "0x10 3 5", "0x10 5", 1), ""} {
		if got, err := readCallgrind(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// A probe that is counted otherwise than the referees count makes the round wrong.
func TestJudge(t *testing.T) {
	s := stageOf(t, "sha256sum")
	if err := s.know(); err != nil {
		t.Fatal(err)
	}
	p := s.plan(rand.New(rand.NewPCG(1, 0)), mode{name: "start"}, 30)
	res, err := s.probed(p)
	if err != nil {
		t.Fatal(err)
	}
	lost := 0
	for _, b := range p.probes {
		if n := res.got[b]; n > 10 && !b.ret && !s.object(b.obj).dispatches() && lost == 0 {
			res.got[b], lost = n-1, lost+1
		}
	}
	r := &Round{Stage: s, Left: map[string]int{}}
	j := &judge{Round: r, plan: p, first: res}
	if err := j.all(); err != nil {
		t.Fatal(err)
	}
	if lost != 1 || len(r.Bad) != 1 || !strings.Contains(r.Bad[0], "the kernel says") {
		t.Errorf("%d hits were hidden, found wrong: %q", lost, r.Bad)
	}
}

// A program that asks who handles a signal sees our handlers, and goes another way. The kernel's
// count is ours where they are in the program; a count that is wrong is wrong there too.
func TestSeen(t *testing.T) {
	s := stage(t, &Work{Name: "asks", Path: testprog.Build(t, "asks"), Referee: Kernel})
	handled, unhandled := function(t, s, "handled", false), function(t, s, "unhandled", false)
	reads := function(t, s, "main", false) // memory, for which our handlers come
	reads.count, reads.text = false, reads.text+" a=+0(%sp)"
	p := &plan{tactic: arch.TacticJump, probes: []*probe{handled, unhandled, reads}}
	res, err := s.probed(p)
	if err != nil {
		t.Fatal(err)
	}
	// SIGSEGV, SIGBUS, SIGFPE, SIGILL; the C library tells nothing of two of the 64.
	if n := res.got; n[handled] != 40 || n[unhandled] != 580 || len(res.wrong)+len(res.refused) > 0 {
		t.Errorf("%d handled, %d not; %q, refused %v", n[handled], n[unhandled], res.wrong, res.refused)
	}
	for _, c := range []struct{ hide, seen, bad int }{{0, 2, 0}, {1, 1, 1}} {
		r := &Round{Stage: s, Left: map[string]int{}}
		j := &judge{Round: r, plan: p, first: res}
		res.got[unhandled] -= uint64(c.hide)
		if err := j.all(); err != nil {
			t.Fatal(err)
		}
		if r.Seen != c.seen || len(r.Bad) != c.bad {
			t.Errorf("%d hits hidden: %d seen, want %d; wrong, want %d: %q", c.hide, r.Seen, c.seen, c.bad, r.Bad)
		}
	}
}

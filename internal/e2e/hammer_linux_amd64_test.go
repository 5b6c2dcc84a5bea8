package e2e

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// hammer is a program all of whose instructions are probed while it works.
type hammer struct {
	name  string
	args  []string
	exact string // a command of which two runs do the same; "": none
	busy  string // one that takes a while
	loose string // functions that run as often as its threads happen to wait for each other
}

var hammered = []hammer{
	{"work", []string{"3"}, "go 25", "go 3000", `^(go|work)$`},
	{"vector", nil, "go 25", "go 3000", `^$`},
	{"redzone", nil, "go 50", "go 100000", `^$`},
	{"jmp", nil, "go 40", "go 20000", `^$`},
	{"exc", nil, "go 24", "go 1000", `^$`},
	{"tight", nil, "go 40", "go 300", `^old$`},
	{"sigs", []string{"2"}, "", "go 30000", `^$`},
	{"leaf", []string{"2"}, "", "count", `^$`},
	{"bench", nil, "run bench_push 320 2", "run bench_traced 20000 2", `^([^b]|b[^e])`}, // but bench_*
}

// TestHammer probes every instruction of the functions of programs: all at once, and each
// among few. What a probe counts is what the program counts of its functions, what the next
// instruction of a straight line counts, and what it counts in other company; in a long run
// also what the kernel's own probe counts, which takes a while to go away. The program
// does what it does without probes; its code is then its own.
func TestHammer(t *testing.T) {
	strides := []int{2}
	if long {
		strides = []int{1, 2, 3, 5, 7, 11, 17, 29}
	}
	for i := range hammered {
		h := &hammered[i]
		t.Run(h.name, func(t *testing.T) {
			r := h.start(t)
			if long && h.exact != "" && h.name != "vector" { // where the kernel's change what it counts
				r.compare(t, r.code, arch.TacticUprobe)
				clear(r.covered)
				clear(r.refused)
			}
			for _, n := range strides {
				for k := range n {
					r.round(t, n, k)
				}
			}
			t.Logf("%d instructions, hits compared: %d, by tactic: %v", len(r.code), r.compared, r.tactics)
			for at, why := range r.refused {
				t.Logf("%s+%d %s: %s", at.fn, at.off, at.text, why)
			}
			if len(r.refused)*50 > len(r.code) {
				t.Errorf("%d of %d instructions can not be probed", len(r.refused), len(r.code))
			}
			for _, at := range r.code {
				if !r.covered[at] && r.refused[at] == "" {
					t.Errorf("%s+%d was never probed", at.fn, at.off)
				}
			}
		})
	}
}

// hammering is a program under the hammer.
type hammering struct {
	*hammer
	p        *testprog.Proc
	before   *state
	code     []insn
	grows    map[string]uint64 // what the program counts in an exact command
	next     map[uint64]uint64 // the address after an instruction's
	targets  map[uint64]bool   // where instructions jump to
	want     map[insn]uint64   // runs of an instruction in an exact command, where that is known
	covered  map[insn]bool
	refused  map[insn]string
	tactics  map[arch.Tactic]int
	compared int
}

// start starts a program.
func (h *hammer) start(t *testing.T) *hammering {
	p := aside(t, h.name, h.args...)
	r := &hammering{
		hammer: h, p: p, before: stateOf(t, p.PID), want: map[insn]uint64{}, covered: map[insn]bool{}, targets: map[uint64]bool{}, next: map[uint64]uint64{},
		refused: map[insn]string{}, tactics: map[arch.Tactic]int{},
	}
	own := &inside{path: fmt.Sprintf("/proc/%d/exe", p.PID), starts: true, nops: true}
	for _, a := range own.instructions(t) {
		if !startCode.MatchString(a.fn) {
			r.code = append(r.code, a)
		}
		if m := jumps.FindStringSubmatch(a.text); m != nil {
			to, _ := strconv.ParseUint(m[1], 16, 64)
			r.targets[to] = true
		}
	}
	for i := range len(r.code) - 1 {
		r.next[r.code[i].addr] = r.code[i+1].addr
	}
	r.grows = r.ask(t, h.exact)
	return r
}

// jumps are instructions that go to another in the same file.
var jumps = regexp.MustCompile(`^(?:notrack |bnd )?(?:j\w+|loop\w*)(?:,p[nt])? +([0-9a-f]+) `)

// answering are functions that still run, or have begun to, when the program has answered.
var answering = regexp.MustCompile(`^(_ZL?\d+)?(main|say|report|command)`)

// startCode are functions of the C library in every program, which run before main and after.
var startCode = regexp.MustCompile(`^(_start|_init|_fini|(de)?register_tm_clones|__do_global_dtors_aux|frame_dummy|_dl_relocate_static_pie)`)

// ask has the program do a command and gives what its counts grew by.
func (r *hammering) ask(t *testing.T, command string) map[string]uint64 {
	t.Helper()
	if command == "" || strings.HasPrefix(command, "run ") {
		if command != "" {
			r.p.Ask(command, nil)
		}
		return nil
	}
	before := right(t, r.p, "count")
	return grown(before, right(t, r.p, command))
}

// open makes a Core for the program; done ends it, so that another can be made.
func (r *hammering) open(t *testing.T) (core *kprobes.Core, done func()) {
	t.Helper()
	proc, err := process.Open(r.p.PID)
	if err != nil {
		t.Fatal(err)
	}
	target, err := process.Attach(proc, nil)
	if err == nil {
		core, err = kprobes.Open(target, nil)
	}
	if err != nil {
		t.Fatal(errors.Join(err, proc.Close()))
	}
	return core, func() {
		t.Helper()
		if err := errors.Join(core.Close(nil), proc.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// exactly counts the runs of instructions in an exact command.
func (r *hammering) exactly(t *testing.T, code []insn, tactic arch.Tactic) map[insn]uint64 {
	t.Helper()
	core, done := r.open(t)
	evs := r.add(t, core, code, tactic)
	if got := r.ask(t, r.exact); !maps.Equal(got, r.grows) {
		t.Errorf("%d probes: the program counted %v, without them %v", len(evs), got, r.grows)
	}
	done()
	out := map[insn]uint64{}
	for at, e := range evs {
		c := core.Counts(e)
		if c.Missed != 0 || c.Lost != 0 {
			t.Errorf("%s+%d %s, %s: %+v", at.fn, at.off, at.text, tacticOf(e), c)
		}
		out[at] = c.Hits
		r.covered[at] = true
		r.tactics[tacticOf(e)]++
	}
	return out
}

// add puts a counter at each of the instructions. What is refused alone too is noted.
func (r *hammering) add(t *testing.T, core *kprobes.Core, code []insn, tactic arch.Tactic) map[insn]*kprobes.Event {
	t.Helper()
	var defs []*event.Def
	for _, a := range code {
		d, err := event.Parse(fmt.Sprintf("p:%s 0x%x", eventName(a.addr), a.addr))
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	out := map[insn]*kprobes.Event{}
	evs, err := core.Add(defs, &kprobes.AddOptions{Tactic: tactic, Count: true})
	switch {
	case err == nil:
		for i, e := range evs {
			out[code[i]] = e
		}
	case len(code) == 1:
		if !padding(code[0], err) {
			r.refused[code[0]] = err.Error()
		}
		r.covered[code[0]] = true
	default:
		for _, part := range [][]insn{code[:len(code)/2], code[len(code)/2:]} {
			maps.Copy(out, r.add(t, core, part, tactic))
		}
	}
	return out
}

// padding says whether an instruction is refused because it belongs to no function.
func padding(a insn, err error) bool {
	return (strings.Contains(a.text, "nop") || a.text == "xchg   %ax,%ax") && regexp.MustCompile(`holds no instruction|no function is known`).MatchString(err.Error())
}

// compare counts the runs of instructions and compares them with what is known.
func (r *hammering) compare(t *testing.T, code []insn, tactic arch.Tactic) {
	t.Helper()
	loose := regexp.MustCompile(r.loose)
	var last insn
	var straight bool // last goes on to the next instruction, and to nothing else
	got := r.exactly(t, code, tactic)
	for _, at := range code {
		hits, probed := got[at]
		if !probed || loose.MatchString(at.fn) || answering.MatchString(at.fn) {
			straight = false
			continue
		}
		if calls, counted := r.grows[at.fn]; counted && at.off == 0 && hits != calls {
			t.Errorf("%d probes: %s: %d hits, the program counted %d", len(code), at.fn, hits, calls)
		}
		if straight && r.next[last.addr] == at.addr && !r.targets[at.addr] && hits != got[last] {
			t.Errorf("%d probes: %s+%d %s: %d hits, %d of %s before it", len(code), at.fn, at.off, at.text, hits, got[last], last.text)
		}
		if want, known := r.want[at]; known && hits != want {
			t.Errorf("%d probes: %s+%d %s: %d hits, in other company %d", len(code), at.fn, at.off, at.text, hits, want)
		}
		r.want[at] = hits
		r.compared++
		last, straight = at, !transfers.MatchString(at.text)
	}
}

// transfers are instructions after which another may run than the next.
var transfers = regexp.MustCompile(`^(notrack |bnd |rep.* )?(j|call|ret|loop|ud2|hlt|syscall)`)

// round probes every nth instruction from the kth on: first while the program waits, so that
// all hits are known, then while it works.
func (r *hammering) round(t *testing.T, n, k int) {
	t.Helper()
	var code []insn
	for i := k; i < len(r.code); i += n {
		code = append(code, r.code[i])
	}
	if r.exact != "" {
		r.compare(t, code, "")
	}
	r.p.Send(r.busy)
	core, done := r.open(t)
	for at, e := range r.add(t, core, code, "") {
		r.covered[at] = true
		r.tactics[tacticOf(e)]++
	}
	done()
	if line := r.p.Line(); strings.Contains(line, `"bad":`) && !strings.Contains(line, `"bad":0`) {
		t.Errorf("1 in %d from %d: the program says %s", n, k, line)
	}
	r.before.same(t)
	if t.Failed() {
		t.FailNow() // what follows would only say so again
	}
}

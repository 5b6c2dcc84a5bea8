package e2e

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
)

// tailing are the functions of the program tails, with the returns in so many calls; all but
// one have exits that do not tell their values.
var tailing = []struct {
	name    string
	returns func(n map[string]uint64, i uint64) uint64 // of calls with that name's count, in i rounds
}{
	{"direct", all},
	{"plt", all},
	{"indirect", all},
	{"outer", all},
	{"inner", all},
	{"again", func(n map[string]uint64, _ uint64) uint64 { return n["again"] }}, // nine in ten end in a jump to itself
	{"ping", func(n map[string]uint64, _ uint64) uint64 { return n["ping"] }},
	{"pong", func(n map[string]uint64, _ uint64) uint64 { return n["pong"] }},
	{"thrower", func(n map[string]uint64, i uint64) uint64 { return i - n["caught"] }},
	{"watched", all},
	{"switching", all},
	{"onsignal", all},
	{"dying", func(_ map[string]uint64, i uint64) uint64 { return i / 32 }},
}

func all(_ map[string]uint64, i uint64) uint64 { return i }

// tailProbes are return probes on all of them.
func tailProbes() []string {
	args := []string{"-v"}
	for _, f := range tailing {
		args = append(args, fmt.Sprintf("r:%s %s ret=$retval v=$arg1 w=$arg2", f.name, f.name))
	}
	return args
}

// Functions that end in jumps to others, directly, through the PLT, by a virtual call, to
// themselves, to one another; that exceptions and dying threads leave; that run on other
// stacks and as handlers of signals: values and counts are the program's own, and who walks
// the stack sees what is there without probes.
func TestTailCalls(t *testing.T) {
	const parts, part = 10, 96 // of as many rounds: what comes at once fits where records wait for a reader that gets no CPU
	const rounds = parts * part
	p := program(t, "tails")
	before := right(t, p, "same")
	s := trace(t, p.PID, tailProbes()...)
	var n map[string]uint64
	for i := range parts {
		n = right(t, p, fmt.Sprintf("go %d", part))
		within(t, "the lines of its rounds", func() bool { return strings.Count(s.out.String(), ": direct: ") == part*(i+1) })
	}
	if during := right(t, p, "same"); during["frames"] != before["frames"] {
		t.Errorf("backtrace sees %x, without probes %x", during["frames"], before["frames"])
	}
	r := s.end()
	r.whole(t)
	for _, f := range tailing {
		want, calls := f.returns(n, rounds), n[f.name]
		if f.name == "watched" {
			want, calls = rounds+1, rounds+1
		}
		if got := r.totals[f.name]; got.hits != want || got.missed+got.lost+got.active != 0 || got.unwound != calls-want {
			t.Errorf("%s: %+v, %d calls, %d returns", f.name, got, calls, want)
		}
		if !strings.Contains(r.stderr, f.name+" has returns=trampoline") {
			t.Errorf("%s returns at its exits", f.name)
		}
	}
	checkTails(t, r)
	if strings.Contains(r.stderr, "kretprobe BUG") {
		t.Error(r.stderr)
	}
	if n := right(t, p, "same"); n["frames"] != before["frames"] {
		t.Errorf("backtrace sees %x, before %x", n["frames"], before["frames"])
	}
}

// checkTails holds the results in the lines to what the functions are to give.
func checkTails(t *testing.T, r result) {
	t.Helper()
	for _, l := range r.lines {
		v, w, ret := l.number(t, "v"), l.number(t, "w"), l.number(t, "ret")
		var want uint64
		switch l.event {
		case "direct":
			want = 3 * (v + 1)
		case "plt":
			want = 4711
		case "indirect":
			want = 7 * v
		case "outer":
			want = 3 * (v + 3)
		case "inner":
			want = 3 * (v + 2)
		case "again":
			want = w + v*(v+1)/2
		case "watched", "switching", "dying":
			want = 3 * v
		default:
			continue
		}
		if ret != want {
			t.Fatalf("%s: %v, want %d", l.event, l, want)
		}
	}
}

// The programs whose functions are left by exceptions, longjmp and dying threads, and are
// entered by two processes, all by trampoline: also where their exits are all known.
func TestTrampolineLeft(t *testing.T) {
	for _, c := range []struct {
		name, program, function, round string
		returned, unwound              []string
	}{
		{"exceptions", "exc", "Walker::descend", "go 2000", []string{"returned"}, []string{"unwound"}},
		{"longjmp", "jmp", "descend", "go 2000", []string{"returned"}, []string{"jumped"}},
		{"threads", "cancel", "inside", "go 300", []string{"returned"}, []string{"cancelled", "exited"}},
		{"fork", "forker", "forking", "go 10", []string{"forking", "forking"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := program(t, c.program)
			s := trace(t, p.PID, "--stat", "--trampoline", "r:out "+c.function+" $retval")
			n := right(t, p, c.round)
			r := s.end()
			sum := func(names []string) (v uint64) {
				for _, name := range names {
					v += n[name]
				}
				return v
			}
			out := r.totals["out"]
			exact := out.hits == sum(c.returned) && out.unwound+out.active == sum(c.unwound)
			if c.name == "threads" && out.missed > 0 { // libgcc came, and the tracer was too slow for it
				exact = out.hits <= sum(c.returned) && out.hits+out.unwound+out.active+out.missed == n["inside"]
			}
			if !exact || out.missed != 0 && c.name != "threads" || out.lost != 0 {
				t.Errorf("%+v, the program: %v", out, n)
			}
			if !strings.Contains(r.stderr, "returns=trampoline") || strings.Contains(r.stderr, "BUG") {
				t.Error(r.stderr)
			}
			right(t, p, c.round)
		})
	}
}

// Calls return twice: the second time no call of a probe belongs to it. The program goes on, and
// the summary says so in the kernel's words (kretprobe BUG!).
func TestTrampolineBug(t *testing.T) {
	p := program(t, "tails")
	s := trace(t, p.PID, "--stat", "--trampoline", "r:twice twice $retval", "r:direct direct $retval")
	n := right(t, p, "twice 5")
	right(t, p, "go 10")
	r := s.end()
	if out := r.totals["twice"]; out.hits != n["twice"] || out.unwound+out.active+out.missed != 0 {
		t.Errorf("%+v, the program: %v", out, n)
	}
	bug := regexp.MustCompile(`(?m)^kprobe: kretprobe BUG!: Processing kretprobe [0-9a-f]{16} @ [0-9a-f]{16} \((\w+): (\d+) returns belong to no call\)$`)
	if m := bug.FindAllStringSubmatch(r.stderr, -1); len(m) != 1 || m[0][1] != "twice" || m[0][2] != "5" {
		t.Errorf("%q in %s", m, r.stderr)
	}
	right(t, p, "twice 5")
}

// holding attaches to a program, with a return probe on a function in which calls stand.
func holding(t *testing.T) (*testprog.Proc, *kprobes.Core, []*kprobes.Event) {
	t.Helper()
	p := program(t, "tails")
	core := open(t, p)
	return p, core, addReturns(t, core, "r:holding holding $retval", "r:watched watched $retval")
}

func addReturns(t *testing.T, core *kprobes.Core, texts ...string) []*kprobes.Event {
	t.Helper()
	evs, err := core.Add(parsed(t, texts...), &kprobes.AddOptions{Count: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range evs {
		if how, why := e.Returns(); how != kprobes.ReturnsTrampoline || why == nil {
			t.Fatalf("%s: %s, %v", e.Name, how, why)
		}
	}
	return evs
}

// Calls are in progress when their probe is taken out, and when another comes: they return in
// silence, and the new probe counts only its own.
func TestTrampolineRemovedInCall(t *testing.T) {
	p, core, evs := holding(t)
	right(t, p, "hold 4")
	if err := core.Remove(evs[:1]); err != nil {
		t.Fatal(err)
	}
	again := addReturns(t, core, "r:again holding $retval")
	right(t, p, "release")
	right(t, p, "hold 3")
	n := right(t, p, "release")
	right(t, p, "same")
	if n["holding"] != 6+5 {
		t.Errorf("%v", n)
	}
	if c := core.Counts(evs[0]); c.Hits != 0 {
		t.Errorf("a probe that was taken out has seen %d returns", c.Hits)
	}
	if strays := core.Counts(again[0]).Strays; strays != 0 {
		t.Errorf("%d returns are told to belong to no call", strays)
	}
	if err := core.Close(nil); err != nil {
		t.Fatal(err)
	}
	// The calls of deeper that began after the probe was taken out and before the next came are none of its.
	if c := core.Counts(again[0]); c.Hits < 5 || c.Hits > 7 || c.Missed+c.Unwound+c.Active != 0 {
		t.Errorf("%+v", c)
	}
	intact(t, p.PID)
	right(t, p, "go 100")
}

// A second probe of the function comes and goes while threads return from it all the time: each
// call and each return is the first probe's too, once.
func TestTrampolineChanges(t *testing.T) {
	p := program(t, "tails")
	core := open(t, p)
	whole := addReturns(t, core, "r:whole spinning $retval")
	right(t, p, "spin 2")
	for range 200 {
		if err := core.Remove(addReturns(t, core, "r:part spinning $retval")); err != nil {
			t.Fatal(err)
		}
	}
	n := right(t, p, "rest")
	if c := core.Counts(whole[0]); c.Hits != n["spinning"] || c.Unwound+c.Active+c.Missed != 0 {
		t.Errorf("%+v, the program: %v", c, n)
	}
}

// Everything is taken out while calls are in progress, one of them on a stack in shared memory.
func TestTrampolineClosedInCall(t *testing.T) {
	p, core, evs := holding(t)
	right(t, p, "hold 4")
	if err := core.Close(nil); err != nil {
		t.Fatal(err)
	}
	if c := core.Counts(evs[0]); c.Active != 4 || c.Hits+c.Unwound+c.Missed != 0 {
		t.Errorf("%+v", c)
	}
	intact(t, p.PID)
	right(t, p, "release")
	right(t, p, "go 100")
}

// A tracer is killed while calls are in progress, one of them on a stack in shared memory. The
// program goes on, and kprobe detach restores it, before the calls return and after.
func TestTrampolineKilledInCall(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			p := program(t, "tails")
			was := right(t, p, "same")
			k := &session{t: t, pid: p.PID}
			args := append(tailProbes(), "r:holding holding $retval")
			k.start(command(t, append([]string{"trace", "-p", fmt.Sprint(p.PID), "--alone", "--stat"}, args...)...))
			k.armed()
			right(t, p, "go 100")
			right(t, p, "hold 4")
			if err := k.cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-k.done
			if n := right(t, p, "same"); n["frames"] != was["frames"] {
				t.Errorf("backtrace sees %x, before %x", n["frames"], was["frames"])
			}
			right(t, p, "go 100")
			if after {
				right(t, p, "release")
			}
			if o := run(t, command(t, "detach", "-p", fmt.Sprint(p.PID))); o.code != 0 {
				t.Fatal(o)
			}
			intact(t, p.PID)
			if !after {
				right(t, p, "release")
			}
			if n := right(t, p, "same"); n["frames"] != was["frames"] {
				t.Errorf("backtrace sees %x, before %x", n["frames"], was["frames"])
			}
			right(t, p, "go 100")
		})
	}
}

// What would be harmed by a replaced return address is refused, with the reason.
func TestTrampolineRefused(t *testing.T) {
	for _, c := range []struct{ program, probe, why string }{
		{"tails", "r libc.so.6:__sigsetjmp", "looks at its return address"},
		{"tails", "r libc.so.6:swapcontext", "looks at its return address"},
		{"tails", "r libc.so.6:dlsym", "looks at its return address"},
		{"tails", "r _start", "not on top of the stack"},
		{"tails", "r libgcc_s.so.1:_Unwind_RaiseException", "looks at return addresses"},
	} {
		p := program(t, c.program)
		fails(t, exec.Command(command(t).Path, "trace", "-p", fmt.Sprint(p.PID), "--trampoline", "--duration", "10s", c.probe), 1, "refused", c.why)
	}
}

// The returns of all functions of redis-server are counted at once, more than a thousand of them
// by trampoline: its answers are right under load, and none is missed.
func TestAllReturnsOfRedis(t *testing.T) {
	const n = 5000
	r := startRedis(t, redisPath(t))
	s := trace(t, r.proc.PID, "--stat", "--counters", "-v", "r *")
	r.ask("CONFIG RESETSTAT")
	r.load(n, "-r", "1000")
	if got := r.ask("SET probe value"); got != "OK" {
		t.Errorf("set: %q", got)
	}
	if got := r.ask(`EVAL "return 'val' .. 'ue'" 0`); got != "value" {
		t.Errorf("script: %q", got)
	}
	calls := r.calls()
	out := s.end()
	out.counted(t, "r_processCommand_0", sum(calls)+1, "jump")
	stubs := strings.Count(out.stderr, " returns=trampoline\n")
	if len(out.totals) < 3000 || stubs < 1000 || out.hit() < 150 {
		t.Errorf("%d functions armed, %d by trampoline, %d hit", len(out.totals), stubs, out.hit())
	}
	for name, c := range out.totals {
		if c.missed > 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if strings.Contains(out.stderr, "BUG") {
		t.Error("a return belongs to no call")
	}
	out.refused(t, 1)
	r.load(n)
}

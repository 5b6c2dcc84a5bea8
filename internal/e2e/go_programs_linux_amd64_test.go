package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// goBuilds are the ways in which a Go program comes.
var goBuilds = []struct {
	name  string
	flags []string
}{
	{"plain", nil},
	{"stripped", []string{"-ldflags=-s -w"}},
	{"pie", []string{"-buildmode=pie"}},
	{"cgo", []string{"CGO_ENABLED=1", "-ldflags=-linkmode=external"}},
}

// hardGo starts a Go program whose collector hardly ever rests.
func hardGo(t testing.TB, name string, flags []string, args ...string) *testprog.Proc {
	t.Helper()
	path := testprog.Build(t, name, flags...)
	t.(*testing.T).Setenv("GOGC", "5")
	p := testprog.Start(t, path, args...)
	if name == "goserver" {
		p.Line() // its address
	}
	return p
}

// grown gives what counts grew by.
func grown(before, after map[string]uint64) map[string]uint64 {
	d := map[string]uint64{}
	for k := range after {
		d[k] = after[k] - before[k]
	}
	return d
}

// entered checks that every entry of a return-probed function is accounted for: calls is
// how often the program says that it was called, left how often by a panic.
func (r *result) entered(t testing.TB, event string, calls, left uint64) {
	t.Helper()
	c, ok := r.totals[event]
	switch {
	case !ok:
		t.Fatalf("no summary of %s: %v", event, r.outcome)
	case c.missed != 0 || c.active != 0:
		t.Errorf("%s: %+v: want none missed, none active", event, c)
	case c.hits != calls-left || c.unwound != left:
		t.Errorf("%s: %+v: want %d returns, %d unwound", event, c, calls-left, left)
	}
}

// serverRequests makes more than 300,000 calls, about 90 each; a long run ten million.
func serverRequests() int {
	if long {
		return 120_000
	}
	return 3600
}

// TestGoServer is a net/http server whose handlers recurse, move their stacks, panic and
// recover, under the collector and the profiler: every call is accounted for.
func TestGoServer(t *testing.T) {
	for _, b := range goBuilds {
		t.Run(b.name, func(t *testing.T) {
			p := hardGo(t, "goserver", b.flags)
			before := right(t, p, "load 50 4")
			s := trace(t, p.PID, "--stat", "r:handle main.Handle kind=$arg3:gostring length=$retval",
				"r:walk main.Walk n=$arg1 sum=$retval", "r:climb main.Climb n=$arg1 fail=$arg2 top=$retval", "p:walks main.Walk n=$arg1")
			right(t, p, "profile")
			const parts = 10
			for range parts {
				right(t, p, fmt.Sprintf("load %d 4", serverRequests()/parts))
				right(t, p, "gc")
			}
			n := grown(before, right(t, p, "counts"))
			r := s.end()
			r.entered(t, "handle", n["main.Handle"], 0)
			r.entered(t, "walk", n["main.Walk"], 0)
			r.entered(t, "climb", n["main.Climb"], n["climb_unwound"])
			r.counted(t, "walks", n["main.Walk"], "jump")
			if calls := n["main.Walk"] + n["main.Climb"]; calls < uint64(84*serverRequests()) {
				t.Errorf("%d calls for %d requests", calls, serverRequests())
			}
			if n["recovered"] == 0 || n["climb_unwound"] == 0 {
				t.Errorf("the server did not panic: %v", n)
			}
			right(t, p, "load 100 4")
			p.Quit(nil)
		})
	}
}

// goLine is a line of a trace as JSON.
type goLine struct {
	Event string
	GoID  uint64
	Args  map[string]any
}

func (l *goLine) num(t testing.TB, arg string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(fmt.Sprint(l.Args[arg]), 0, 64)
	if err != nil {
		t.Fatalf("%s of %+v: %v", arg, l, err)
	}
	return n
}

// goLines parses the lines that a trace has printed, by event.
func goLines(t testing.TB, out string) map[string][]goLine {
	t.Helper()
	m := map[string][]goLine{}
	for text := range strings.Lines(out) {
		var l goLine
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&l); err != nil {
			t.Fatalf("line %q: %v", text, err)
		}
		m[l.Event] = append(m[l.Event], l)
	}
	return m
}

// TestGoValues compares values at entry and return, strings and goroutine ids.
func TestGoValues(t *testing.T) {
	p := hardGo(t, "goserver", []string{"-ldflags=-s -w"})
	before := right(t, p, "load 10 2")
	s := trace(t, p.PID, "--format", "json", "p:kprobes/in main.Handle kind=$arg3:gostring n=$arg5:u64",
		"r:kprobes/handle main.Handle kind=$arg3:gostring n=$arg5:u64 length=$retval:u64", "r:kprobes/walk main.Walk n=$arg1:u64 sum=$retval:u64")
	n := grown(before, right(t, p, "load 120 3"))
	lines := goLines(t, s.end().stdout)
	if len(lines["kprobes/in"]) != 120 || len(lines["kprobes/handle"]) != 120 || uint64(len(lines["kprobes/walk"])) != n["main.Walk"] {
		t.Errorf("lines: in %d, handle %d, walk %d; the program counted %v", len(lines["kprobes/in"]), len(lines["kprobes/handle"]), len(lines["kprobes/walk"]), n)
	}
	kinds := map[string]int{}
	for _, l := range lines["kprobes/in"] {
		kinds[fmt.Sprint(l.Args["kind"])]++
	}
	if kinds["walk"] != 40 || kinds["panic"] != 40 || kinds["mix"] != 40 {
		t.Errorf("kinds: %v, want 40 of each", kinds)
	}
	for _, l := range lines["kprobes/walk"] {
		if n := l.num(t, "n"); l.num(t, "sum") != n*(n+1)/2 {
			t.Fatalf("Walk: %+v", l)
		}
	}
	for _, l := range lines["kprobes/handle"] {
		n, length := l.num(t, "n"), l.num(t, "length")
		want := uint64(len(strconv.FormatUint(n*(n+1)/2, 10)))
		if l.Args["kind"] == "panic" {
			want = uint64(len(fmt.Sprintf("recovered %d", n)))
		}
		if length != want {
			t.Fatalf("Handle: %+v: want length %d", l, want)
		}
	}
}

// TestGoroutineIDs compares the goroutine's id in each record with its own view.
func TestGoroutineIDs(t *testing.T) {
	p := hardGo(t, "gohard", nil, "6")
	s := trace(t, p.PID, "--format", "json", "p:kprobes/leaf main.Leaf id=$arg1:u64 i=$arg2:u64", "r:kprobes/left main.Leaf id=$arg1:u64 i=$arg2:u64 v=$retval:u64")
	right(t, p, "go 300")
	lines := goLines(t, s.end().stdout)
	for _, event := range []string{"kprobes/leaf", "kprobes/left"} {
		if len(lines[event]) != 6*300 {
			t.Errorf("%s: %d lines, want 1800", event, len(lines[event]))
		}
		for _, l := range lines[event] {
			if l.GoID == 0 || l.num(t, "id") != l.GoID {
				t.Fatalf("%s: %+v", event, l)
			}
		}
	}
	for _, l := range lines["kprobes/left"] {
		if l.num(t, "v") != 3*l.num(t, "id")+5*l.num(t, "i")+1 {
			t.Fatalf("Leaf: %+v", l)
		}
	}
}

// TestGoFaultsAndPanics: nil dereferences in displaced instructions are the panics that
// they are without probes; calls that panics leave are told apart from returns.
func TestGoFaultsAndPanics(t *testing.T) {
	for _, b := range goBuilds {
		t.Run(b.name, func(t *testing.T) {
			p := hardGo(t, "gohard", b.flags, "4")
			before := right(t, p, "count")
			s := trace(t, p.PID, "--counters", "p:loads main.Load", "r:load main.Load", "r:grow main.Grow",
				"r:fall main.Fall", "r:catch main.Catch", "p:inner main.Grow+0x0")
			right(t, p, "profile")
			right(t, p, "spin 2")
			right(t, p, "go 5000")
			right(t, p, "gc")
			n := grown(before, right(t, p, "go 5000"))
			r := s.end()
			r.counted(t, "loads", n["main.Load"], "jump")
			r.counted(t, "inner", n["main.Grow"], "jump")
			r.entered(t, "load", n["main.Load"], n["nils"])
			r.entered(t, "grow", n["main.Grow"], 0)
			r.entered(t, "fall", n["main.Fall"], n["main.Fall"])
			r.entered(t, "catch", n["main.Catch"], 0)
			if n["nils"] != 10_000 {
				t.Errorf("%d nil dereferences, want 10000", n["nils"])
			}
			right(t, p, "stop")
		})
	}
}

// hammers is how often TestGoHammer arms and disarms. Chase begins with loads of three
// bytes, between which the CPU waits: goroutines are often parked before the second, inside
// the bytes of a jump.
const hammers = 16

// TestGoHammer arms and disarms while goroutines are preempted anywhere, also inside the
// bytes that a jump takes: the stacks of all of them tell, in a stripped program too.
func TestGoHammer(t *testing.T) {
	for _, b := range goBuilds[:2] {
		t.Run(b.name, func(t *testing.T) {
			p := hardGo(t, "gohard", b.flags, "2")
			before := stateOf(t, p.PID)
			right(t, p, "profile")
			right(t, p, "spin 5")
			var hits uint64
			for i := range hammers / 2 {
				kinds := []string{"p:at main.Leaf", "r:at main.Leaf"}
				o := run(t, command(t, "trace", "-p", strconv.Itoa(p.PID), "--counters", "--duration", "15ms", kinds[i%2], "p:chase main.Chase", "r:grow main.Grow", "r:load main.Load"))
				if o.code != 0 {
					t.Fatalf("round %d: %v", i, o)
				}
				hits += totals(o.stderr)["at"].hits
				if i%5 == 0 {
					right(t, p, "go 200")
				}
			}
			right(t, p, "stop")
			if hits == 0 {
				t.Error("no probe was ever hit")
			}
			right(t, p, "go 1000")
			before.same(t)
			p.Quit(nil)
		})
	}
}

// TestGoPreemptedInside arms probes so that their jumps cover the instructions at which
// goroutines have been preempted: Chase waits for memory at each of its loads, of three
// bytes, and many goroutines are parked there at any time, with that address on their
// stacks. Such a probe has to wait until they have gone on, or is refused. It stands until
// each of them has run again.
func TestGoPreemptedInside(t *testing.T) {
	p := hardGo(t, "gohard", nil, "2")
	before := stateOf(t, p.PID)
	right(t, p, "spin 8")
	armed := 0
	for i := range 3 {
		for load := range 6 {
			o := run(t, command(t, "trace", "-p", pid(p), "--counters", "--duration", "150ms", fmt.Sprintf("p:chase main.Chase+%d", 3*load)))
			switch {
			case o.code == 0:
				armed++
			case !strings.Contains(o.stderr, "a thread is in the code that would change"):
				t.Fatalf("round %d, load %d: %v", i, load, o)
			}
		}
	}
	if armed == 0 {
		t.Error("no probe was armed in 18 tries")
	}
	right(t, p, "stop")
	right(t, p, "go 1000")
	before.same(t)
	p.Quit(nil)
}

// goLeftOut is a line that tells which function of a pattern is not probed.
var goLeftOut = regexp.MustCompile(`(?m)^kprobe: (\S+) is left out: (.*)$`)

// TestGoRuntime probes every function of the Go runtime that is not on the blacklist, under
// the collector, the profiler, preemption and faults.
func TestGoRuntime(t *testing.T) {
	for _, kind := range []string{"p", "r"} {
		t.Run(kind, func(t *testing.T) {
			p := hardGo(t, "gohard", []string{"-ldflags=-s -w"}, "4")
			s := trace(t, p.PID, "--counters", "-v", kind+" runtime.*")
			right(t, p, "profile")
			right(t, p, "spin 3")
			for range 3 {
				right(t, p, "go 700")
				right(t, p, "gc")
			}
			right(t, p, "stop")
			r := s.end()
			if len(r.totals) < 900 {
				t.Errorf("%d functions probed: %v", len(r.totals), r.outcome)
			}
			for _, m := range goLeftOut.FindAllStringSubmatch(r.stderr, -1) {
				if listed[m[1]] != strings.Contains(m[2], "is on the blacklist") {
					t.Errorf("%s: on the list: %v; left out: %s", m[1], listed[m[1]], m[2])
				}
			}
			if kind == "p" {
				busy(t, &r)
			}
			right(t, p, "go 100")
			p.Quit(nil)
		})
	}
}

// busy checks that the functions were hit that make the runtime hard to probe.
func busy(t testing.TB, r *result) {
	t.Helper()
	for _, f := range []string{
		"mallocgc", "memmove", "schedule", "newstack", "copystack", "findfunc", "morestack", "mcall", "gogo",
		"systemstack", "sighandler", "sigprof", "sigpanic", "gopanic", "casgstatus", "scanstack", "futex", "nanotime1",
	} {
		if c := r.totals["p_runtime_"+f+"_0"]; c.hits == 0 || c.tactic != "jump" {
			t.Errorf("runtime.%s: %+v", f, c)
		}
	}
}

// listed are the functions of the blacklist that gohard has.
var listed = map[string]bool{
	"runtime.goexit": true, "runtime.systemstack_switch": true, "runtime.asyncPreempt": true, "runtime.sigtramp": true,
	"runtime.cgoSigtramp": true, "runtime.sigtrampgo": true, "runtime.sigfwd": true, "runtime.sigfwdgo": true,
	"runtime.badsignal": true, "runtime.sigreturn__sigaction": true, "runtime.rt0_go": true, "runtime.settls": true,
	"runtime.sigprofNonGo": true, "runtime.sigprofNonGoWrapper": true,
}

// TestBlacklist: each function answers why it is not probed, and the program is untouched.
func TestBlacklist(t *testing.T) {
	p := program(t, "gohard")
	before := stateOf(t, p.PID)
	for name := range listed {
		fails(t, command(t, "trace", "-p", strconv.Itoa(p.PID), "p "+name), 1, name+" is on the blacklist: ", "invalid argument")
	}
	for _, name := range []string{"_rt0_amd64", "_rt0_amd64_linux", "runtime.sigtramp+9"} {
		fails(t, command(t, "trace", "-p", strconv.Itoa(p.PID), "p "+name), 1, " is on the blacklist: ", "invalid argument")
	}
	before.same(t)
	right(t, p, "go 10")
	c := program(t, "work", "1")
	for _, place := range []string{"libc.so.6:__restore_rt", "[vdso]:__vdso_gettimeofday", "linux-vdso.so.1:__vdso_time"} {
		fails(t, command(t, "trace", "-p", strconv.Itoa(c.PID), "p "+place), 1, " is on the blacklist: ", "invalid argument")
	}
}

// TestGoFromItsStart probes a program before it has a goroutine.
func TestGoFromItsStart(t *testing.T) {
	for _, b := range goBuilds {
		t.Run(b.name, func(t *testing.T) {
			cmd := command(t, "trace", "--counters", "p:init runtime.schedinit", "p:main main.main", "r:leaf main.Leaf", "r:fall main.Fall",
				"--", testprog.Build(t, "gohard", b.flags...), "3")
			cmd.Stdin = strings.NewReader("go 100\nquit\n")
			o := run(t, cmd)
			r := result{outcome: o, totals: totals(o.stderr)}
			if o.code != 0 || !strings.Contains(o.stdout, `"bad":0`) {
				t.Fatal(o)
			}
			r.counted(t, "init", 1, "jump")
			r.counted(t, "main", 1, "jump")
			r.counted(t, "leaf", 300, "jump")
		})
	}
}

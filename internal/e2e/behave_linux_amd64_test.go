package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/testprog"
)

// tactics that a probe can be told to take; "" is the best that is safe.
var tactics = []string{"", "boost", "step"}

// withTactic is a trace of probes by a tactic.
func withTactic(tactic string, probes ...string) []string {
	if tactic == "" {
		return probes
	}
	return append([]string{"--tactic", tactic}, probes...)
}

// want is the tactic that the summary must name.
func want(tactic string) string {
	if tactic == "" {
		return "jump"
	}
	return tactic
}

// everyTactic runs a program once for each tactic.
func everyTactic(t *testing.T, f func(t *testing.T, tactic string)) {
	for _, tactic := range tactics {
		t.Run(want(tactic), func(t *testing.T) { f(t, tactic) })
	}
}

// number reads a value of a trace line.
func (l line) number(t testing.TB, arg string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(l.args[arg], 0, 64)
	if err != nil {
		s, serr := strconv.ParseInt(l.args[arg], 0, 64)
		if serr != nil {
			t.Fatalf("%s=%q in %+v: %v", arg, l.args[arg], l, err)
		}
		v = uint64(s)
	}
	return v
}

// of gives the lines of an event.
func (r result) of(event string) (out []line) {
	for _, l := range r.lines {
		if l.event == event {
			out = append(out, l)
		}
	}
	return out
}

// leafProbes see nine values live across a leaf in caller-saved registers.
var leafProbes = []string{"p:a leaf $comm a=%di", "r:b leaf $arg1 v=%dx"}

// Live registers, and a count that is the program's own: the probes are there from its first
// instruction to its last.
func TestLiveRegisters(t *testing.T) {
	o := runLeaf(t, command(t, append(append([]string{"trace", "--stat"}, leafProbes...), "--", testprog.Build(t, "leaf"), "2")...))
	if o.code != 0 {
		t.Fatal(o)
	}
	n := lastCounts(t, o.stdout)
	if n["bad"] != 0 || n["leaf"] == 0 {
		t.Errorf("%v", n)
	}
	r := result{outcome: o, totals: totals(o.stderr)}
	r.counted(t, "a", n["leaf"], "jump")
	r.counted(t, "b", n["leaf"], "jump")
}

// The same at breakpoints, which take a program that runs: the count lies between those that
// it told after they came and before they went, and before they came and after they went.
func TestLiveRegistersAtBreakpoints(t *testing.T) {
	for _, tactic := range []string{"boost", "step"} {
		t.Run(tactic, func(t *testing.T) {
			p := program(t, "leaf", "2")
			before := right(t, p, "count")
			s := trace(t, p.PID, append([]string{"--stat"}, withTactic(tactic, leafProbes...)...)...)
			armed := right(t, p, "count")
			late := armed
			within(t, "rounds at breakpoints", func() bool {
				late = right(t, p, "count")
				return late["rounds"] > armed["rounds"]+5
			})
			r := s.end()
			after := right(t, p, "count")
			for _, e := range []string{"a", "b"} {
				n := r.totals[e]
				// The program counts a round of 257 calls when it is over: each of the two
				// threads may have begun one before the probes were there, and be in one in the end.
				if n.hits+2*257 < late["leaf"]-armed["leaf"] || n.hits > after["leaf"]-before["leaf"]+2*257 || n.tactic != tactic {
					t.Errorf("%s: %+v, the program before %v, armed %v, late %v, after %v", e, n, before, armed, late, after)
				}
			}
		})
	}
}

// runLeaf lets leaf work for a few rounds under the command.
func runLeaf(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs locked
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	var last string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		last = lines.Text()
		n := map[string]uint64{}
		if err := json.Unmarshal([]byte(last), &n); last != "ready" && err != nil {
			t.Fatalf("%q: %v", last, err)
		}
		if n["rounds"] > 5 {
			in.Close()
		} else if _, err := io.WriteString(in, "count\n"); err != nil {
			t.Fatal(err)
		}
	}
	return outcomeOf(t, cmd.Wait(), last, errs.String())
}

// The bytes below the stack pointer, and the flags.
func TestRedZone(t *testing.T) {
	everyTactic(t, func(t *testing.T, tactic string) {
		p := program(t, "redzone")
		s := trace(t, p.PID, withTactic(tactic, "p:a redzone i=%di top=+0(%sp):x64",
			place(t, p.Path, "p:b", "redzone_mid", "i=%di below=-8(%sp):u64"), place(t, p.Path, "p:c", "redzone_flags", "v=%ax"), "r:d redzone ret=$retval i=$arg1")...)
		n := right(t, p, "go 3000")
		r := s.end()
		for _, e := range []string{"a", "b", "c", "d"} {
			r.counted(t, e, n["redzone"], want(tactic))
		}
		r.whole(t)
		for _, l := range r.of("b") {
			if l.number(t, "below") != l.number(t, "i")+1 {
				t.Fatalf("below the stack pointer: %v", l)
			}
		}
		for _, l := range r.of("d") {
			if l.number(t, "ret") != 16*l.number(t, "i")+136 {
				t.Fatalf("result: %v", l)
			}
		}
	})
}

// place is a definition at a label, which need not be a function.
func place(t testing.TB, path, kind, label, args string) string {
	t.Helper()
	return fmt.Sprintf("%s %#x %s", kind, symbolOf(t, path, label), args)
}

// All vector and mask registers, the x87 stack and the control words.
func TestVectorState(t *testing.T) {
	everyTactic(t, func(t *testing.T, tactic string) {
		p := program(t, "vector")
		s := trace(t, p.PID, withTactic(tactic, "p:a vec_leaf i=%di s=+0(%sp):string", "r:b vec_leaf ret=$retval i=$arg1")...)
		n := right(t, p, "go 3000")
		r := s.end()
		r.counted(t, "a", n["vec_leaf"], want(tactic))
		r.counted(t, "b", n["vec_leaf"], want(tactic))
		r.whole(t)
		for _, l := range r.of("b") {
			if l.number(t, "ret") != 19*l.number(t, "i")+1 {
				t.Fatalf("result: %v", l)
			}
		}
	})
}

// Exceptions unwind through return-probed frames.
func TestExceptions(t *testing.T) {
	everyTactic(t, func(t *testing.T, tactic string) {
		p := program(t, "exc")
		s := trace(t, p.PID, withTactic(tactic, "p:in Walker::descend depth=$arg2", "r:out Walker::descend ret=$retval depth=$arg2 v=$arg4")...)
		n := right(t, p, "go 2000")
		r := s.end()
		r.counted(t, "in", n["descend"], want(tactic))
		r.counted(t, "out", n["returned"], want(tactic))
		r.whole(t)
		if out := r.totals["out"]; out.unwound != n["unwound"] || out.active != 0 {
			t.Errorf("%+v, the program: %v", out, n)
		}
		for _, l := range r.of("out") {
			if l.number(t, "ret") != l.number(t, "v")+l.number(t, "depth")-1 {
				t.Fatalf("result: %v", l)
			}
		}
	})
}

// longjmp, siglongjmp and a switch of stacks leave return-probed frames.
func TestLongjmp(t *testing.T) {
	everyTactic(t, func(t *testing.T, tactic string) {
		p := program(t, "jmp")
		s := trace(t, p.PID, withTactic(tactic, "p:in descend depth=%di", "r:out descend ret=$retval depth=$arg1 v=$arg3")...)
		n := right(t, p, "go 2000")
		r := s.end()
		r.counted(t, "in", n["descend"], want(tactic))
		r.counted(t, "out", n["returned"], want(tactic))
		r.whole(t)
		if out := r.totals["out"]; out.unwound+out.active != n["jumped"] {
			t.Errorf("%+v, the program: %v", out, n)
		}
		for _, l := range r.of("out") {
			if l.number(t, "ret") != l.number(t, "v")+2*(l.number(t, "depth")-1) {
				t.Fatalf("result: %v", l)
			}
		}
	})
}

// Threads are cancelled, or exit, in a return-probed function.
func TestCancel(t *testing.T) {
	everyTactic(t, func(t *testing.T, tactic string) {
		p := program(t, "cancel")
		s := trace(t, p.PID, withTactic(tactic, "p:in inside", "r:out inside ret=$retval i=$arg1")...)
		n := right(t, p, "go 300")
		r := s.end()
		r.counted(t, "in", n["inside"], want(tactic))
		r.counted(t, "out", n["returned"], want(tactic))
		if out := r.totals["out"]; out.unwound != n["cancelled"]+n["exited"] || out.active != 0 {
			t.Errorf("%+v, the program: %v", out, n)
		}
	})
}

// Children are forked in a probed function, and hit probes themselves.
func TestFork(t *testing.T) {
	everyTactic(t, func(t *testing.T, tactic string) {
		p := program(t, "forker")
		s := trace(t, p.PID, withTactic(tactic, "p:work child_work a=%di", "p:fork forking i=%di", "r:forked forking ret=$retval")...)
		n := right(t, p, "go 10")
		r := s.end()
		r.counted(t, "work", n["child_work"]+n["child_work_in_children"], want(tactic))
		r.counted(t, "fork", n["forking"], want(tactic))
		r.counted(t, "forked", 2*n["forking"], want(tactic)) // it returns twice
		r.whole(t)
	})
}

// Children that live on are restored with their parent.
func TestForkChildrenRestored(t *testing.T) {
	everyTactic(t, func(t *testing.T, tactic string) {
		p := program(t, "forker")
		s := trace(t, p.PID, withTactic(tactic, "p:work child_work a=%di", "-f", "a == 0")...) // a line for each thousand calls
		var kids []int
		p.Ask("fork 3", &kids)
		within(t, "a child's hit", func() bool { return strings.Contains(s.out.String(), " work: ") })
		r := s.end()
		for _, kid := range kids {
			intact(t, kid)
		}
		n := right(t, p, "release")
		if got := r.totals["work"].hits; got == 0 || got > n["child_work_in_children"] {
			t.Errorf("%d hits, the children worked %d times", got, n["child_work_in_children"])
		}
	})
}

// Signals arrive at a high rate, in detours too, and their handlers hit the same probe.
func TestSignals(t *testing.T) {
	p := program(t, "sigs", "2")
	s := trace(t, p.PID, "--stat", "p:in hot a=%di b=%si $comm", "p:mid hot+4 a=%di", "p:c caller", "r:d caller $retval")
	n, rounds := map[string]uint64{}, uint64(0)
	for ; n["signals"] == 0 && rounds < 100; rounds++ { // on a busy machine a round may be over before one comes
		n = right(t, p, "go 30000")
	}
	r := s.end()
	r.counted(t, "in", n["hot"], "jump")
	r.counted(t, "mid", n["hot"], "jump")
	r.counted(t, "c", 60*rounds, "jump")
	r.counted(t, "d", 60*rounds, "jump")
	if n["signals"] == 0 {
		t.Errorf("no signal came: %v", n)
	}
}

// The same with breakpoints, where they do not take so long that the flood of signals
// leaves the program no time: handlers run between a breakpoint and its detour.
func TestSignalsAtBreakpoints(t *testing.T) {
	for _, tactic := range []string{"boost", "step"} {
		t.Run(tactic, func(t *testing.T) {
			p := program(t, "sigs", "2")
			s := trace(t, p.PID, "--stat", "--tactic", tactic, "p:c caller n=%di", "r:d caller $retval")
			n, rounds := map[string]uint64{}, uint64(0)
			for ; n["signals"] == 0 && rounds < 100; rounds++ { // see TestSignals
				n = right(t, p, "go 300000")
			}
			r := s.end()
			r.counted(t, "c", 600*rounds, tactic)
			r.counted(t, "d", 600*rounds, tactic)
			if n["signals"] == 0 {
				t.Errorf("no signal came: %v", n)
			}
		})
	}
}

// A program that uses SIGTRAP itself keeps it: breakpoints are refused.
func TestOwnTrap(t *testing.T) {
	p := program(t, "trapuser")
	before := stateOf(t, p.PID)
	for _, tactic := range []string{"boost", "step"} {
		fails(t, command(t, "trace", "-p", strconv.Itoa(p.PID), "--tactic", tactic, "p:a plain"), 1, "SIGTRAP")
		before.same(t)
	}
	s := trace(t, p.PID, "p:a plain a=%di", "r:b plain ret=$retval a=$arg1 b=$arg2")
	n := right(t, p, "go 500")
	r := s.end()
	r.counted(t, "a", n["plain"], "jump")
	r.counted(t, "b", n["plain"], "jump")
	r.whole(t)
	if n["int3"] != 500 || n["raised"] != 1000 {
		t.Errorf("the program's own signals: %v", n)
	}
	for _, l := range r.of("b") {
		if l.number(t, "ret") != 9*l.number(t, "a")+l.number(t, "b") {
			t.Fatalf("result: %v", l)
		}
	}
}

// A fault in an instruction that was moved is seen where the program has it.
func TestOwnFaultHandlers(t *testing.T) {
	everyTactic(t, func(t *testing.T, tactic string) {
		p := program(t, "segv")
		probes := []string{"p:a touch p=%di v=+0(%di):u8", "p:b past", "p:c divide a=%ax", "p:e nilread p=%di v=+0(%di):u64", "r:f nilread ret=$retval"}
		s := trace(t, p.PID, withTactic(tactic, probes...)...)
		n := right(t, p, "go 300")
		r := s.end()
		for event, function := range map[string]string{"a": "touch", "b": "past", "c": "divide", "e": "nilread"} {
			r.counted(t, event, n[function], want(tactic))
		}
		r.counted(t, "f", n["nilread"]-n["jumped"], want(tactic))
		if f := r.totals["f"]; f.unwound != n["jumped"] {
			t.Errorf("%+v, the program: %v", f, n)
		}
		r.whole(t)
		right(t, p, "go 10")
	})
}

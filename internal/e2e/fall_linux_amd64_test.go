package e2e

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
	tracing "kprobes.dev/kprobes/trace"
)

// noRegister is why no generated code can run at some places of Go programs.
const noRegister = "can be used to check the stack"

// compares is a function of the Go runtime that has such a place at its entry.
const compares = "runtime.memequal"

// In a Go function that does not check its stack the kernel holds the probes for which no
// register is free to check it: each is hit by every call, with the right values, beside the
// jumps of its neighbours, and the command says why.
func TestFallToUprobe(t *testing.T) {
	path := testprog.Copy(t, testprog.Build(t, "gohard"))
	twice := slices.DeleteFunc((&inside{path: path, starts: true}).instructions(t), func(a insn) bool { return a.fn != "main.Twice" })
	args := []string{"-v"}
	for i, a := range twice {
		args = append(args, fmt.Sprintf("p:at%d main.Twice+%d ax=%%ax", i, a.off))
	}
	p := testprog.Start(t, path, "3")
	before := right(t, p, "count")
	s := trace(t, p.PID, args...)
	n := grown(before, right(t, p, "go 250"))
	r := s.end()
	r.whole(t)
	jumps := 0
	var calls [][]uint64
	for i, a := range twice {
		event := fmt.Sprintf("at%d", i)
		r.counted(t, event, n["main.Twice"], "")
		why := regexp.MustCompile(`(?m)^kprobe: ` + event + ` has tactic=uprobe: main.Twice\+0x\w+: .*` + noRegister)
		switch {
		case strings.HasPrefix(a.text, "call"):
			if r.totals[event].tactic != "uprobe" || !why.MatchString(r.stderr) {
				t.Errorf("%s: %+v: %s", a.text, r.totals[event], r.stderr)
			}
			calls = append(calls, r.values(t, event, "ax"))
		case r.totals[event].tactic == "jump":
			jumps++
		}
	}
	if len(calls) != 2 || jumps == 0 {
		t.Fatalf("%d calls, %d jumps in main.Twice", len(calls), jumps)
	}
	for i := range calls[0] {
		if calls[0][i]+1 != calls[1][i] {
			t.Fatalf("the calls have seen %v and %v", calls[0], calls[1])
		}
	}
}

// values are those of an argument in an event's lines, sorted.
func (r *result) values(t *testing.T, event, arg string) []uint64 {
	t.Helper()
	var out []uint64
	for _, l := range r.of(event) {
		out = append(out, l.number(t, arg))
	}
	slices.Sort(out)
	return out
}

// What can not fall to the kernel is refused with the reason, and with both reasons where the
// kernel can not hold the probe, or may not.
func TestFallRefused(t *testing.T) {
	path := testprog.Copy(t, testprog.Build(t, "gohard"))
	p := testprog.Start(t, path, "1")
	before := stateOf(t, p.PID)
	both := func(kernel string) []string {
		return []string{compares + "+0x0: ", noRegister, "nor by the slowest tactic (uprobe, in a guest break): ", kernel}
	}
	fails(t, command(t, "trace", "-p", pid(p), "r:x "+compares), 1, both("return address")...)
	fails(t, command(t, "trace", "-p", pid(p), "p:x "+compares+" s=+0(%ax):string"), 1, both("no strings")...)
	if o := fails(t, command(t, "trace", "-p", pid(p), "--tactic", "jump", "p:x "+compares), 1, noRegister); strings.Contains(o.stderr, "uprobe") {
		t.Errorf("a forced jump tried a uprobe: %v", o)
	}
	if o := fails(t, command(t, "trace", "-p", pid(p), "--tactic", "uprobe", "p:x "+compares+" s=+0(%ax):string"), 1, "no strings"); strings.Contains(o.stderr, "nor by") {
		t.Errorf("the error of a uprobe that was asked for follows no other: %v", o)
	}
	before.same(t)
	fails(t, asNobody(t)("trace", "p:x "+compares, "--", public(t, path), "1"), 1, both("operation not permitted")...)
}

// An error that comes later takes the kernel's probes out again: all or nothing.
func TestFallThenError(t *testing.T) {
	p := aside(t, "gohard", "1")
	core := open(t, p)
	m, fn, err := core.Target().Space().Lookup("", compares)
	if err != nil {
		t.Fatal(err)
	}
	at, own, have := m.Runtime(fn.Addr), make([]byte, 16), make([]byte, 16)
	read(t, p.PID, at, own)
	evs, err := tryAdd(core, "", "p:leaf main.Leaf", "p:x "+compares, "r:y "+compares)
	if err == nil {
		t.Fatalf("%v were armed", evs)
	}
	within(t, "the program's own bytes", func() bool {
		read(t, p.PID, at, have)
		return bytes.Equal(own, have)
	})
	if len(evs) != 0 || slices.ContainsFunc(core.Events(), func(e *kprobes.Event) bool { return core.Counts(e).Hits > 0 }) {
		t.Errorf("after %v: %v", err, evs)
	}
	held := add(t, core, "", "p:x "+compares, "p:leaf main.Leaf")
	first, second := tacticOf(held[0]), tacticOf(held[1])
	if read(t, p.PID, at, have); have[0] != 0xcc || first != "uprobe" || second != "jump" {
		t.Errorf("% x, tactics %s, %s", have, first, second)
	}
	n := right(t, p, "go 100")
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	if c := core.Counts(held[1]); c.Hits != n["main.Leaf"] || core.Counts(held[0]).Hits == 0 {
		t.Errorf("%+v and %+v, the program counted %d", core.Counts(held[0]), c, n["main.Leaf"])
	}
}

// Events of an object that is loaded later are armed together or not at all: what the kernel
// held by then is let go.
func TestFallLate(t *testing.T) {
	p := aside(t, "dl")
	core := open(t, p)
	var defs []*event.Def
	for _, text := range []string{"p:x libdlone.so:lib_work", "r:y libdlone.so:lib_work"} {
		d, err := event.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	evs, err := core.Add(defs, &kprobes.AddOptions{Late: true, Tactic: arch.TacticUprobe, Count: true})
	if err != nil {
		t.Fatal(err)
	}
	p.Send("open " + testprog.Copy(t, testprog.Build(t, "libdlone")))
	within(t, "an error of the late events", func() bool {
		core.Poll(func(*tracing.Hit) {})
		err = core.Sync()
		return err != nil
	})
	if !strings.Contains(err.Error(), "return address") || !evs[0].Gone() || !evs[1].Gone() {
		t.Errorf("%v, gone: %v, %v", err, evs[0].Gone(), evs[1].Gone())
	}
	p.Line()
	right(t, p, "call 50")
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	if c := core.Counts(evs[0]); c.Hits != 0 {
		t.Errorf("what was not armed has counted: %+v", c)
	}
}

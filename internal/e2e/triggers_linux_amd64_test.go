package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// triggered runs kprobe trace on the program work, and gives the text of its lines.
func triggered(t *testing.T, threads, calls int, args ...string) (string, result) {
	t.Helper()
	out := tempFile(t, "lines")
	s := &session{t: t}
	exe := testprog.Copy(t, testprog.Build(t, "work")) // uprobes belong to a file
	args = append([]string{"trace", "-o", out, "--buffer-size", "4194304"}, args...)
	s.start(command(t, append(args, "--", exe, strconv.Itoa(threads), strconv.Itoa(calls))...))
	r := s.wait()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	r.lines = linesOf(string(b))
	for name, n := range r.totals {
		if n.hits != uint64(threads*calls) || n.missed != 0 || n.lost != 0 {
			t.Errorf("%s: %+v, want %d hits", name, n, threads*calls)
		}
	}
	return string(b), r
}

// triggersOf are triggers of the probes of calls, and which calls of them are shown.
type triggersOf struct {
	name                             string
	onEndbr, onSix, onSmall          []string
	shownEndbr, shownSix, shownSmall func(i int64) bool
	stacks                           []int64 // calls of f_six that are shown with their stacks
}

func always(int64) bool { return true }

// TestTriggers has one thread call functions that pass the number of the call, so that the program's own order says which hits are
// shown: f_endbr, then f_six, then f_small.
func TestTriggers(t *testing.T) {
	const calls = 2000
	window := func(i int64) bool { return i&64 != 0 || i&127 == 0 && i > 0 } // from 64 to 128, from 192 to 256, …
	three := func(i int64) bool { return window(i) && i <= 384 }
	first := func(of func(int64) bool) func(int64) bool { // the hit that traceon acts at is not shown, since it has a filter
		return func(i int64) bool { return of(i) && i&127 != 64 }
	}
	until := func(end int64) func(int64) bool { return func(i int64) bool { return i < end } }
	for _, c := range []triggersOf{
		{name: "off", onSix: []string{"traceoff if i == 1234"}, shownEndbr: until(1235), shownSix: until(1235), shownSmall: until(1234)},
		{
			name: "windows", onEndbr: []string{"traceon if i & 64"}, onSmall: []string{"traceoff if !(i & 64)"},
			shownEndbr: first(window), shownSix: window, shownSmall: window,
		},
		{
			name: "three windows", onEndbr: []string{"traceon:3 if i & 64"}, onSmall: []string{"traceoff if !(i & 64)"},
			shownEndbr: first(three), shownSix: three, shownSmall: three,
		},
		{
			name:       "events",
			onEndbr:    []string{"enable_event:kprobes:six:2 if i & 128", "disable_event:kprobes:small:1 if i == 700"},
			onSmall:    []string{"disable_event:kprobes:six if !(i & 128)", "enable_event:kprobes:small if i == 900"},
			shownEndbr: always, shownSix: func(i int64) bool { return i >= 128 && i <= 256 || i >= 384 && i <= 512 },
			shownSmall: func(i int64) bool { return i < 700 || i >= 900 },
		},
		{
			name: "stacks", onSix: []string{"stacktrace:3 if i > 1500"}, shownEndbr: always, shownSix: always, shownSmall: always,
			stacks: []int64{1501, 1502, 1503},
		},
	} {
		for _, tactic := range []string{"jump", "uprobe"} {
			if tactic == "uprobe" && c.stacks != nil {
				continue
			}
			t.Run(c.name+" "+tactic, func(t *testing.T) {
				args := []string{"--tactic", tactic}
				for _, p := range []struct {
					probe    string
					triggers []string
				}{{"p:endbr f_endbr i=%di:s64", c.onEndbr}, {"p:six f_six i=%di:s64", c.onSix}, {"p:small f_small i=%cx:s64", c.onSmall}} {
					args = append(args, p.probe)
					for _, trigger := range p.triggers {
						args = append(args, "-R", trigger)
					}
				}
				text, r := triggered(t, 1, calls, args...)
				sameCalls(t, r.of("endbr"), calls, c.shownEndbr)
				sameCalls(t, r.of("six"), calls, c.shownSix)
				sameCalls(t, r.of("small"), calls, c.shownSmall)
				for _, i := range c.stacks {
					if !strings.Contains(text, fmt.Sprintf(" i=%d\n => f_six", i)) {
						t.Errorf("call %d has no stack", i)
					}
				}
				if n := strings.Count(text, "\n => f_six"); n != len(c.stacks) {
					t.Errorf("%d stacks, want %d", n, len(c.stacks))
				}
			})
		}
	}
}

// sameCalls compares lines with the calls that are to be shown, from 0 on.
func sameCalls(t *testing.T, lines []line, calls int64, shown func(i int64) bool) {
	t.Helper()
	for i := range calls {
		if !shown(i) {
			continue
		}
		if len(lines) == 0 || int64(lines[0].number(t, "i")) != i {
			t.Fatalf("the line of call %d is missing: %d lines are left", i, len(lines))
		}
		lines = lines[1:]
	}
	if len(lines) > 0 {
		t.Fatalf("%d lines too many: %+v", len(lines), lines[0])
	}
}

// TestTriggerOfManyThreads switches tracing off at a call of one of many threads: what is shown of each thread are its first calls, and
// the last line is that of the hit which did it. A histogram goes on to count.
func TestTriggerOfManyThreads(t *testing.T) {
	const threads, calls = 4, 5000
	const last = int64(2)<<32 | 3000
	text, r := triggered(t, threads, calls, "p:six f_six i=%di:s64", "-R", fmt.Sprintf("traceoff if i == %d", last), "-R", "hist:keys=i.buckets=0x100000000:sort=i")
	next := [threads]int64{}
	for _, l := range r.of("six") {
		i := int64(l.number(t, "i"))
		if i&0xffffffff != next[i>>32] {
			t.Fatalf("thread %d: call %d behind %d others", i>>32, i&0xffffffff, next[i>>32])
		}
		next[i>>32]++
	}
	if n := len(r.lines); n == 0 || int64(r.lines[n-1].number(t, "i")) != last || next[2] != 3001 || n == threads*calls {
		t.Errorf("%d lines: %v", n, next)
	}
	if h := histogramsIn(t, text)[0]; h.total != threads*calls || h.entries != threads {
		t.Errorf("the histogram has %d hits in %d entries: %v", h.total, h.entries, h.hits)
	}
}

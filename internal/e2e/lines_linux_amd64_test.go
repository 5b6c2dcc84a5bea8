package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// linesAt finds the lines of a test program that have a comment "at NAME".
func linesAt(t *testing.T, file string) map[string]int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, l := range strings.Split(string(b), "\n") {
		if m := regexp.MustCompile(`; // at (\w+)$`).FindStringSubmatch(l); m != nil {
			at[m[1]] = i + 1
		}
	}
	return at
}

// TestLines probes lines of a source, one of them in a function that is inlined at three places, and compares the hits with the program's
// own counts.
func TestLines(t *testing.T) {
	p := program(t, "lines")
	args := []string{"--stat"}
	for name, line := range linesAt(t, "../testprog/src/lines.c") {
		args = append(args, fmt.Sprintf("p:%s lines.c:%d $vars", name, line))
	}
	s := trace(t, p.PID, args...)
	n := p.Counts("go 1000")
	r := s.end()
	hits, places := map[string]uint64{}, map[string]int{}
	for e, c := range r.totals {
		name, _, _ := strings.Cut(e, "_")
		hits[name] += c.hits
		places[name]++
	}
	for name, want := range n {
		if hits[name] != want || want == 0 {
			t.Errorf("%s: %d hits at %d places, the program counted %d", name, hits[name], places[name], want)
		}
	}
	if places["inlined"] != 3 || places["plain"] != 1 {
		t.Errorf("places: %v", places)
	}
}

// TestInlined probes a function that exists only inlined, at three places, and compares hits and a parameter with the program's own counts.
func TestInlined(t *testing.T) {
	p := program(t, "lines")
	out := tempFile(t, "trace")
	s := trace(t, p.PID, "-o", out, "p:in inlined $arg*", "p:whole once v=$arg1:u64")
	n := p.Counts("go 1000")
	r := s.end()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	hits, places := uint64(0), 0
	for e, c := range r.totals {
		if strings.HasPrefix(e, "in") {
			hits += c.hits
			places++
		}
	}
	if hits != n["inlined"] || hits == 0 || places != 3 || r.totals["whole"].hits != 1000 {
		t.Errorf("%d hits at %d places, the program counted %v: %v", hits, places, n, r.outcome)
	}
	in, whole := map[string]string{}, map[string]string{} // by what they are called with, in once
	for _, l := range linesOf(string(b)) {
		switch {
		case l.event == "whole":
			whole[l.args["v"]] = l.place
		case strings.HasPrefix(l.place, "once+"):
			in[l.args["v"]] = l.place
		}
	}
	for v := range whole {
		if in[v] == "" {
			t.Errorf("once is called with v=%s, which its inlined call has not", v)
		}
	}
	if len(in) != 1000 || len(whole) != 1000 || !strings.Contains(r.stderr, ", inlined in many+0x") {
		t.Errorf("%d values, %d of the call around: %s", len(in), len(whole), r.stderr)
	}
	s = &session{t: t}
	s.start(command(t, "trace", "-p", fmt.Sprint(p.PID), "--no-inlines", "p:in inlined"))
	if r := s.wait(); r.code != 1 || !strings.Contains(r.stderr, "not found") {
		t.Errorf("%+v", r.outcome)
	}
}

// TestInlinedOfPattern probes the functions of a pattern, one of which exists only inlined and one both ways, and compares hits with the
// program's own counts. Returns of inlined calls are not seen, and a line says so.
func TestInlinedOfPattern(t *testing.T) {
	p := program(t, "lines")
	refused := func(want string, args ...string) {
		t.Helper()
		s := &session{t: t}
		s.start(command(t, append([]string{"trace", "-p", fmt.Sprint(p.PID)}, args...)...))
		if r := s.wait(); r.code != 1 || !strings.Contains(r.stderr, want) {
			t.Errorf("%q: %+v", args, r.outcome)
		}
	}
	refused("no function matches", "p inline?")
	refused("inlined exists only inlined, and an inlined call has no return", "r inlined")
	refused("not found", "--no-inlines", "r inlined")
	s := trace(t, p.PID, "--stat", "--inlines", "p:of/ [ib][no][lt][ih]*", "p:of/ on[c]e", "f:all [ib][no][lt][ih]*", "p:entry both", "r:whole both")
	n := p.Counts("go 1000")
	r := s.end()
	hits, places := map[string]uint64{}, map[string]int{}
	for e, c := range r.totals {
		name, _, _ := strings.Cut(strings.TrimPrefix(e, "p_"), "_")
		hits[name] += c.hits
		places[name]++
	}
	for name, want := range map[string][2]uint64{"inlined": {n["inlined"], 3}, "both": {n["both"], 2}, "once": {1000, 1}, "entry": {n["both"], 2}, "whole": {n["both"] / 2, 1}} {
		if hits[name] != want[0] || want[0] == 0 || uint64(places[name]) != want[1] {
			t.Errorf("%s: %d hits at %d places, want %v", name, hits[name], places[name], want)
		}
	}
	if hits["all"] != n["inlined"]+n["both"] {
		t.Errorf("as one event: %d hits, the program counted %v", hits["all"], n)
	}
	if !strings.Contains(r.stderr, " is inlined, inlined in many+0x") {
		t.Errorf("%s", r.stderr)
	}
	if r := trace(t, p.PID, "r both").end(); !strings.Contains(r.stderr, "kprobe: both (inlined calls: 1) is left out: an inlined call has no return") {
		t.Errorf("%s", r.stderr)
	}
}

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

package kprobes_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// typedLine is what gotyped prints of a handler.
type typedLine struct {
	How, Name, Text, Err string
	N                    int
	Rate, Sum, Returned  float64
}

// TestTypedHandlersOfBuilds: typed handlers by func work in programs of all builds, those by name as far as the program tells types.
func TestTypedHandlersOfBuilds(t *testing.T) {
	const noDebug, otherType = "no debug information", "give a func that takes the same"
	for _, build := range []struct {
		flags  []string
		byName string // what refuses handlers of returns by name
		other  string // and those with a result of another type
	}{
		{nil, "", otherType},
		{[]string{"-ldflags=-s -w"}, noDebug, noDebug},
		{[]string{"-gcflags=-N -l"}, "", otherType},
	} {
		out, err := exec.Command(testprog.BuildLive(t, "gotyped", build.flags...)).Output()
		if err != nil {
			t.Fatalf("%q: %v\n%s", build.flags, err, out)
		}
		want := map[string]typedLine{
			"call by func":    {Name: "tea", N: 3, Rate: 1.5},
			"return by func":  {Name: "tea", N: 3, Rate: 1.5, Text: "tea!", Sum: 104.5},
			"results by func": {Text: "tea!", Sum: 104.5},
			"call by name":    {Name: "tea", N: 3, Rate: 1.5},
			"return by name":  {Name: "tea", N: 3, Rate: 1.5, Text: "tea!", Sum: 104.5},
			"results by name": {Text: "tea!", Sum: 104.5},
			"other arguments": {Err: build.other},
			"other results":   {Err: build.other},
		}
		if build.byName != "" {
			want["return by name"], want["results by name"] = typedLine{Err: build.byName}, typedLine{Err: build.byName}
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if len(lines) != len(want) {
			t.Errorf("%q: %d lines, want %d", build.flags, len(lines), len(want))
		}
		for _, line := range lines {
			var got typedLine
			must(t, json.Unmarshal([]byte(line), &got))
			w := want[got.How]
			if !strings.Contains(got.Err, w.Err) || w.Err == "" && got.Err != "" {
				t.Errorf("%q: %s: %s, want %q", build.flags, got.How, got.Err, w.Err)
			}
			if w.How, w.Err, w.Returned = got.How, got.Err, 104.5; got != w {
				t.Errorf("%q: %+v, want %+v", build.flags, got, w)
			}
		}
	}
}

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
)

// stackEntry is an entry of a histogram whose last key is the callers.
var stackEntry = regexp.MustCompile(`(?m)^\{ ((?:n: +\d+, )?)(?:common_stacktrace:\n|\w+\.stacktrace)((?:         .*\n)*)\} hitcount: +(\d+)$`)

// nameless is a caller without a symbol, where a signal's handler returns to: its address is another in each run.
var nameless = regexp.MustCompile(`(?m)^         0x[0-9a-f]+$`)

// histogramOfStacks runs kprobe hist on a program and reads its last histogram, the only one by callers: the hits of each key, and what the program has said.
func histogramOfStacks(t *testing.T, args []string, cmd ...string) (histogram, result, string) {
	t.Helper()
	out := tempFile(t, "hist")
	s := &session{t: t}
	s.start(command(t, append(append([]string{"hist", "-o", out}, args...), append([]string{"--"}, cmd...)...)...))
	r := s.wait()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	all := histogramsIn(t, string(b))
	h := all[len(all)-1]
	for _, m := range stackEntry.FindAllStringSubmatch(string(b), -1) {
		n, _ := strconv.ParseUint(m[3], 10, 64)
		h.hits[m[1]+nameless.ReplaceAllString(m[2], "         "+signalFrame)] += n
	}
	return h, r, s.out.String()
}

// TestHistogramsByStack compares histograms by callers that the code at the hit makes with those of whoever reads the records of another
// run of the same program: entry for entry. It is C++ code without frame pointers, with signals and exceptions.
func TestHistogramsByStack(t *testing.T) {
	exe := testprog.Build(t, "stacks", "-g")
	for _, c := range []struct {
		name string
		args []string // without the histogram
		spec string
		cmd  []string
	}{
		{"entry", []string{"p:l leaf"}, "keys=common_stacktrace", nil},
		{"return", []string{"r:l leaf"}, "keys=common_stacktrace", nil},
		{"trampoline", []string{"--trampoline", "r:l leaf"}, "keys=stacktrace", nil},
		{"two keys", []string{"p:l leaf n=$arg1:u64"}, "keys=n,common_stacktrace", nil},
		{"signals blocked", []string{"p:l leaf"}, "keys=common_stacktrace", []string{"blocked"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var counted [2]histogram
			for i, also := range []string{"", " if CPU >= 0"} { // a filter that whoever reads has to run
				args := append([]string{"--buffer-size", "1048576"}, c.args...)
				h, r, _ := histogramOfStacks(t, append(args, c.spec+also), append([]string{exe, "52"}, c.cmd...)...)
				if n := r.totals["l"]; n.hits != h.total || n.lost != 0 || h.dropped != 0 || h.total < 1000 {
					t.Fatalf("%+v: %d hits, %d dropped", n, h.total, h.dropped)
				}
				if uint64(len(h.hits)) != h.entries {
					t.Errorf("%d entries are read, of %d", len(h.hits), h.entries)
				}
				counted[i] = h
			}
			if !maps.Equal(counted[0].hits, counted[1].hits) {
				t.Errorf("%v\nof records:\n%v", counted[0].hits, counted[1].hits)
			}
		})
	}
}

// TestHistogramsByTracedStack has a synthetic event take the callers, and compares its histogram by them with the probe's own.
func TestHistogramsByTracedStack(t *testing.T) {
	exe := testprog.Build(t, "stacks", "-g")
	args := []string{"--buffer-size", "1048576", "p:l leaf"}
	own, r, _ := histogramOfStacks(t, append(args, "keys=common_stacktrace"), exe, "52")
	want := map[string]uint64{}
	for k, n := range own.hits { // a variable keeps one caller less than a key
		lines := strings.SplitAfter(k, "\n")
		want[strings.Join(lines[:min(len(lines), event.HistCallers-1)], "")] += n
	}
	if len(want) < 10 {
		t.Fatalf("%d stacks", len(want))
	}
	for _, param := range []string{"$by", "common_stacktrace"} {
		traced, _, _ := histogramOfStacks(t, append(args, "keys=common_pid:by=stacktrace:onmatch(kprobes.l).trace(seen,"+param+")",
			"s:seen unsigned long[] at", "keys=at.stacktrace"), exe, "52")
		if !maps.Equal(traced.hits, want) || traced.total != r.totals["l"].hits || traced.dropped != 0 {
			t.Errorf("%s: %d hits, %d dropped:\n%v\nof the probe:\n%v", param, traced.total, traced.dropped, traced.hits, want)
		}
	}
}

// TestHistogramsByStackOfThreads has four threads hit one probe, in signal handlers too that interrupt the code at the hit, and compares
// with the program's own counts. Where the table is too small each hit is in an entry or dropped.
func TestHistogramsByStackOfThreads(t *testing.T) {
	exe := testprog.Build(t, "stackkeys", "-fno-optimize-sibling-calls")
	for _, size := range []uint64{8192, 128} {
		for _, depth := range []string{"10", "300"} {
			keys := "common_stacktrace"
			if size == 128 {
				keys = "n," + keys
			}
			h, r, said := histogramOfStacks(t, []string{"p:l leaf n=$arg1:u64", fmt.Sprintf("keys=%s:size=%d", keys, size)}, exe, "4", "50000", depth)
			want, got, sum := map[string]uint64{}, map[string]uint64{}, uint64(0)
			if err := json.Unmarshal([]byte(said), &want); err != nil {
				t.Fatalf("%q: %v", said, err)
			}
			total := uint64(0)
			for _, n := range want {
				total += n
			}
			for k, n := range h.hits {
				if sum += n; size == 8192 {
					caller, _, _ := strings.Cut(strings.TrimSpace(strings.SplitN(k, "\n", 3)[1]), "+0x")
					got[caller] += n
				}
			}
			if n := r.totals["l"]; n.hits != total || n.lost != 0 || h.total+h.dropped != total || sum != h.total || h.entries > size {
				t.Errorf("%+v, want %d: %d hits, %d in entries, %d dropped, %d entries", n, total, h.total, sum, h.dropped, h.entries)
			}
			if size == 128 && (h.dropped == 0 || h.entries < 120) {
				t.Errorf("%d entries, %d dropped", h.entries, h.dropped)
			}
			if size == 8192 && (h.dropped != 0 || fmt.Sprint(got) != fmt.Sprint(want)) {
				t.Errorf("depth %s: %v, the program counted %v, %d dropped", depth, got, want, h.dropped)
			}
			t.Logf("size %d, depth %s: %d hits, %d entries, %d dropped", size, depth, h.total, h.entries, h.dropped)
		}
	}
}

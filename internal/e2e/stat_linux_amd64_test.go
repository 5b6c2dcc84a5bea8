package e2e

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// TestStat adds up what kprobe stat prints at intervals: it is what the program says that it has called, also of what passes a filter.
func TestStat(t *testing.T) {
	const threads, calls = 2, 200_000
	for _, flags := range [][]string{{"p:six f_six", "r:str f_str"}, {"p:six f_six", "-f", "__probe_ip > 0", "r:str f_str v=$retval:u64 n=$arg2:u32", "-f", "n == 3"}} {
		out := tempFile(t, "stat")
		s := &session{t: t}
		args := append([]string{"stat", "-I", "20ms", "--format", "json", "-o", out}, flags...)
		s.start(command(t, append(args, "--", testprog.Build(t, "work"), strconv.Itoa(threads), strconv.Itoa(calls))...))
		r := s.wait()
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		sums, last := map[string]uint64{}, 0.0
		for line := range strings.Lines(string(b)) {
			var l struct {
				Time  float64
				Event string
				Hits  uint64
				Lost  uint64
				Rate  float64 `json:"hits_per_second"`
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil || l.Time < last || (l.Hits > 0) != (l.Rate > 0) {
				t.Fatalf("%q: %v", line, err)
			}
			sums[l.Event] += l.Hits + l.Lost
			last = l.Time
		}
		want := map[string]uint64{"kprobes/six": threads * calls, "kprobes/str": threads * calls}
		if len(flags) > 2 {
			want["kprobes/str"] = threads * calls / 16
		}
		for e, n := range want {
			if sums[e] != n {
				t.Errorf("%v: %s: %d hits in all, the program makes %d: %v", flags, e, sums[e], n, r.outcome)
			}
		}
	}
}

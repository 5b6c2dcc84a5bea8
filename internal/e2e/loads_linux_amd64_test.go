package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/testprog"
)

// BenchmarkLoads tells what the hit of a record costs by the number of its arguments that
// read memory, where the thread blocks no signal and where it blocks all.
func BenchmarkLoads(b *testing.B) {
	modes := map[string]*testprog.Proc{"open": program(b, "sigmask", "none"), "blocked": program(b, "sigmask", "all")}
	for b.Loop() {
		for name, p := range modes {
			base := perCall(p)
			for _, loads := range []int{0, 1, 3} {
				def := "p:a masked_work a=%di" + strings.Repeat(" @todo:u64", loads)
				s := trace(b, p.PID, "--stat", "--buffer-size", "67108864", def)
				b.ReportMetric(perCall(p)-base, fmt.Sprintf("%s-%d-loads-ns/hit", name, loads))
				s.end()
			}
		}
	}
}

// perCall is the time of one call of the program's function, in nanoseconds.
func perCall(p *testprog.Proc) float64 {
	const calls, rounds = 100_000, 9
	var times []float64
	for range rounds {
		start := time.Now()
		p.Counts(fmt.Sprint("go ", calls))
		times = append(times, float64(time.Since(start))/calls)
	}
	return median(times)
}

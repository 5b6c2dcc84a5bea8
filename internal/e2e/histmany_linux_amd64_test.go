package e2e

import (
	"fmt"
	"testing"
)

// TestHistogramManyHits has eight threads hit some 6,000 keys, 10^8 times in the long runs: nothing is dropped, and each key has the
// program's own count.
func TestHistogramManyHits(t *testing.T) {
	const threads = 8
	calls := 100_000
	if long {
		calls = 12_500_000
	}
	for _, spec := range []string{"keys=a.buckets=16384:size=8192", "keys=a.buckets=16384:size=128"} {
		h, r := histogramOf(t, "p:e f_six a=%di:u64", spec, nil, threads, calls)
		sum := uint64(0)
		for _, n := range h.hits {
			sum += n
		}
		if n := r.totals["e"]; n.hits != uint64(threads*calls) || sum != h.total || h.total+h.dropped != n.hits || n.lost != 0 {
			t.Errorf("%s: %d hits, %d in entries, %d dropped; %+v", spec, h.total, sum, h.dropped, n)
		}
		if spec[len(spec)-4:] != "8192" {
			continue
		}
		if h.dropped != 0 {
			t.Errorf("%d dropped", h.dropped)
		}
		for th := range threads {
			for from := 0; from < calls; from += 16384 {
				at, want := th<<32+from, uint64(min(16384, calls-from))
				if key := fmt.Sprintf("a: ~ %d-%d", at, at+16383); h.hits[key] != want {
					t.Errorf("%s: %d, want %d", key, h.hits[key], want)
				}
			}
		}
	}
}

//go:build !race

package kprobes_test

import (
	"sync"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

//go:noinline
func tallied(n int32) int32 { return n * 3 }

// TestSelfHistogram counts the own process's calls by keys, in the code at the hit: at a function's entry, and by what it returns.
func TestSelfHistogram(t *testing.T) {
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	var defs []*event.Def
	for _, c := range [][2]string{
		{"p:entries " + selfPrefix + "tallied n=$arg1:s32", "keys=n.buckets=10:vals=n"},
		{"r:results " + selfPrefix + "tallied v=$retval:s32", "keys=v.log2"},
	} {
		d, err := event.Parse(c[0])
		if err != nil {
			t.Fatal(err)
		}
		if d.Hist, err = event.ParseHist(c[1]); err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	evs, err := core.Add(defs, nil)
	if err != nil {
		t.Fatal(err)
	}
	const threads, calls = 4, 5000
	var wg sync.WaitGroup
	for range threads {
		wg.Go(func() {
			for i := range int32(calls) {
				if tallied(i) != 3*i {
					t.Error("a wrong result")
				}
			}
		})
	}
	wg.Wait()
	if err := core.Remove(evs); err != nil {
		t.Fatal(err)
	}
	entries, dropped, err := core.Histogram(evs[0])
	if err != nil || dropped != 0 || len(entries) != calls/10 {
		t.Fatalf("%d entries, %d dropped, %v", len(entries), dropped, err)
	}
	for _, e := range entries {
		if k := e.Keys[0]; e.Hits != 10*threads || e.Sums[0] != threads*(10*k+45) {
			t.Errorf("%+v", e)
		}
	}
	entries, dropped, err = core.Histogram(evs[1])
	total := uint64(0)
	for _, e := range entries {
		want := uint64(0)
		for i := range uint64(calls) {
			exp := uint64(0)
			for ; 1<<exp < 3*i; exp++ {
			}
			if exp == e.Keys[0] {
				want += threads
			}
		}
		if total += e.Hits; e.Hits != want {
			t.Errorf("2^%d: %d hits, want %d", e.Keys[0], e.Hits, want)
		}
	}
	if err != nil || dropped != 0 || total != threads*calls {
		t.Errorf("%d hits, %d dropped, %v", total, dropped, err)
	}
	if n := core.Counts(evs[0]); n.Hits != threads*calls || n.Read != n.Hits {
		t.Errorf("%+v", n)
	}
}

//go:build !race

package kprobes_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	hist, err := core.Histogram(evs[0])
	must(t, err)
	if hist.Dropped() != 0 || len(hist.Entries()) != calls/10 || hist.Recorded {
		t.Fatalf("%d entries, %d dropped, recorded: %v", len(hist.Entries()), hist.Dropped(), hist.Recorded)
	}
	for i, e := range hist.Entries() { // with the same hits all, so by key
		if k := e.Keys[0].(int64); k != int64(10*i) || e.Hits != 10*threads || e.Sums[0] != threads*(10*uint64(k)+45) {
			t.Errorf("%+v", e)
		}
	}
	hist, err = core.Histogram(evs[1])
	must(t, err)
	total := uint64(0)
	for _, e := range hist.Entries() {
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
	if hist.Dropped() != 0 || total != threads*calls || hist.Hits() != total {
		t.Errorf("%d hits, %d in all, %d dropped", total, hist.Hits(), hist.Dropped())
	}
	if n := core.Counts(evs[0]); n.Hits != threads*calls || n.Read != n.Hits {
		t.Errorf("%+v", n)
	}
}

//go:noinline
func opened(id, n uint32) uint32 { return id + n }

//go:noinline
func closed(id, n uint64) uint64 { return id ^ n }

// TestSelfHistogramBetween counts the time between two functions of the own process, by a key of both, in the code at the hit. Each of the
// differences of numbers that it takes is of calls with the same key, and there are as many as there were pairs.
func TestSelfHistogramBetween(t *testing.T) {
	core, err := kprobes.Self()
	must(t, err)
	synth, err := event.ParseSynthetic("s:gap u64 d; u64 id")
	must(t, err)
	synth.Hist, err = event.ParseHist("keys=d:vals=id:sort=d")
	must(t, err)
	var defs []*event.Def
	for _, c := range [][2]string{
		{"p:in " + nameOf(opened) + " id=$arg1:u32 n=$arg2:u32", "keys=id:n0=n,ts0=common_timestamp"},
		{"p:out " + nameOf(closed) + " id=$arg1:u64 n=$arg2:u64", "keys=id:d=n-$n0:onmatch(kprobes.in).trace(gap,$d,id)"},
		{"p:at " + nameOf(closed) + " id=$arg1:u64", "keys=id:vals=common_timestamp-$ts0"},
	} {
		d, err := event.Parse(c[0])
		must(t, err)
		d.Hist, err = event.ParseHist(c[1])
		must(t, err)
		for i := range d.Hist.Actions {
			d.Hist.Actions[i].Traced = synth
		}
		defs = append(defs, d)
	}
	evs, err := core.Add(defs, nil)
	must(t, err)
	const threads, rounds, keys = 4, 4000, 50
	var wg sync.WaitGroup
	begin := time.Now()
	for th := range uint32(threads) {
		wg.Go(func() {
			for i := range uint32(rounds) {
				id := th*keys + i%keys
				sum := uint64(opened(id, 3*id+1)) + uint64(opened(id, 3*id))
				sum += closed(uint64(id), 3*uint64(id)+5+uint64(i&1))
				if sum+closed(uint64(id), 0) == 1 {
					t.Error("a wrong result")
				}
			}
		})
	}
	wg.Wait()
	all := uint64(time.Since(begin))
	must(t, core.Remove(evs))
	gap, err := core.Synthetic(synth)
	must(t, err)
	ids := uint64(0) // of the calls whose i is even
	for id := range uint64(threads * keys) {
		ids += rounds / keys * id * (1 - id%2)
	}
	n := uint64(threads * rounds / 2)
	want := []kprobes.HistEntry{{Keys: []any{uint64(5)}, Hits: n, Sums: []uint64{ids}}, {Keys: []any{uint64(6)}, Hits: n, Sums: []uint64{gapIDs - ids}}}
	if got := gap.Entries(); !reflect.DeepEqual(got, want) || gap.Dropped() != 0 || gap.Recorded {
		t.Errorf("%+v, want %+v; %d dropped", got, want, gap.Dropped())
	}
	for i, most := range []uint64{2, 1, 1} {
		h, err := core.Histogram(evs[i])
		must(t, err)
		if h.Recorded || h.Hits() != most*2*n || h.Dropped() != 0 || len(h.Entries()) != threads*keys {
			t.Errorf("%s: %d hits, %d dropped, %d entries, recorded: %v", evs[i].Name, h.Hits(), h.Dropped(), len(h.Entries()), h.Recorded)
		}
		for _, e := range h.Entries() {
			if e.Hits != most*rounds/keys || i == 2 && (e.Sums[0] == 0 || e.Sums[0] > all) {
				t.Errorf("%s: %+v, of %d ns", evs[i].Name, e, all)
			}
		}
		if n := core.Counts(evs[i]); n.Hits != 2*threads*rounds {
			t.Errorf("%s: %+v", evs[i].Name, n)
		}
	}
	if _, err := core.Synthetic(&event.Synthetic{Name: "other"}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("an event that nobody traces: %v", err)
	}
}

// gapIDs are the ids of all pairs of TestSelfHistogramBetween.
const gapIDs = 4000 / 50 * (200 * 199 / 2)

// TestSelfHistogramOfRecords: keys that the code at the hit can not take make records, which the caller counts, also those of strings
// that are too long for it; stacks it takes. The text is that of the kernel's hist files.
func TestSelfHistogramOfRecords(t *testing.T) {
	core, err := kprobes.Self()
	must(t, err)
	name := nameOf(served)
	var defs []*event.Def
	for _, c := range [][2]string{
		{"p:stacks " + name, "keys=common_stacktrace"}, {"p:threads " + name, "keys=common_stacktrace,common_pid.execname"}, {"p:names " + name + " n=$arg2 word=$arg3:gostring", "keys=word:vals=n:sort=word"},
	} {
		d, err := event.Parse(c[0])
		must(t, err)
		d.Hist, err = event.ParseHist(c[1])
		must(t, err)
		if d.Name != "names" {
			d.Stack = event.HistCallers
		}
		defs = append(defs, d)
	}
	evs, err := core.Add(defs, nil)
	must(t, err)
	long := strings.Repeat("long", 30)
	served(1, 10, "short")
	served(1, 20, long)
	for range 3 {
		served(1, 5, long)
	}
	must(t, core.Remove(evs))
	stacks, err := core.Histogram(evs[0])
	must(t, err)
	threads, err := core.Histogram(evs[1])
	must(t, err)
	names, err := core.Histogram(evs[2])
	must(t, err)
	if stacks.Recorded || !threads.Recorded || names.Recorded || stacks.Hits() != 5 || names.Hits() != 1 {
		t.Errorf("recorded: %v, %v and %v; %d and %d hits were counted", stacks.Recorded, threads.Recorded, names.Recorded, stacks.Hits(), names.Hits())
	}
	for h := range core.Hits(ended()) {
		switch h.Event.Name {
		case "threads":
			threads.Add(h)
		case "names":
			names.Add(h)
		default:
			t.Errorf("%s has made a record", h.Event.Name)
		}
	}
	var hits []uint64
	for i, e := range stacks.Entries() {
		pcs := e.Keys[0].([]uint64)
		if all := threads.Entries(); len(all) != 3 || !slices.Equal(all[i].Keys[0].([]uint64), pcs) || all[i].Hits != e.Hits {
			t.Errorf("%#x, of records: %+v", pcs, all)
		}
		if s, ok := core.Symbol(pcs[0]); !ok || s.Name != name || len(pcs) < 3 {
			t.Errorf("callers %#x: %+v", pcs, s)
		}
		hits = append(hits, e.Hits)
	}
	if !slices.Equal(hits, []uint64{1, 1, 3}) {
		t.Errorf("%d hits by callers", hits)
	}
	want := []kprobes.HistEntry{{Keys: []any{long}, Hits: 4, Sums: []uint64{35}}, {Keys: []any{"short"}, Hits: 1, Sums: []uint64{10}}}
	if got := names.Entries(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	var text strings.Builder
	n, err := names.WriteTo(&text)
	must(t, err)
	s := names.String()
	if s != text.String() || int(n) != len(s) || !strings.Contains(s, "{ word: short ") || !strings.HasSuffix(s, "    Hits: 5\n    Entries: 2\n    Dropped: 0\n") {
		t.Errorf("%d bytes: %s", n, s)
	}
	defs[0].Hist = nil
	if _, err := core.Histogram(evs[0]); !errors.Is(err, unix.EINVAL) {
		t.Errorf("no histogram: %v", err)
	}
}

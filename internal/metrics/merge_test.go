package metrics

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestMerge sums up the series of two sets: counters, and histograms with the same bounds and with others.
func TestMerge(t *testing.T) {
	ms := func(n uint64) Number { return Time(Uint(n), time.Millisecond) }
	sum := func(n uint64) *Number { s := ms(n); return &s }
	one, two := NewSet(), NewSet()
	for i, s := range []*Set{one, two} {
		n := uint64(i)
		for _, f := range []Family{
			{Name: "a_total", Kind: Counter, Samples: []Sample{{Labels: []Label{{"x", "1"}}, Value: Uint(10 + n)}, {Labels: []Label{{"x", string(rune('2' + i))}}, Value: Uint(1)}}},
			{Name: "d_seconds", Unit: "seconds", Kind: Histogram, Samples: []Sample{{Count: 4, Sum: sum(7 + n), Buckets: []Bucket{{ms(1 + n), 1}, {ms(4), 3}}}}},
		} {
			if err := s.Add(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	joined := NewSet()
	for _, s := range []*Set{one, two} {
		if err := joined.Join(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := one.AddAll(two); err != nil {
		t.Fatal(err)
	}
	one.Merge()
	const want = `# TYPE a_total counter
# HELP a_total 
a_total{x="1"} 21
a_total{x="2"} 1
a_total{x="3"} 1
# TYPE d_seconds histogram
# HELP d_seconds 
d_seconds_bucket{le="0.001"} 1
d_seconds_bucket{le="0.002"} 2
d_seconds_bucket{le="0.004"} 6
d_seconds_bucket{le="+Inf"} 8
d_seconds_sum 0.015
d_seconds_count 8
`
	for name, s := range map[string]*Set{"merged": one, "joined": joined} {
		if d := cmp.Diff(want, string(Text(nil, s.Families()))); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if err := joined.Join(one); err != nil {
		t.Fatal(err)
	}
	if got := joined.Families()[0].Samples[0].Value.whole; got != 42 {
		t.Errorf("joined once more %d, want 42", got)
	}
	if d := cmp.Diff(uint64(11), two.Families()[0].Samples[0].Value.whole); d != "" {
		t.Errorf("the other set has changed: %s", d)
	}
}

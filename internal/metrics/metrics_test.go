package metrics

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

func TestFormats(t *testing.T) {
	s := NewSet()
	sum := Time(Uint(2_500_000_000), time.Nanosecond)
	for _, f := range []Family{
		{Name: "kprobe_hits_total", Help: "Hits \\ of\na \"thing\".", Kind: Counter, Samples: []Sample{{Labels: []Label{{"event", "a\"b\\c\nd\xff"}}, Value: Uint(math.MaxUint64)}}},
		{Name: "kprobe_sum_of_x", Help: "X.", Kind: Gauge, Samples: []Sample{{Value: Int(-5)}}},
		{Name: "kprobe_empty_total", Help: "None.", Kind: Counter},
		{Name: "kprobe_duration_seconds", Help: "D.", Unit: "seconds", Kind: Histogram, Samples: []Sample{{
			Labels: []Label{{"event", "e"}}, Count: 4, Sum: &sum,
			Buckets: []Bucket{{Time(Uint(1), time.Nanosecond), 1}, {Time(Uint(1), time.Second), 3}},
		}}},
		{Name: "kprobe_n", Help: "N.", Kind: Histogram, Samples: []Sample{{Count: 2, Buckets: []Bucket{{Uint(1 << 63), 2}}}}},
		{Name: "kprobe_hits_total", Kind: Counter, Samples: []Sample{{Value: Uint(1)}}},
	} {
		if err := s.Add(f); err != nil {
			t.Fatal(err)
		}
	}
	const text = `# TYPE kprobe_hits_total counter
# HELP kprobe_hits_total Hits \\ of\na "thing".
kprobe_hits_total{event="a\"b\\c\nd` + "\uFFFD" + `"} 18446744073709551615
kprobe_hits_total 1
# TYPE kprobe_sum_of_x gauge
# HELP kprobe_sum_of_x X.
kprobe_sum_of_x -5
# TYPE kprobe_duration_seconds histogram
# HELP kprobe_duration_seconds D.
kprobe_duration_seconds_bucket{event="e",le="1e-09"} 1
kprobe_duration_seconds_bucket{event="e",le="1"} 3
kprobe_duration_seconds_bucket{event="e",le="+Inf"} 4
kprobe_duration_seconds_sum{event="e"} 2.5
kprobe_duration_seconds_count{event="e"} 4
# TYPE kprobe_n histogram
# HELP kprobe_n N.
kprobe_n_bucket{le="9223372036854775808"} 2
kprobe_n_bucket{le="+Inf"} 2
kprobe_n_count 2
`
	if d := cmp.Diff(text, string(Text(nil, s.Families()))); d != "" {
		t.Error(d)
	}
	open := strings.NewReplacer("# TYPE kprobe_hits_total", "# TYPE kprobe_hits", "# HELP kprobe_hits_total", "# HELP kprobe_hits", `"thing"`, `\"thing\"`, `le="1"`, `le="1.0"`, `5808"`, `5808.0"`,
		"# HELP kprobe_duration", "# UNIT kprobe_duration_seconds seconds\n# HELP kprobe_duration").Replace(text) + "# EOF\n"
	if d := cmp.Diff(open, string(OpenMetrics(nil, s.Families()))); d != "" {
		t.Error(d)
	}
}

func TestCollisions(t *testing.T) {
	s := NewSet()
	for _, c := range []struct {
		f     Family
		words string // "": it is taken
	}{
		{Family{Name: "kprobe_a", Kind: Histogram}, ""},
		{Family{Name: "kprobe_a", Kind: Histogram}, ""},
		{Family{Name: "kprobe_a", Kind: Gauge}, "a histogram and a gauge"},
		{Family{Name: "kprobe_a_sum", Kind: Gauge}, "both have a series kprobe_a_sum"},
		{Family{Name: "kprobe_b_total", Kind: Counter}, ""},
		{Family{Name: "kprobe_b", Kind: Histogram}, "both have a series kprobe_b"},
	} {
		if err := s.Add(c.f); (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s %s: %v", c.f.Kind, c.f.Name, err)
		}
	}
}

func TestName(t *testing.T) {
	for in, want := range map[string]string{"n": "n", "common_timestamp-$t0": "common_timestamp_t0", "9x": "_x", "a.b..c": "a_b_c", "ä": "", "a_": "a"} {
		if got := Name(in); got != want {
			t.Errorf("Name(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestAccepts(t *testing.T) {
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "text/plain;version=0.0.4": false, "application/openmetrics-text; version=1.0.0; q=0.5,text/plain": true,
		"text/plain, Application/OpenMetrics-Text": true, "application/openmetrics-text;q=0": false, "application/openmetrics-text;q=x": false,
	} {
		if got := Accepts(accept); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}

// counted makes metrics of a histogram with these entries, by its keys.
func counted(t *testing.T, spec string, c *Counted, entries []fetch.HistEntry) (*hit.Histogram, string) {
	t.Helper()
	def, err := event.ParseHist(spec)
	if err != nil {
		t.Fatal(err)
	}
	SumKeys(def)
	arg := func(name string, kind event.TypeKind, size int) fetch.Arg {
		return fetch.Arg{Name: name, Size: size, Store: fetch.StoreValue, Type: fetch.Type{Kind: kind, Size: size}}
	}
	text := arg("s", event.String, 4)
	text.Store = fetch.StoreString
	h, err := hit.NewHistogram(def, &fetch.Program{Args: []fetch.Arg{arg("n", event.Unsigned, 1), arg("i", event.Signed, 4), arg("ns", event.Unsigned, 8), text}})
	if err != nil {
		t.Fatal(err)
	}
	h.Load(entries, 7)
	s := NewSet()
	if err := c.Add(s, h); err != nil {
		t.Fatal(err)
	}
	return h, string(Text(nil, s.Families()))
}

func TestCounted(t *testing.T) {
	c := &Counted{Max: 1000, Unit: func(field string) time.Duration {
		if field == "ns" {
			return time.Nanosecond
		}
		return 0
	}}
	neg := ^uint64(15)
	for _, tt := range []struct {
		spec    string
		entries []fetch.HistEntry
		lines   []string
		not     string
	}{
		{
			"keys=n.log2,s",
			[]fetch.HistEntry{{Keys: []uint64{0, 0}, Texts: []string{"", "a"}, Hits: 2, Sums: []uint64{1}}, {Keys: []uint64{3, 0}, Texts: []string{"", "a"}, Hits: 1, Sums: []uint64{6}}, {Keys: []uint64{8, 0}, Texts: []string{"", "b"}, Hits: 4, Sums: []uint64{900}}},
			[]string{`kprobe_n_bucket{s="a",le="1"} 2`, `kprobe_n_bucket{s="a",le="4"} 2`, `kprobe_n_bucket{s="a",le="8"} 3`, `kprobe_n_bucket{s="a",le="256"} 3`, `kprobe_n_bucket{s="a",le="+Inf"} 3`, `kprobe_n_sum{s="a"} 7`, `kprobe_n_count{s="b"} 4`, "kprobe_hist_dropped_hits_total 7"},
			`le="512"`,
		},
		{
			"keys=i.buckets=16:vals=i",
			[]fetch.HistEntry{{Keys: []uint64{neg}, Hits: 2, Sums: []uint64{^uint64(4)}}, {Keys: []uint64{0}, Hits: 1, Sums: []uint64{3}}},
			[]string{`kprobe_i_bucket{le="-1"} 2`, `kprobe_i_bucket{le="15"} 3`, `kprobe_i_sum -2`},
			`le="16"`,
		},
		{
			"keys=ns.log2", nil, []string{`kprobe_duration_seconds_bucket{le="1e-09"} 0`, `kprobe_duration_seconds_bucket{le="4398.046511104"} 0`, `kprobe_duration_seconds_sum 0`, `kprobe_duration_seconds_count 0`}, `le="8796`,
		},
		{
			"keys=i,s:vals=n,i,ns",
			[]fetch.HistEntry{{Keys: []uint64{neg, 0}, Texts: []string{"", "x\ny"}, Hits: 5, Sums: []uint64{10, neg, 1500}}},
			[]string{`kprobe_keyed_hits_total{i="-16",s="x\ny"} 5`, `kprobe_n_total{i="-16",s="x\ny"} 10`, `kprobe_sum_of_i{i="-16",s="x\ny"} -16`, `kprobe_duration_seconds_total{i="-16",s="x\ny"} 1.5e-06`},
			"_bucket",
		},
		{
			"keys=common_pid.execname,common_cpu.hex", []fetch.HistEntry{{Keys: []uint64{12, 10}, Hits: 5}}, []string{`kprobe_keyed_hits_total{common_pid="12",comm="",common_cpu="0xa"} 5`}, "kprobe_n",
		},
	} {
		c.shown = nil
		_, text := counted(t, tt.spec, c, tt.entries)
		for _, line := range tt.lines {
			if !strings.Contains("\n"+text, "\n"+line+"\n") {
				t.Errorf("%s: no line %s in\n%s", tt.spec, line, text)
			}
		}
		if strings.Contains(text, tt.not) {
			t.Errorf("%s: %s in\n%s", tt.spec, tt.not, text)
		}
	}
}

// What is left out for there are too many series is counted, and what was shown stays.
func TestBound(t *testing.T) {
	c := &Counted{Max: 3}
	entries := func(hits ...uint64) (es []fetch.HistEntry) {
		for i, n := range hits {
			if n > 0 {
				es = append(es, fetch.HistEntry{Keys: []uint64{uint64(i)}, Hits: n})
			}
		}
		return es
	}
	_, first := counted(t, "keys=n", c, entries(5, 9))
	_, then := counted(t, "keys=n", c, entries(5, 9, 100, 50, 40))
	for text, lines := range map[string][]string{
		first: {`kprobe_keyed_hits_total{n="0"} 5`, `kprobe_keyed_hits_total{n="1"} 9`, "kprobe_series_left_out 0"},
		then:  {`kprobe_keyed_hits_total{n="0"} 5`, `kprobe_keyed_hits_total{n="1"} 9`, `kprobe_keyed_hits_total{n="2"} 100`, "kprobe_series_left_out 2", "kprobe_series_left_out_hits_total 90"},
	} {
		for _, line := range lines {
			if !strings.Contains(text, line+"\n") {
				t.Errorf("no line %s in\n%s", line, text)
			}
		}
	}
	if strings.Contains(then, `n="3"`) {
		t.Error(then)
	}
}

func TestSince(t *testing.T) {
	c := &Counted{Max: 100}
	h, _ := counted(t, "keys=n:vals=i", c, []fetch.HistEntry{{Keys: []uint64{1}, Hits: 2, Sums: []uint64{20}}, {Keys: []uint64{2}, Hits: 3, Sums: []uint64{30}}})
	before := h.Copy()
	h.Load([]fetch.HistEntry{{Keys: []uint64{1}, Hits: 4, Sums: []uint64{1}}, {Keys: []uint64{5}, Hits: 6, Sums: []uint64{2}}}, 1)
	h.Since(before)
	got := map[uint64][2]uint64{}
	h.Each(func(keys []hit.HistKey, hits uint64, sums []uint64) { got[keys[0].Num] = [2]uint64{hits, sums[0]} })
	if d := cmp.Diff(map[uint64][2]uint64{1: {4, 1}, 5: {6, 2}}, got); d != "" || h.Hits() != 10 || h.Dropped() != 1 || before.Hits() != 5 {
		t.Errorf("%s; %d hits, %d dropped, %d before", d, h.Hits(), h.Dropped(), before.Hits())
	}
}

package metrics

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// Counted is a histogram of hits as metrics. The first key with .log2 or .buckets=N makes it a histogram of Prometheus, whose sum is that of the value of
// the same name. The other keys are labels. What a bound of series leaves out is counted, and what is shown once is shown from then on: so all counts only grow.
type Counted struct {
	// Labels are those that all series have.
	Labels []Label
	// Unit is what 1 of an argument stands for; 0: it is no time.
	Unit func(field string) time.Duration
	// Symbol names addresses, for keys with .sym.
	Symbol fetch.Resolver
	// Max is the most series that are shown.
	Max int

	shown map[string]bool // label sets, by their values
}

// Families are the names of the metrics that Add makes for every histogram.
const (
	keyedHits = "kprobe_keyed_hits_total"
	dropped   = "kprobe_hist_dropped_hits_total"
	leftOut   = "kprobe_series_left_out"
	leftHits  = "kprobe_series_left_out_hits_total"
)

// CheckKeys says why a histogram can not be shown as metrics.
func CheckKeys(def *event.Hist) error {
	for _, k := range def.Keys {
		if k.Mod == event.HistStack || k.Mod == event.HistStacktrace {
			return fmt.Errorf("key %s: a stack is no label; --format pprof makes a profile of it", k.Name)
		}
	}
	return nil
}

// SumKeys gives a histogram the value that the sum of its buckets is made of, where it has none and has room for one.
func SumKeys(def *event.Hist) {
	i := slices.IndexFunc(def.Keys, bucketed)
	if i < 0 || def.Keys[i].Expr != nil || len(def.Vals) == event.MaxHistVals {
		return
	}
	name := def.Keys[i].Name
	if !slices.ContainsFunc(def.Vals, func(v event.HistField) bool { return v.Name == name && v.Expr == nil }) {
		def.Vals = append(def.Vals, event.HistField{Name: name})
	}
}

// bucketed says whether a key is one of ranges.
func bucketed(k event.HistField) bool { return k.Mod == event.HistLog2 || k.Mod == event.HistBuckets }

// view is a histogram while it is being made into series.
type view struct {
	*Counted
	keys, vals []hit.HistColumn
	names      []string // of the keys, as labels
	le         int      // the key that is the bound; -1: there is none
	bounds     []uint64 // as the key has them
	groups     map[string]*group
	order      []*group
	left       map[string]bool
	leftHits   uint64
}

// group is what the entries with the same labels have counted.
type group struct {
	labels []Label
	hits   uint64
	sums   []uint64
	at     map[uint64]uint64 // by bound, not summed up yet
}

// Add adds a histogram's series to a set. The histogram must not change meanwhile.
func (c *Counted) Add(to *Set, h *hit.Histogram) error {
	v := &view{Counted: c, le: -1, groups: map[string]*group{}, left: map[string]bool{}}
	v.keys, v.vals = h.Columns()
	v.names = labelNames(v.keys, c.Labels)
	for i := range v.keys {
		if v.le < 0 && bucketed(v.keys[i].HistField) {
			v.le = i
		}
	}
	if c.shown == nil {
		c.shown = map[string]bool{}
	}
	v.findBounds(h)
	h.Each(v.count)
	if len(v.order) == 0 && len(v.keys) == 1 && v.le == 0 {
		v.group("", nil)
	}
	return v.add(to, h.Dropped())
}

// timeBounds is the exponent of the last bound of nanoseconds: 73 minutes.
const timeBounds = 42

// findBounds finds the bounds of the buckets: of .log2 all that the type has, so that the histograms of other processes have the same.
func (v *view) findBounds(h *hit.Histogram) {
	if v.le < 0 {
		return
	}
	k := &v.keys[v.le]
	if k.Mod == event.HistLog2 {
		most := 8 * k.Size
		if k.Signed {
			most--
		}
		if v.unit(k) != 0 {
			most = min(most, timeBounds)
		}
		for exp := range min(most, 63) + 1 {
			v.bounds = append(v.bounds, uint64(exp))
		}
	} else {
		seen := map[uint64]bool{}
		h.Each(func(keys []hit.HistKey, _ uint64, _ []uint64) { seen[keys[v.le].Num] = true })
		v.bounds = slices.SortedFunc(maps.Keys(seen), func(a, b uint64) int {
			if k.Signed {
				return cmp.Compare(int64(a), int64(b))
			}
			return cmp.Compare(a, b)
		})
	}
	v.bounds = v.bounds[:min(len(v.bounds), max(v.Max-3, 0))] // what lies above is in +Inf
}

// bound is the largest number of a bucket.
func (v *view) bound(at uint64) Number {
	k := &v.keys[v.le]
	n := Uint(1 << at)
	if k.Mod == event.HistBuckets && k.Signed {
		n = Int(int64(at + k.Buckets - 1))
	} else if k.Mod == event.HistBuckets {
		n = Uint(at + k.Buckets - 1)
	}
	return n.In(v.unit(k))
}

// cost is how many series the entries with the same labels are.
func (v *view) cost() int {
	n := len(v.vals)
	if v.le < 0 {
		return n + 1
	}
	if v.sum() >= 0 {
		n--
	}
	return n + len(v.bounds) + 3
}

// count takes an entry.
func (v *view) count(keys []hit.HistKey, hits uint64, sums []uint64) {
	var labels []Label
	var id strings.Builder
	for i := range keys {
		if i == v.le {
			continue
		}
		from := len(labels)
		labels = v.label(labels, i, &keys[i])
		for _, l := range labels[from:] {
			id.WriteString(strconv.Quote(l.Value))
		}
	}
	g := v.group(id.String(), labels)
	if g == nil {
		v.left[id.String()] = true
		v.leftHits += hits
		return
	}
	g.hits += hits
	for i, s := range sums {
		g.sums[i] += s
	}
	if v.le >= 0 {
		g.at[keys[v.le].Num] += hits
	}
}

// group finds the group of a label set; nil: it is not shown.
func (v *view) group(id string, labels []Label) *group {
	if g := v.groups[id]; g != nil {
		return g
	}
	if !v.shown[id] {
		if len(v.shown) > 0 && (len(v.shown)+1)*v.cost() > v.Max {
			return nil
		}
		v.shown[id] = true
	}
	g := &group{labels: append(slices.Clone(v.Labels), labels...), sums: make([]uint64, len(v.vals)), at: map[uint64]uint64{}}
	v.groups[id] = g
	v.order = append(v.order, g)
	return g
}

package metrics

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// add adds what the groups have counted to a set.
func (v *view) add(to *Set, lost uint64) error {
	families := []Family{
		{Name: dropped, Help: "Hits that are in no entry of a histogram: there was no room for one more, or no key.", Kind: Counter, Samples: []Sample{{Labels: v.Labels, Value: Uint(lost)}}},
		{Name: leftOut, Help: "Label sets of a histogram that are not shown: there were too many series.", Kind: Gauge, Samples: []Sample{{Labels: v.Labels, Value: Uint(uint64(len(v.left)))}}},
		{Name: leftHits, Help: "Hits in entries with label sets that are not shown.", Kind: Counter, Samples: []Sample{{Labels: v.Labels, Value: Uint(v.leftHits)}}},
	}
	if v.le < 0 {
		families = append(families, v.hits())
	} else {
		families = append(families, v.histogram())
	}
	for i := range v.vals {
		if i != v.sum() {
			families = append(families, v.value(i))
		}
	}
	for _, f := range families {
		if err := to.Add(f); err != nil {
			return err
		}
	}
	return nil
}

// hits makes the counter of a histogram without bounds.
func (v *view) hits() Family {
	f := Family{Name: keyedHits, Help: "Hits of an event by its histogram's keys.", Kind: Counter}
	for _, g := range v.order {
		f.Samples = append(f.Samples, Sample{Labels: g.labels, Value: Uint(g.hits)})
	}
	return f
}

// histogram makes the histogram.
func (v *view) histogram() Family {
	f := v.family(&v.keys[v.le], Histogram, "kprobe", "")
	f.Help = "Hits of an event by what it has recorded: " + v.keys[v.le].Name + "."
	for _, g := range v.order {
		s := Sample{Labels: g.labels, Count: g.hits}
		n := uint64(0)
		for _, at := range v.bounds {
			n += g.at[at]
			s.Buckets = append(s.Buckets, Bucket{v.bound(at), n})
		}
		if i := v.sum(); i >= 0 {
			sum := v.number(&v.vals[i], g.sums[i])
			s.Sum = &sum
		}
		f.Samples = append(f.Samples, s)
	}
	return f
}

// value makes the metric of a value: a counter, of one with a sign a gauge, since its sum may fall.
func (v *view) value(i int) Family {
	f := v.family(&v.vals[i], Counter, "kprobe", "total")
	if v.vals[i].Signed {
		f = v.family(&v.vals[i], Gauge, "kprobe_sum_of", "")
	}
	f.Help = "Sum of what an event has recorded: " + v.vals[i].Name + "."
	for _, g := range v.order {
		f.Samples = append(f.Samples, Sample{Labels: g.labels, Value: v.number(&v.vals[i], g.sums[i])})
	}
	return f
}

// sum is the index of the value that is the sum of the buckets' numbers; -1: there is none.
func (v *view) sum() int {
	if v.le < 0 {
		return -1
	}
	return slices.IndexFunc(v.vals, func(c hit.HistColumn) bool { return c.Name == v.keys[v.le].Name })
}

func (v *view) number(c *hit.HistColumn, n uint64) Number {
	if c.Signed {
		return Int(int64(n)).In(v.unit(c))
	}
	return Uint(n).In(v.unit(c))
}

// unit is what 1 of a column stands for; 0: it is no time.
func (v *view) unit(c *hit.HistColumn) time.Duration {
	if c.Time != 0 || v.Unit == nil {
		return c.Time
	}
	return v.Unit(c.Name)
}

// subUnits are ends of names that say a unit of a time.
var subUnits = []string{"ns", "nsec", "nsecs", "nanoseconds", "us", "usec", "usecs", "microseconds"}

// family names the metric of a column. Times are in seconds, and their names say so in place of another unit.
func (v *view) family(c *hit.HistColumn, kind Kind, prefix, suffix string) Family {
	f := Family{Kind: kind}
	words := []string{prefix, Name(c.Name)}
	if v.unit(c) != 0 {
		f.Unit = "seconds"
		for _, u := range subUnits {
			words[1] = strings.TrimSuffix(words[1], "_"+u)
		}
		if slices.Contains(subUnits, words[1]) {
			words[1] = "duration"
		}
		if words[1] != f.Unit {
			words = append(words, f.Unit)
		}
	}
	if suffix != "" {
		words = append(words, suffix)
	}
	f.Name = Name(words...)
	return f
}

// execName is the label of a thread's name, which .execname has beside the number.
const execName = "comm"

// labelNames gives the keys names as labels, that none of the others has.
func labelNames(keys []hit.HistColumn, others []Label) (names []string) {
	taken := map[string]bool{"le": true, execName: true}
	for _, l := range others {
		taken[l.Name] = true
	}
	for i := range keys {
		name := Name(keys[i].Name)
		if name == "" || strings.HasPrefix(name, "__") {
			name = "key" + name
		}
		for taken[name] {
			name = "key_" + name
		}
		taken[name] = true
		names = append(names, name)
	}
	return names
}

// label appends the label, or labels, of a key.
func (v *view) label(dst []Label, i int, k *hit.HistKey) []Label {
	c := &v.keys[i]
	var text string
	switch {
	case c.Text && c.Mod != event.HistExecname:
		text = k.Text
	case c.Mod == event.HistSym || c.Mod == event.HistSymOffset:
		sym := fetch.AppendSym(nil, k.Num, v.Symbol)
		if c.Mod == event.HistSym {
			sym, _, _ = bytes.Cut(sym, []byte("+0x"))
		}
		text = string(sym)
	case c.Mod == event.HistHex:
		text = fmt.Sprintf("%#x", k.Num)
	case c.Mod == event.HistLog2 && k.Num > 63:
		text = "+Inf"
	case c.Mod == event.HistLog2:
		text = strconv.FormatUint(1<<k.Num, 10)
	case c.Mod == event.HistBuckets:
		text = fmt.Sprintf("%d-%d", k.Num, k.Num+c.Buckets-1)
	case c.Signed:
		text = strconv.FormatInt(int64(k.Num), 10)
	default:
		text = strconv.FormatUint(k.Num, 10)
	}
	dst = append(dst, Label{v.names[i], text})
	if c.Mod == event.HistExecname {
		dst = append(dst, Label{execName, k.Text})
	}
	return dst
}

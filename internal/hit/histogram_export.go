package hit

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// HistColumn says what a key or a value of a histogram is.
type HistColumn struct {
	event.HistField
	Size   int  // bytes of the number
	Signed bool // the number is an int64 in two's complement
	Text   bool // the key is a string
	Stack  bool // the key is a stack
	// Time is what 1 stands for where the number is a time, or is made of times by an expression; 0: it is none.
	Time time.Duration
}

// HistKey is a key of an entry: its number, of .log2 the exponent; its text, of .execname beside the number; or its stack.
type HistKey struct {
	Num   uint64
	Text  string
	Stack []fetch.StackFrame
}

// Columns are the keys, and the values beside hitcount.
func (h *Histogram) Columns() (keys, vals []HistColumn) {
	return h.columns(h.keys), h.columns(h.vals)
}

func (h *Histogram) columns(fs []histField) (out []HistColumn) {
	for i := range fs {
		f := &fs[i]
		out = append(out, HistColumn{HistField: f.HistField, Size: f.size, Signed: f.signed, Text: f.text, Stack: f.stack, Time: f.time()})
	}
	return out
}

// time is what 1 stands for in a field that is a time, or made of times; 0: it is none.
func (f *histField) time() time.Duration {
	switch {
	case f.from == fromTime && f.def.Usecs:
		return time.Microsecond
	case f.from == fromTime:
		return time.Nanosecond
	case f.from == fromRef:
		return f.ref.is.time()
	case f.from == fromOp && f.y != nil:
		return max(f.x.time(), f.y.time())
	case f.from == fromOp:
		return f.x.time()
	}
	return 0
}

// Each gives the entries: those with the most hits first, and of as many hits in an order that stays. What it gives is valid until f returns.
func (h *Histogram) Each(f func(keys []HistKey, hits uint64, sums []uint64)) {
	var all []*histEntry
	for _, e := range h.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *histEntry) int {
		return cmp.Or(cmp.Compare(b.hits, a.hits), strings.Compare(a.order, b.order))
	})
	var keys []HistKey
	for _, e := range all {
		keys = keys[:0]
		for i := range e.keys {
			k := &e.keys[i]
			keys = append(keys, HistKey{Num: k.num, Text: k.text, Stack: k.stack})
		}
		f(keys, e.hits, e.sums)
	}
}

// Copy makes a histogram with the same entries, to be read and to have more loaded while this one counts on.
func (h *Histogram) Copy() *Histogram {
	out := *h
	out.key, out.stack = nil, nil
	out.histTable = &histTable{entries: make(map[string]*histEntry, len(h.entries)), hits: h.hits, dropped: h.dropped}
	for k, e := range h.entries {
		c := *e
		c.sums = slices.Clone(e.sums)
		out.entries[k] = &c
	}
	return &out
}

// Since takes away what another histogram of the same definition had counted before: what is left was counted since.
func (h *Histogram) Since(before *Histogram) {
	for k, b := range before.entries {
		e := h.entries[k]
		if e == nil {
			continue
		}
		e.hits -= min(b.hits, e.hits)
		for i := range e.sums {
			e.sums[i] -= b.sums[i]
		}
		if e.hits == 0 {
			delete(h.entries, k)
		}
	}
	h.hits -= min(before.hits, h.hits)
	h.dropped -= min(before.dropped, h.dropped)
}

// Histograms gives the histograms that triggers have made for an event.
func (s *Triggers) Histograms(group, name string) (out []*Histogram) {
	e := s.events[[2]string{group, name}]
	if e == nil {
		return nil
	}
	for _, t := range e.triggers {
		if t.hist != nil {
			out = append(out, t.hist)
		}
	}
	return out
}

// Definition is what the histogram was made of.
func (h *Histogram) Definition() *event.Hist { return h.def }

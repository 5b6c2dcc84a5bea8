package hit

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// Histogram counts an event's hits by keys, and sums up values, as a hist trigger of the kernel does
// (kernel/trace/trace_events_hist.c, Linux 6.18).
type Histogram struct {
	def  *event.Hist // with its fields as they have been found
	ev   *histEvent
	keys []histField
	vals []histField
	histVars
	*histTable
	made   []*Histogram       // for its actions, of other events
	filter *fetch.Filter      // of a synthetic event's
	paused bool               // hits are not counted
	stack  []fetch.StackFrame // of the keys that are stacks, at this hit
	key    []byte
	values []histValue // of the variables that it refers to, at this hit
}

// histTable has the entries. Histograms of one name share one.
type histTable struct {
	entries map[string]*histEntry
	hits    uint64
	dropped uint64
}

// histEntry is one line.
type histEntry struct {
	keys  []histKey
	hits  uint64
	sums  []uint64
	vars  []histSlot
	order string // the key, for those that are equal otherwise
}

// histKey is a key of an entry.
type histKey struct {
	num   uint64
	text  string // a string, the thread's name
	stack []fetch.StackFrame
}

// occurrence is a hit of a probe, or of a synthetic event at a hit of a probe.
type occurrence struct {
	hit     *Hit
	values  []fetch.Value
	comm    string
	refs    []histValue // the variables that the histogram refers to
	unknown bool        // a value that was asked for is not known
}

// NewHistogram makes the histogram of an event with a program of arguments, which refers to no other's variables. Its error is an
// *event.HistError.
func NewHistogram(def *event.Hist, prog *fetch.Program) (*Histogram, error) {
	s := NewHistograms()
	s.Event("", "", prog)
	return s.Add("", "", def)
}

// Add counts a hit with its values. comm is the thread's name. A result that is not known has no key: such a hit is dropped.
func (h *Histogram) Add(hit *Hit, vs []fetch.Value, comm string) {
	h.count(&occurrence{hit: hit, values: vs, comm: comm}, nil)
}

// count counts an occurrence, and does the actions. traced gets what they trace.
func (h *Histogram) count(o *occurrence, traced tracer) {
	if h.paused || h.filter != nil && !h.filter.Match(o.values, &fetch.FilterHit{PID: uint64(o.hit.TID), CPU: uint64(o.hit.CPU), Comm: o.comm}) {
		return
	}
	var keys [event.MaxHistKeys]histKey
	h.key, h.stack = h.key[:0], h.stack[:0]
	for i := range h.keys {
		h.take(&h.keys[i], &keys[i], o)
	}
	if o.unknown {
		h.dropped++
		return
	}
	o.refs = h.values
	if !h.resolve(o, false) {
		return
	}
	e := h.entries[string(h.key)]
	if e == nil {
		if len(h.entries) >= h.def.Size {
			h.dropped++
			return
		}
		e = h.newEntry(keys[:len(h.keys)])
		for i := range e.keys {
			e.keys[i].stack = slices.Clone(e.keys[i].stack)
		}
	}
	h.hits++
	e.hits++
	for i := range h.vals {
		e.sums[i] += h.vals[i].number(o)
	}
	h.update(e, o)
	if h.resolve(o, true) {
		h.act(e, o, traced)
	}
}

// newEntry makes the entry of the key that has been taken.
func (h *Histogram) newEntry(keys []histKey) *histEntry {
	e := &histEntry{
		keys: slices.Clone(keys), sums: make([]uint64, len(h.vals)), vars: make([]histSlot, len(h.vars)), order: string(h.key),
	}
	h.entries[e.order] = e
	return e
}

// Load adds what generated code has counted.
func (h *Histogram) Load(entries []fetch.HistEntry, dropped uint64) {
	h.dropped += dropped
	for i := range entries {
		in := &entries[i]
		h.key = h.key[:0]
		for k := range in.Keys {
			if h.keys[k].from == fromStack {
				h.key = appendStack(h.key, in.Callers)
			} else if h.keys[k].text {
				h.key = append(binary.AppendUvarint(h.key, uint64(len(in.Texts[k]))), in.Texts[k]...)
			} else {
				h.key = binary.BigEndian.AppendUint64(h.key, in.Keys[k])
			}
		}
		e := h.entries[string(h.key)]
		if e == nil && len(h.entries) >= h.def.Size { // the reader has counted hits with long strings
			h.dropped += in.Hits
			continue
		}
		if e == nil {
			e = h.newEntry(make([]histKey, len(h.keys)))
			for k := range e.keys {
				switch e.keys[k].num = in.Keys[k]; {
				case h.keys[k].from == fromStack:
					e.keys[k].stack = in.Callers
				case h.keys[k].text:
					e.keys[k].text = in.Texts[k]
				}
			}
		}
		h.hits += in.Hits
		e.hits += in.Hits
		for v := range e.sums {
			e.sums[v] += in.Sums[v]
		}
	}
}

// take takes a key, and appends what tells it from others.
func (h *Histogram) take(f *histField, k *histKey, o *occurrence) {
	switch {
	case f.stack:
		n := len(h.stack)
		h.stack = f.frames(h.stack, o)
		k.stack = h.stack[n:]
		h.key = appendStack(h.key, k.stack)
	case f.text:
		k.text = f.string(o)
		h.key = append(binary.AppendUvarint(h.key, uint64(len(k.text))), k.text...)
	default:
		k.num = f.number(o)
		if f.Mod == event.HistExecname {
			k.text = o.comm
		}
		h.key = binary.BigEndian.AppendUint64(h.key, k.num)
	}
}

// appendStack appends what tells a stack from others.
func appendStack(key []byte, stack []fetch.StackFrame) []byte {
	key = binary.AppendUvarint(key, uint64(len(stack)))
	for _, c := range stack {
		key = binary.BigEndian.AppendUint64(key, c.PC)
	}
	return key
}

// Hits is the number of hits in the histogram.
func (h *Histogram) Hits() uint64 { return h.hits }

// Dropped is the number of hits for which there was no room, or no key.
func (h *Histogram) Dropped() uint64 { return h.dropped }

// sorted gives the entries in the order that is asked for.
func (h *Histogram) sorted() []*histEntry {
	out := make([]*histEntry, 0, len(h.entries))
	for _, e := range h.entries {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b *histEntry) int {
		for i := range h.def.Sort {
			s := &h.def.Sort[i]
			n := h.compare(a, b, s.Column(h.def))
			if s.Descending {
				n = -n
			}
			if n != 0 {
				return n
			}
		}
		return strings.Compare(a.order, b.order)
	})
	return out
}

// compare compares two entries by a column.
func (h *Histogram) compare(a, b *histEntry, column int) int {
	switch {
	case column < 0:
		return cmp.Compare(a.hits, b.hits)
	case column >= len(h.keys):
		return cmp.Compare(a.sums[column-len(h.keys)], b.sums[column-len(h.keys)])
	}
	f, x, y := &h.keys[column], &a.keys[column], &b.keys[column]
	switch {
	case f.text:
		return strings.Compare(x.text, y.text)
	case f.signed && f.Mod != event.HistLog2:
		return cmp.Compare(int64(x.num), int64(y.num))
	}
	return cmp.Compare(x.num, y.num)
}

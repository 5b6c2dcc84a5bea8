package hit

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// Histogram counts an event's hits by keys, and sums up values, as a hist trigger of the kernel does
// (kernel/trace/trace_events_hist.c, Linux 6.18).
type Histogram struct {
	def     *event.Hist
	keys    []histField
	vals    []histField
	entries map[string]*histEntry
	hits    uint64
	dropped uint64
	stack   []fetch.StackFrame
	key     []byte
}

// histField is where a key or a value comes from.
type histField struct {
	event.HistField
	from   histSource
	arg    int // fromArg: its index
	text   bool
	signed bool
}

type histSource uint8

const (
	fromArg   histSource = iota
	fromPID              // the thread
	fromCPU              // the CPU
	fromStack            // the callers
)

// histEntry is one line.
type histEntry struct {
	keys  []histKey
	hits  uint64
	sums  []uint64
	order string // the key, for those that are equal otherwise
}

// histKey is a key of an entry.
type histKey struct {
	num   uint64
	text  string // a string, the thread's name
	stack []fetch.StackFrame
}

// NewHistogram makes the histogram of an event with a program of arguments. Its error is an *event.HistError.
func NewHistogram(def *event.Hist, prog *fetch.Program) (*Histogram, error) {
	h := &Histogram{def: def, entries: map[string]*histEntry{}}
	for _, f := range def.Keys {
		k, err := h.field(f, prog)
		if err != nil {
			return nil, err
		}
		if k.text && f.Mod != event.HistPlain {
			return nil, def.Refuse(event.HistBadFieldModifier, f.Pos, "a string is shown as it is")
		}
		h.keys = append(h.keys, k)
	}
	for _, f := range def.Vals {
		v, err := h.field(f, prog)
		if err != nil {
			return nil, err
		}
		if v.text || v.from == fromStack {
			return nil, def.Refuse(event.HistErrno, f.Pos, "a value is a number")
		}
		h.vals = append(h.vals, v)
	}
	return h, nil
}

// field finds a field.
func (h *Histogram) field(f event.HistField, prog *fetch.Program) (histField, error) {
	out := histField{HistField: f}
	switch f.Name {
	case "common_pid":
		out.from = fromPID
		return out, nil
	case "common_cpu", "cpu":
		out.from = fromCPU
		return out, nil
	case "common_stacktrace":
		out.from = fromStack
		return out, nil
	}
	var names []string
	for i := range prog.Args {
		a := &prog.Args[i]
		if a.Name != f.Name {
			names = append(names, a.Name)
			continue
		}
		if a.Count > 0 {
			return out, h.def.Refuse(event.HistErrno, f.Pos, "an array is no field of a histogram")
		}
		out.arg = i
		out.text = a.Type.Kind == event.SymStr || a.Store != fetch.StoreValue
		out.signed = a.Type.Kind == event.Signed
		return out, nil
	}
	return out, h.def.Refuse(event.HistFieldNotFound, f.Pos, fmt.Sprintf("the event has %s; common_pid, common_cpu and common_stacktrace are in all", strings.Join(append(names, "no other"), ", ")))
}

// number is a field's number at a hit.
func (f *histField) number(h *Hit, vs []fetch.Value) uint64 {
	switch f.from {
	case fromPID:
		return uint64(h.TID)
	case fromCPU:
		return uint64(h.CPU)
	}
	v := &vs[f.arg]
	if f.signed {
		return uint64(v.Arg.Type.Int(v.Num))
	}
	return v.Num
}

// Add counts a hit with its values. comm is the thread's name. A result that is not known has no key: such a hit is dropped.
func (h *Histogram) Add(hit *Hit, vs []fetch.Value, comm string) {
	var keys [event.MaxHistKeys]histKey
	h.key = h.key[:0]
	for i := range h.keys {
		f := &h.keys[i]
		if f.from == fromArg && vs[f.arg].Unknown {
			h.dropped++
			return
		}
		h.take(f, &keys[i], hit, vs, comm)
	}
	e := h.entries[string(h.key)]
	if e == nil {
		if len(h.entries) >= h.def.Size {
			h.dropped++
			return
		}
		e = &histEntry{keys: slices.Clone(keys[:len(h.keys)]), sums: make([]uint64, len(h.vals)), order: string(h.key)}
		for i := range e.keys {
			e.keys[i].stack = slices.Clone(e.keys[i].stack)
		}
		h.entries[e.order] = e
	}
	h.hits++
	e.hits++
	for i := range h.vals {
		e.sums[i] += h.vals[i].number(hit, vs)
	}
}

// Load adds what generated code has counted.
func (h *Histogram) Load(entries []fetch.HistEntry, dropped uint64) {
	h.dropped += dropped
	for i := range entries {
		in := &entries[i]
		h.key = h.key[:0]
		for k := range in.Keys {
			if h.keys[k].text {
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
			e = &histEntry{keys: make([]histKey, len(h.keys)), sums: make([]uint64, len(h.vals)), order: string(h.key)}
			for k := range e.keys {
				if e.keys[k].num = in.Keys[k]; h.keys[k].text {
					e.keys[k].text = in.Texts[k]
				}
			}
			h.entries[e.order] = e
		}
		h.hits += in.Hits
		e.hits += in.Hits
		for v := range e.sums {
			e.sums[v] += in.Sums[v]
		}
	}
}

// take takes a key, and appends what tells it from others.
func (h *Histogram) take(f *histField, k *histKey, hit *Hit, vs []fetch.Value, comm string) {
	switch {
	case f.from == fromStack:
		h.stack, _, _ = hit.Callers(append(h.stack[:0], fetch.StackFrame{PC: hit.Event.Addr, Interrupted: true}))
		if hit.Event.Return {
			h.stack = h.stack[1:]
		}
		k.stack = h.stack[:min(len(h.stack), event.HistCallers)]
		h.key = binary.AppendUvarint(h.key, uint64(len(k.stack)))
		for _, c := range k.stack {
			h.key = binary.BigEndian.AppendUint64(h.key, c.PC)
		}
	case f.text:
		v := &vs[f.arg]
		text := v.Str
		if v.Fault {
			text = []byte("(fault)")
		}
		k.text = string(text)
		h.key = append(binary.AppendUvarint(h.key, uint64(len(text))), text...)
	default:
		k.num = f.number(hit, vs)
		switch f.Mod {
		case event.HistLog2:
			k.num = uint64(ceilLog2(k.num))
		case event.HistBuckets:
			k.num -= k.num % f.Buckets
		case event.HistExecname:
			k.text = comm
		}
		h.key = binary.BigEndian.AppendUint64(h.key, k.num)
	}
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

// AppendText appends the histogram as an event's hist file shows it.
func (h *Histogram) AppendText(dst []byte, symbol fetch.Resolver) []byte {
	dst = fmt.Appendf(dst, "# event histogram\n#\n# trigger info: %s [active]\n#\n\n", h.def)
	for _, e := range h.sorted() {
		dst = append(dst, "{ "...)
		wide := false
		for i := range h.keys {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			wide = wide || h.keys[i].from == fromStack
			dst = h.keys[i].append(dst, &e.keys[i], symbol)
		}
		if !wide {
			dst = append(dst, ' ')
		}
		dst = append(dst, '}')
		if !h.def.NoHitcount {
			dst = fmt.Appendf(dst, " hitcount: %10d", e.hits)
		}
		for i := range h.vals {
			verb := "d"
			if h.vals[i].Mod == event.HistHex {
				verb = "x"
			}
			dst = fmt.Appendf(dst, " %s: %10"+verb, h.vals[i].Name, e.sums[i])
		}
		dst = append(dst, '\n')
	}
	return fmt.Appendf(dst, "\nTotals:\n    Hits: %d\n    Entries: %d\n    Dropped: %d\n", h.hits, len(h.entries), h.dropped)
}

// append appends a key.
func (f *histField) append(dst []byte, k *histKey, symbol fetch.Resolver) []byte {
	switch {
	case f.from == fromStack:
		dst = append(dst, "common_stacktrace:\n"...)
		for _, c := range k.stack {
			dst = append(fetch.AppendFrame(append(dst, "         "...), c, symbol), '\n')
		}
		return dst
	case f.text:
		return fmt.Appendf(dst, "%s: %-50s", f.Name, clean(k.text))
	}
	switch f.Mod {
	case event.HistHex:
		return fmt.Appendf(dst, "%s: %x", f.Name, k.num)
	case event.HistSym, event.HistSymOffset:
		name, width := fetch.AppendSym(nil, k.num, symbol), 55
		if f.Mod == event.HistSym {
			width = 45
			name, _, _ = bytes.Cut(name, []byte("+0x"))
		}
		return fmt.Appendf(dst, "%s: [%x] %-*s", f.Name, k.num, width, name)
	case event.HistExecname:
		return fmt.Appendf(dst, "%s: %-16s[%10d]", f.Name, clean(k.text), k.num)
	case event.HistLog2:
		return fmt.Appendf(dst, "%s: ~ 2^%-2d", f.Name, k.num)
	case event.HistBuckets:
		return fmt.Appendf(dst, "%s: ~ %d-%d", f.Name, k.num, k.num+f.Buckets-1)
	}
	return fmt.Appendf(dst, "%s: %10d", f.Name, k.num)
}

// clean makes a string of the program harmless for a terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

package hit

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// graphWidth is the width of the bar of .graph.
const graphWidth = 20

// String is the histogram as its event's trigger file shows it.
func (h *Histogram) String() string {
	if h.paused {
		return h.def.String() + " [paused]"
	}
	return h.def.String() + " [active]"
}

// AppendText appends the histogram as an event's hist file shows it.
func (h *Histogram) AppendText(dst []byte, symbol fetch.Resolver) []byte {
	dst = fmt.Appendf(dst, "# event histogram\n#\n# trigger info: %s\n#\n\n", h)
	total, most := h.sums()
	for _, e := range h.sorted() {
		dst = h.appendKeys(dst, e.keys, symbol)
		if !h.def.NoHitcount {
			dst = fmt.Appendf(dst, " hitcount: %10d", e.hits)
		}
		for i := range h.vals {
			dst = h.vals[i].appendSum(append(dst, ' '), e.sums[i], total[i], most[i])
		}
		dst = append(h.appendTracked(dst, e), '\n')
	}
	if a := h.snapshot(); a != nil && a.taken {
		dst = fmt.Appendf(dst, "\nSnapshot taken (see tracing/snapshot).  Details:\n\ttriggering value { %s }: %10d\ttriggered by event with key: ", a.def.On(), a.value)
		dst = append(h.appendKeys(dst, a.keys, symbol), '\n')
	}
	return fmt.Appendf(dst, "\nTotals:\n    Hits: %d\n    Entries: %d\n    Dropped: %d\n", h.hits, len(h.entries), h.dropped)
}

// appendKeys appends the keys of an entry.
func (h *Histogram) appendKeys(dst []byte, keys []histKey, symbol fetch.Resolver) []byte {
	dst = append(dst, "{ "...)
	wide := false
	for i := range h.keys {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		wide = wide || h.keys[i].stack
		dst = h.keys[i].append(dst, &keys[i], symbol)
	}
	if !wide {
		dst = append(dst, ' ')
	}
	return append(dst, '}')
}

// sums gives the total of each value, and the most that an entry has.
func (h *Histogram) sums() (total, most []uint64) {
	total, most = make([]uint64, len(h.vals)), make([]uint64, len(h.vals))
	for _, e := range h.entries {
		for i, v := range e.sums {
			total[i] += v
			most[i] = max(most[i], v)
		}
	}
	return total, most
}

// appendSum appends a value.
func (f *histField) appendSum(dst []byte, v, total, most uint64) []byte {
	switch f.Mod {
	case event.HistHex:
		return fmt.Appendf(dst, " %s: %10x", f.Name, v)
	case event.HistPercent:
		p, ok := percentage(v, total)
		if !ok {
			return fmt.Appendf(dst, " %s (%%):[ERROR]", f.Name)
		}
		return fmt.Appendf(dst, " %s (%%): %3d.%02d", f.Name, p/100, p%100)
	case event.HistGraph:
		p, _ := percentage(v, most)
		return fmt.Appendf(dst, " %s: %-*s", f.Name, graphWidth, strings.Repeat("#", int(min(p*graphWidth/10000, graphWidth))))
	}
	return fmt.Appendf(dst, " %s: %10d", f.Name, v)
}

// percentage is the part of v in total, in hundredths of a percent, computed as the kernel does.
func percentage(v, total uint64) (p uint64, ok bool) {
	if v < math.MaxUint64/10000 {
		v *= 10000
	} else {
		total /= 10000
	}
	if total == 0 {
		return 0, v == 0
	}
	return v / total, true
}

// append appends a key.
func (f *histField) append(dst []byte, k *histKey, symbol fetch.Resolver) []byte {
	switch {
	case f.stack:
		dst = append(dst, f.String()...)
		if f.from == fromStack {
			dst = append(dst, ":\n"...)
		}
		for _, c := range k.stack {
			dst = append(fetch.AppendFrame(append(dst, "         "...), c, symbol), '\n')
		}
		return dst
	case f.text && f.Mod == event.HistHex: // the kernel reads the string's bytes as a number
		var first [8]byte
		copy(first[:], k.text)
		return fmt.Appendf(dst, "%s: %x", f.Name, binary.LittleEndian.Uint64(first[:]))
	case f.text:
		return fmt.Appendf(dst, "%s: %-50s", f.Name, clean(k.text))
	case f.from == fromConst:
		return fmt.Appendf(dst, ": %10d", k.num)
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

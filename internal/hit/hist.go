package hit

import (
	"fmt"
	"math/bits"
	"strings"
)

// Hist counts values by powers of two, as a hist trigger with the modifier .log2 does
// (hist_field_log2 in kernel/trace/trace_events_hist.c, Linux 6.18): a value belongs to
// the smallest power that is not below it. The zero Hist is empty.
type Hist struct {
	n       [65]uint64 // by exponent; 0 and 1 are both in the first
	hits    uint64
	dropped uint64
}

// Add counts a value.
func (h *Hist) Add(v uint64) {
	h.n[ceilLog2(v)]++
	h.hits++
}

// ceilLog2 is the exponent of the smallest power of two that is not below v.
func ceilLog2(v uint64) int {
	if v == 0 {
		return 0
	}
	return bits.Len64(v - 1)
}

// Drop counts a value that is not known.
func (h *Hist) Drop() { h.dropped++ }

// Hits is the number of values.
func (h *Hist) Hits() uint64 { return h.hits }

// Dropped is the number of calls of Drop.
func (h *Hist) Dropped() uint64 { return h.dropped }

// Entries is the number of powers that have values.
func (h *Hist) Entries() int {
	n := 0
	for _, hits := range h.n {
		if hits > 0 {
			n++
		}
	}
	return n
}

// barWidth is the length of the longest bar.
const barWidth = 40

// AppendText appends the histogram in the form of an event's hist file, smallest values
// first, without the trigger that the first comment would name. Behind each count stands
// a bar, which the kernel's does not have. key is what the values are.
func (h *Hist) AppendText(dst []byte, key string) []byte {
	dst = fmt.Appendf(dst, "# event histogram\n#\n# keys=%s.log2 vals=hitcount sort=%s.log2\n#\n\n", key, key)
	most := uint64(0)
	for _, n := range h.n {
		most = max(most, n)
	}
	for exp, n := range h.n {
		if n > 0 {
			dst = fmt.Appendf(dst, "{ %s: ~ 2^%-2d } hitcount: %10d  %s\n", key, exp, n, bar(n, most))
		}
	}
	return fmt.Appendf(dst, "\nTotals:\n    Hits: %d\n    Entries: %d\n    Dropped: %d\n", h.hits, h.Entries(), h.dropped)
}

// bar draws n beside the most that is drawn: whatever is there shows.
func bar(n, most uint64) string {
	return strings.Repeat("#", max(1, int(float64(n)/float64(most)*barWidth)))
}

// Latency measures how long calls take, in nanoseconds: it pairs each return of a
// function with the last entry on the same goroutine, or thread, that has no return yet.
// That is exact as long as no record was lost; a call that was left by unwinding gives
// its entry to the next return of an outer call. The zero Latency is empty.
type Latency struct {
	Hist // a return without an entry is dropped
	open map[flow][]uint64
	n    int
}

// flow is what calls nest in: a goroutine, or a thread where there is none.
type flow struct{ goid, tid uint64 }

// maxOpen bounds the entries that wait for their returns: records come from memory that
// the probed program can write to.
const maxOpen = 1 << 20

// Enter takes the record of an entry.
func (l *Latency) Enter(h *Hit) {
	if l.n == maxOpen {
		l.Drop()
		return
	}
	if l.open == nil {
		l.open = map[flow][]uint64{}
	}
	f := flowOf(h)
	l.open[f] = append(l.open[f], h.Nanos)
	l.n++
}

// Leave takes the record of a return.
func (l *Latency) Leave(h *Hit) {
	f := flowOf(h)
	open := l.open[f]
	if len(open) == 0 {
		l.Drop()
		return
	}
	last := len(open) - 1
	l.Add(h.Nanos - min(open[last], h.Nanos))
	l.n--
	if l.open[f] = open[:last]; last == 0 {
		delete(l.open, f)
	}
}

// Open is the number of entries that have no return yet.
func (l *Latency) Open() int { return l.n }

func flowOf(h *Hit) flow {
	if h.GoID != 0 {
		return flow{goid: h.GoID}
	}
	return flow{tid: uint64(h.TID)}
}

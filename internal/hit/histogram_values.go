package hit

import "kprobes.dev/kprobes/event"

// HistEntry is an entry of a histogram: the values of its keys, how many hits had them, and the sums of the values over these hits, in
// the order of the definition's. A key is
//
//	string    of a string, and of common_pid.execname: the thread's name
//	[]uint64  of common_stacktrace, and of a synthetic event's stack: the callers' instructions, the innermost first
//	int64     of signed numbers; with .buckets the first number of the range
//	uint64    of all other numbers; of a key with .log2 the exponent
//
// Sums are modulo 2^64: that of signed numbers is an int64 in two's complement.
type HistEntry struct {
	Keys []any
	Hits uint64
	Sums []uint64
}

// Entries gives the entries, in the order that the definition asks for, else by hits.
func (h *Histogram) Entries() []HistEntry {
	sorted := h.sorted()
	out := make([]HistEntry, len(sorted))
	for i, e := range sorted {
		out[i] = HistEntry{Keys: make([]any, len(e.keys)), Hits: e.hits, Sums: append([]uint64(nil), e.sums...)}
		for k := range e.keys {
			out[i].Keys[k] = h.keys[k].keyValue(&e.keys[k])
		}
	}
	return out
}

// keyValue is a key as a Go value.
func (f *histField) keyValue(k *histKey) any {
	switch {
	case f.stack:
		pcs := make([]uint64, len(k.stack))
		for i, c := range k.stack {
			pcs[i] = c.PC
		}
		return pcs
	case f.text, f.Mod == event.HistExecname:
		return k.text
	case f.signed && f.Mod != event.HistLog2:
		return int64(k.num)
	}
	return k.num
}

package hit

import (
	"kprobes.dev/kprobes/internal/fetch"
)

// StackKey is the index of the first key that is a stack, or -1.
func (h *Histogram) StackKey() int {
	for i := range h.keys {
		if h.keys[i].stack {
			return i
		}
	}
	return -1
}

// Stacks gives each entry with the stack that its first such key is, innermost frame first: the probed instruction, and its callers. Precondition: StackKey is not -1.
func (h *Histogram) Stacks(f func(e HistEntry, stack []fetch.StackFrame)) {
	key, sorted := h.StackKey(), h.sorted()
	for i, e := range h.Entries() {
		f(e, sorted[i].keys[key].stack)
	}
}

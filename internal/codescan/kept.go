package codescan

import (
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
)

// signature is the length of what the kernel checks before it makes a thread go on at a
// sequence's abort address (rseq(2)).
const signature = 4

// findKept lists the object's bytes that must stay where they are.
func (x *text) findKept() {
	var qs []symbol.Sequence
	qs, x.keepErr = x.im.Sequences()
	for _, q := range qs {
		x.keep = append(x.keep, keep{interval.Range{Start: q.Start - 1, End: q.End}, q.Abort},
			keep{interval.Range{Start: q.Abort - signature, End: q.Abort}, q.Abort})
	}
}

// kept gives the bytes of a function that must stay, in run-time addresses, and those
// inside at which a sequence goes on.
func (x *text) kept(m *symbol.Module, fn *symbol.Func) (ranges []interval.Range, entries []uint64) {
	for _, k := range x.keep {
		for _, p := range append(m.Image.Parts(fn), fn) {
			if k.Start < p.End() && k.End > p.Addr {
				ranges = append(ranges, interval.Range{Start: m.Runtime(k.Start), End: m.Runtime(k.End)})
			}
			if k.abort > p.Addr && k.abort < p.End() {
				entries = append(entries, m.Runtime(k.abort))
			}
		}
	}
	return ranges, entries
}

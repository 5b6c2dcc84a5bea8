package amd64

import "kprobes.dev/kprobes/internal/fetch"

// histStack emits the walk over the stack for a key: the number of the callers, and their addresses, into temporaries from t. Why the
// walk ends tells no entries apart. What the temporaries behind the last caller hold is never read.
func (f *frame) histStack(s *storing, k *fetch.HistNumber, t int) {
	f.Lea(f.s2(), f.tempAt(t))
	f.stack(s, f.s2(), 0, k.Frames)
	why := f.tempAt(t)
	why.Disp += 4
	f.MovMI(4, why, 0)
}

// histWords emits what is done with each word of the keys, in temporaries from key: word is its operand, off where it lies in a slot
// (wordIn). The words of a stack take a loop, from the last caller to the number of callers, with a register as its index; those of
// other keys stand one after another.
func (f *frame) histWords(h *fetch.Hist, key int, index Reg, each func(word Mem, off int32, last bool)) {
	n, words := 0, h.KeyWords()
	for i := range h.Keys {
		k := &h.Keys[i]
		if k.From == fetch.HistCallers {
			at, off := f.tempAt(key+n), 8+8*int32(n)
			f.MovRM(8, index, at)
			loop := f.Here()
			each(AtIndex(at.Base, index, 8, at.Disp), off, false)
			f.DecR(8, index)
			f.Jcc(CondNS, loop)
			n += k.Words()
			continue
		}
		for range k.Words() {
			each(f.tempAt(key+n), 8+8*int32(n), n == words-1)
			n++
		}
	}
}

// wordIn is the operand of a word at off in a slot, with the index of its temporary.
func wordIn(slot Reg, word Mem, off int32) Mem {
	m := At(slot, off)
	m.Index, m.Scale = word.Index, word.Scale
	return m
}

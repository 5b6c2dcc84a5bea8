package amd64

import (
	"math/bits"
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// Temporaries that each histogram has.
const (
	histLeft  = iota // slots that are left to look at; then the number of the slot that was found
	histTag          // the state of an entry with the keys
	histSince        // what a variable is subtracted from, then the difference
	histFixed
)

// histTemps counts the temporaries of a histogram: keys, values, what variables are set to, and those of a walk.
func histTemps(t *arch.HistTable) int {
	n := t.Hist.KeyWords() + len(t.Hist.Vals) + len(t.Hist.Sets)
	if t.Hist.Callers() > 0 {
		n += walkRegs
	}
	n += histFixed
	for _, o := range t.Traces {
		n = max(n, histTemps(o))
	}
	return n
}

// histHash multiplies keys to spread them.
const histHash = 0x9e3779b97f4a7c15

// counting is the counting of hits in one table.
type counting struct {
	*storing
	t        *arch.HistTable
	key, val int // first temporaries of keys and values; behind these is what variables are set to
	set      int
}

func (s *storing) counting(t *arch.HistTable) *counting {
	c := &counting{storing: s, t: t, key: s.hist + histFixed}
	c.val = c.key + t.Hist.KeyWords()
	c.set = c.val + len(t.Hist.Vals)
	return c
}

// histCode is hist.
type histCode func(f *frame, s *storing, done, long Label)

// HistCode is arch.HistTable.Code.
func HistCode() any { return histCode((*frame).hist) }

// hist emits the counting of a hit. It goes on at done, or at long with a string that is longer than a key.
func (f *frame) hist(s *storing, done, long Label) {
	t := s.w.Hist
	h, c := t.Hist, s.counting(t)
	if s.w.Unknown && slices.ContainsFunc(append(h.Keys[:len(h.Keys):len(h.Keys)], h.Vals...), func(n fetch.HistNumber) bool {
		return n.From == fetch.HistArg && s.w.Prog.Args[n.Arg].Result
	}) { // a value that is not known has no entry
		f.MovRI(RDX, t.Addr)
		f.Lock().IncM(8, At(RDX, histDropped))
		return
	}
	f.histFrom(c)
	f.histLoads(s, h.Keys)
	f.histLoads(s, h.Vals)
	f.histLoads(s, h.Sets)
	for _, o := range t.Traces {
		f.histLoads(s, o.Hist.Keys)
		f.histLoads(s, o.Hist.Vals)
	}
	f.histKeys(s, h, c.key, long)
	f.histHashed(c)
	if h.Since != nil {
		f.histTake(c, done)
	}
	f.histCount(c, done)
	f.histSet(c)
	for _, o := range t.Traces {
		next := f.Label()
		c := s.counting(o)
		f.histKeys(s, o.Hist, c.key, long)
		f.histHashed(c)
		f.histCount(c, next)
		f.Bind(next)
	}
}

// histHashed emits S2 = the state of an entry with the keys, which has their hash, and the storing of it. What a hit waits for at the end is
// the chain from its clock to here and on to the entry: it goes by registers as far as it can.
func (f *frame) histHashed(c *counting) {
	at := f.s2()
	f.MovRI(RDX, histHash)
	if c.t.Hist.KeyWords() == 1 { // it is in RAX still
		f.MovRR(8, at, RAX)
		f.ImulRR(8, at, RDX)
	} else {
		f.MovRI(at, 0)
		f.histWords(c.t.Hist, c.key, f.s1(), func(word Mem, _ int32, last bool) {
			f.OpRM(OpXor, 8, at, word)
			f.ImulRR(8, at, RDX)
			if !last {
				f.MovRR(8, RAX, at)
				f.ShiftRI(Shr, 8, RAX, 32)
				f.OpRR(OpXor, 8, at, RAX)
			}
		})
	}
	f.OpRI(OpAnd, 8, at, ^histState)
	f.OpRI(OpOr, 8, at, histReady)
	f.MovMR(8, f.tempAt(c.hist+histTag), at)
}

// histCount emits the values, and the counting in the entry of the keys; where there is no room for one, a jump to full.
func (f *frame) histCount(c *counting, full Label) {
	h, l, at := c.t.Hist, layoutOf(c.t.Hist), f.s2()
	for i := range h.Vals {
		f.histNumber(c.storing, &h.Vals[i])
		f.MovMR(8, f.tempAt(c.val+i), RAX)
	}
	for i := range h.Sets {
		if h.Sets[i].From != fetch.HistClock {
			f.histNumber(c.storing, &h.Sets[i])
			f.MovMR(8, f.tempAt(c.set+i), RAX)
		}
	}
	f.histFind(c, c.t, len(h.Vals)+len(h.Sets) > 0 || h.Since != nil, true, full)
	if len(h.Sets) > 0 {
		f.MovMR(8, f.tempAt(c.hist+histLeft), at)
	}
	f.cpu(true)
	f.MovRI(RDX, l.stride)
	f.ImulRR(8, RAX, RDX)
	f.times(at, at, l.column)
	f.OpRR(OpAdd, 8, at, RAX)
	f.MovRI(RDX, c.t.Addr+l.columns)
	f.OpRR(OpAdd, 8, at, RDX)
	f.Lock().IncM(8, At(at, 0))
	for i := range h.Vals {
		f.MovRM(8, RAX, f.tempAt(c.val+i))
		f.Lock().OpMR(OpAdd, 8, At(at, 8+8*int32(i)), RAX)
	}
}

// times emits to = r * n. A power of two takes a shift, which is faster.
func (f *frame) times(to, r Reg, n int) {
	if n&(n-1) != 0 {
		f.ImulRRI(8, to, r, int32(n))
		return
	}
	if to != r {
		f.MovRR(8, to, r)
	}
	f.ShiftRI(Shl, 8, to, uint8(bits.TrailingZeros(uint(n))))
}

// histFind emits S2 = the number of the slot of the keys in a table, or a jump to none where there is none: no room where it is to be taken,
// which is counted. load has the state be loaded, where it does not stand in S2.
func (f *frame) histFind(c *counting, t *arch.HistTable, load, take bool, none Label) {
	slot, at, left, tag := f.s1(), f.s2(), f.tempAt(c.hist+histLeft), f.tempAt(c.hist+histTag)
	h, l := t.Hist, layoutOf(t.Hist)
	other, next, found := f.Label(), f.Label(), f.Label()
	if load {
		f.MovRM(8, at, tag)
	}
	f.ShiftRI(Shr, 8, at, uint8(64-l.log))
	f.MovMI(8, left, histProbes)
	loop := f.Here()
	f.times(slot, at, l.slot)
	f.MovRI(RDX, t.Addr+histSlots)
	f.OpRR(OpAdd, 8, slot, RDX)
	f.MovRM(8, RAX, tag)
	f.OpRM(OpCmp, 8, RAX, At(slot, 0))
	f.Jcc(CondNE, other)
	f.histWords(h, c.key, RDX, func(word Mem, off int32, _ bool) {
		f.MovRM(8, RAX, wordIn(slot, word, off))
		f.OpRM(OpCmp, 8, RAX, word)
		f.Jcc(CondNE, next)
	})
	f.Bind(found)
	f.after(func() {
		drop := f.Label()
		f.Bind(next)
		f.OpRI(OpAdd, 4, at, 1)
		f.OpRI(OpAnd, 4, at, 1<<l.log-1)
		f.OpMI(OpSub, 8, left, 1)
		f.Jcc(CondNE, loop)
		if !take {
			f.Jmp(none)
			f.Bind(other)
			f.OpMI(OpCmp, 8, At(slot, 0), 0)
			f.Jcc(CondE, none)
			f.Jmp(next)
			return
		}
		f.Bind(drop)
		f.MovRI(RDX, t.Addr)
		f.Lock().IncM(8, At(RDX, histDropped))
		f.Jmp(none)
		f.Bind(other)
		f.histClaim(c, loop, next, found, drop)
	})
}

// histClaim emits the claim of the slot at S1, if it is free; it may have been taken for the same keys, which are written then too.
func (f *frame) histClaim(c *counting, loop, next, found, drop Label) {
	slot, tag, h := f.s1(), f.tempAt(c.hist+histTag), c.t.Hist
	free, full, lost, write := f.Label(), f.Label(), f.Label(), f.Label()
	f.MovRM(8, RAX, At(slot, 0))
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondE, free)
	f.OpRI(OpAdd, 8, RAX, histReady-histWriting)
	f.OpRM(OpCmp, 8, RAX, tag)
	f.Jcc(CondE, write)
	f.Jmp(next)

	f.Bind(free)
	f.MovRI(RDX, c.t.Addr)
	f.MovRI(RAX, 1)
	f.Lock().Xadd(8, At(RDX, histEntries), RAX)
	f.OpRI(OpCmp, 8, RAX, int32(h.Size))
	f.Jcc(CondAE, full)
	f.MovRI(RAX, 0)
	f.MovRM(8, RDX, tag)
	f.OpRI(OpSub, 8, RDX, histReady-histWriting)
	f.Lock().Cmpxchg(8, At(slot, 0), RDX)
	f.Jcc(CondNE, lost)
	f.Bind(write)
	f.histWords(h, c.key, RDX, func(word Mem, off int32, _ bool) {
		f.MovRM(8, RAX, word)
		f.MovMR(8, wordIn(slot, word, off), RAX)
	})
	f.MovRM(8, RAX, tag)
	f.MovMR(8, At(slot, 0), RAX)
	f.Jmp(found)

	f.Bind(lost) // somebody else was faster: the slot is looked at once more
	f.MovRI(RDX, c.t.Addr)
	f.Lock().DecM(8, At(RDX, histEntries))
	f.Jmp(loop)

	f.Bind(full)
	f.MovRI(RDX, c.t.Addr)
	f.Lock().DecM(8, At(RDX, histEntries))
	f.Jmp(drop)
}

// histLoads emits the loads that numbers and strings take: who goes on at long has them too.
func (f *frame) histLoads(s *storing, ns []fetch.HistNumber) {
	for i := range ns {
		if n := &ns[i]; n.From == fetch.HistArg && (n.Text || loads(&s.w.Prog.Args[n.Arg])) && !slices.Contains(s.loaded, n.Arg) {
			f.evaluateArg(s, n.Arg)
			s.loaded = append(s.loaded, n.Arg)
		}
	}
}

// histKeys emits the keys into temporaries from t.
func (f *frame) histKeys(s *storing, h *fetch.Hist, t int, long Label) {
	for i := range h.Keys {
		k := &h.Keys[i]
		switch {
		case k.Text:
			f.histText(s, k, t, long)
		case k.From == fetch.HistCallers:
			f.histStack(s, k, t)
		default:
			f.histNumber(s, k)
			f.MovMR(8, f.tempAt(t), RAX)
		}
		t += k.Words()
	}
}

// unreadable is the key of a string that could not be read, as a word.
const unreadable = uint64('(') | 'f'<<8 | 'a'<<16 | 'u'<<24 | 'l'<<32 | 't'<<40 | ')'<<48

// histText emits a string, with its length before it, into temporaries from t.
func (f *frame) histText(s *storing, k *fetch.HistNumber, t int, long Label) {
	a := &s.w.Prog.Args[k.Arg]
	fault, done := f.Label(), f.Label()
	clear := func() {
		for i := range fetch.HistText / 8 {
			f.MovMI(8, f.tempAt(t+1+i), 0)
		}
	}
	f.TestRI(1, RSP, 7) // copyBytes asks for it
	f.Jcc(CondNE, long)
	src := f.textSpan(a, s.temps[k.Arg], fault)
	f.OpRI(OpCmp, 4, RDX, fetch.HistText)
	f.Jcc(CondA, long)
	f.MovMR(8, f.tempAt(t), RDX)
	if a.Store == fetch.StoreCounted {
		(&matching{frame: f, cur: src, end: f.s2(), fault: fault}).touch()
		f.MovRM(8, RDX, f.tempAt(t))
	}
	clear()
	to := f.tempAt(t + 1)
	f.Lea(RAX, to)
	f.OpRR(OpAdd, 8, RAX, RDX)
	f.MovMR(8, f.tempAt(tempEnd), RAX)
	f.Lea(RDX, to)
	f.copyBytes(src, fault)
	f.Bind(done)
	f.after(func() {
		f.Bind(fault)
		f.MovMI(8, f.tempAt(t), 7)
		clear()
		f.MovRI(RAX, unreadable)
		f.MovMR(8, to, RAX)
		f.Jmp(done)
	})
}

// histNumber emits RAX = a key or a value.
func (f *frame) histNumber(s *storing, n *fetch.HistNumber) {
	switch n.From {
	case fetch.HistPID:
		f.histTID()
	case fetch.HistCPU:
		f.cpu(true)
	case fetch.HistSince:
		f.MovRM(8, RAX, f.tempAt(s.hist+histSince))
	default:
		a := &s.w.Prog.Args[n.Arg]
		if slices.Contains(s.loaded, n.Arg) {
			f.MovRM(8, RAX, f.tempAt(s.temps[n.Arg]))
		} else {
			f.value(a, s)
		}
		if n.Signed {
			f.MovSXR(n.Size, RAX, RAX)
		}
	}
	switch {
	case n.Log2:
		f.ceilLog2()
	case n.Buckets > 0:
		f.bucket(n.Buckets)
	}
}

// histTID emits RAX = the thread's id.
func (f *frame) histTID() {
	if f.w.Shared == 0 {
		f.threadID()
		f.MovRR(4, RAX, RAX)
		return
	}
	if f.w.TID == arch.TIDThread {
		f.blockTID()
	}
	f.MovRM(4, RAX, f.tempAt(tempTID))
}

// ceilLog2 emits RAX = the exponent of the smallest power of two that is not below RAX; 0 for 0.
func (f *frame) ceilLog2() {
	small, done := f.Label(), f.Label()
	f.OpRI(OpCmp, 8, RAX, 1)
	f.Jcc(CondBE, small)
	f.OpRI(OpSub, 8, RAX, 1)
	f.Raw(0x48, 0x0f, 0xbd, 0xc0) // bsr %rax, %rax
	f.OpRI(OpAdd, 4, RAX, 1)
	f.Bind(done)
	f.after(func() {
		f.Bind(small)
		f.MovRI(RAX, 0)
		f.Jmp(done)
	})
}

// bucket emits RAX = the first number of the bucket that RAX lies in.
func (f *frame) bucket(size uint64) {
	f.MovRI(f.s1(), size)
	f.MovRI(RDX, 0)
	f.extR(8, 0xf7, 6, f.s1()) // div
	f.ImulRR(8, RAX, f.s1())
}

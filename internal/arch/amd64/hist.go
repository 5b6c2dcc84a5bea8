package amd64

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// The memory of a histogram that generated code makes:
//
//	0   entries that are taken
//	8   hits for which there was no room
//	64  slots, twice as many as there may be entries or more:
//	    0   0: free; 1: its keys are being written; 2: it is an entry
//	    8   the keys, 8 bytes each; of a string its length, and 64 bytes; of a stack the number of callers, and room for
//	        the addresses of the most
//
// Behind them, for each CPU, the numbers of all slots: the hits and the sums, 8 bytes each.
//
// A thread that finds no slot with its keys takes a free one by a locked exchange. Nobody waits for a slot whose keys are being written:
// another thread takes the next one, and who reads adds up entries that have the same keys. A slot that a killed thread was about to
// take stays as it is. Each CPU has numbers of its own, so that the locked additions do not meet.
const (
	histEntries = 0
	histDropped = 8
	histSlots   = 64
	histProbes  = 64 // slots that are looked at for a key

	histWriting = 1
	histReady   = 2
)

// HistSlots is log2 of the slots for so many entries.
func HistSlots(entries int) int { return bits.Len(uint(2*entries - 1)) }

// histLayout says where things lie.
type histLayout struct {
	log     int    // of the slots
	slot    int    // bytes of a slot
	column  int    // bytes of its numbers of one CPU
	columns uint64 // offset of the numbers of the first CPU
	stride  uint64 // from one CPU's to the next one's
}

func layoutOf(h *fetch.Hist) histLayout {
	l := histLayout{log: HistSlots(h.Size), slot: 8 * (1 + h.KeyWords()), column: 8 * (1 + len(h.Vals))}
	l.columns = (histSlots + uint64(l.slot)<<l.log + 63) &^ 63
	l.stride = uint64(l.column) << l.log
	return l
}

// HistBytes is the size of a histogram's memory.
func HistBytes(h *fetch.Hist, cpus int) int {
	l := layoutOf(h)
	return int(l.columns + uint64(cpus)*l.stride)
}

// ReadHist reads a histogram out of a copy of its memory, which may hold anything.
func ReadHist(mem []byte, h *fetch.Hist, cpus int) (entries []fetch.HistEntry, dropped uint64) {
	le := binary.LittleEndian
	if len(mem) < HistBytes(h, cpus) {
		return nil, 0
	}
	l, at := layoutOf(h), map[string]int{}
	for n := range 1 << l.log {
		b := mem[histSlots+n*l.slot:][:l.slot]
		if le.Uint64(b) != histReady {
			continue
		}
		i, ok := at[string(b[8:])]
		if !ok {
			i = len(entries)
			at[string(b[8:])] = i
			e := fetch.HistEntry{Sums: make([]uint64, len(h.Vals))}
			readKeys(&e, h, b[8:])
			entries = append(entries, e)
		}
		for cpu := range uint64(cpus) {
			c := mem[l.columns+cpu*l.stride+uint64(n*l.column):]
			entries[i].Hits += le.Uint64(c)
			for v := range h.Vals {
				entries[i].Sums[v] += le.Uint64(c[8+8*v:])
			}
		}
	}
	return entries, le.Uint64(mem[histDropped:])
}

// readKeys reads an entry's keys.
func readKeys(e *fetch.HistEntry, h *fetch.Hist, b []byte) {
	for i := range h.Keys {
		k := &h.Keys[i]
		v := binary.LittleEndian.Uint64(b)
		if k.Text {
			if e.Texts == nil {
				e.Texts = make([]string, len(h.Keys))
			}
			e.Texts[i], v = string(b[8:8+min(v, fetch.HistText)]), 0
		} else if k.From == fetch.HistCallers {
			e.Callers, v = fetch.HistFrames(b, k.Frames), 0
		}
		e.Keys, b = append(e.Keys, v), b[8*k.Words():]
	}
}

// histTemps counts the temporaries of a histogram: keys, values, slots that are left to look at, and those of a walk.
func histTemps(h *fetch.Hist) int {
	n := h.KeyWords() + len(h.Vals) + 1
	if h.Callers() > 0 {
		n += walkRegs
	}
	return n
}

// histHash multiplies keys to spread them.
const histHash = 0x9e3779b97f4a7c15

// hist emits the counting of a hit. It goes on at done, or at long with a string that is longer than a key.
func (f *frame) hist(s *storing, done, long Label) {
	t := s.w.Hist
	h := t.Hist
	if s.w.Unknown && slices.ContainsFunc(append(h.Keys[:len(h.Keys):len(h.Keys)], h.Vals...), func(n fetch.HistNumber) bool {
		return n.From == fetch.HistArg && s.w.Prog.Args[n.Arg].Result
	}) { // a value that is not known has no entry
		f.MovRI(RDX, t.Addr)
		f.Lock().IncM(8, At(RDX, histDropped))
		return
	}
	f.histLoads(s, h.Keys)
	f.histLoads(s, h.Vals)
	key, val := s.hist, s.hist+h.KeyWords()
	f.histKeys(s, h, key, long)
	for i := range h.Vals {
		f.histNumber(s, &h.Vals[i])
		f.MovMR(8, f.tempAt(val+i), RAX)
	}
	left := f.tempAt(val + len(h.Vals))
	slot, at := f.s1(), f.s2()
	f.MovRI(at, 0)
	f.MovRI(RDX, histHash)
	f.histWords(h, key, slot, func(word Mem, _ int32, last bool) {
		f.OpRM(OpXor, 8, at, word)
		f.ImulRR(8, at, RDX)
		if !last {
			f.MovRR(8, RAX, at)
			f.ShiftRI(Shr, 8, RAX, 32)
			f.OpRR(OpXor, 8, at, RAX)
		}
	})
	l := layoutOf(h)
	f.ShiftRI(Shr, 8, at, uint8(64-l.log))
	f.MovMI(8, left, histProbes)
	f.histFind(t, key, slot, at, left, done)
	f.cpu()
	f.MovRI(RDX, l.stride)
	f.ImulRR(8, RAX, RDX)
	f.ImulRRI(8, at, at, int32(l.column))
	f.OpRR(OpAdd, 8, at, RAX)
	f.MovRI(RDX, t.Addr+l.columns)
	f.OpRR(OpAdd, 8, at, RDX)
	f.Lock().IncM(8, At(at, 0))
	for i := range h.Vals {
		f.MovRM(8, RAX, f.tempAt(val+i))
		f.Lock().OpMR(OpAdd, 8, At(at, 8+8*int32(i)), RAX)
	}
}

// histFind emits at = the number of the slot of the keys, or a jump to done where there is none.
func (f *frame) histFind(t *arch.HistTable, key int, slot, at Reg, left Mem, done Label) {
	h, l := t.Hist, layoutOf(t.Hist)
	unready, next, full, lost, drop, found := f.Label(), f.Label(), f.Label(), f.Label(), f.Label(), f.Label()
	loop := f.Here()
	f.ImulRRI(8, slot, at, int32(l.slot))
	f.MovRI(RDX, t.Addr+histSlots)
	f.OpRR(OpAdd, 8, slot, RDX)
	f.MovRM(8, RAX, At(slot, 0))
	f.OpRI(OpCmp, 8, RAX, histReady)
	f.Jcc(CondNE, unready)
	f.histWords(h, key, RDX, func(word Mem, off int32, _ bool) {
		f.MovRM(8, RAX, wordIn(slot, word, off))
		f.OpRM(OpCmp, 8, RAX, word)
		f.Jcc(CondNE, next)
	})
	f.Bind(found)
	f.after(func() {
		f.Bind(next)
		f.OpRI(OpAdd, 4, at, 1)
		f.OpRI(OpAnd, 4, at, 1<<l.log-1)
		f.OpMI(OpSub, 8, left, 1)
		f.Jcc(CondNE, loop)
		f.Bind(drop)
		f.MovRI(RDX, t.Addr)
		f.Lock().IncM(8, At(RDX, histDropped))
		f.Jmp(done)

		f.Bind(unready)
		f.TestRR(8, RAX, RAX)
		f.Jcc(CondNE, next)
		f.MovRI(RDX, t.Addr)
		f.MovRI(RAX, 1)
		f.Lock().Xadd(8, At(RDX, histEntries), RAX)
		f.OpRI(OpCmp, 8, RAX, int32(h.Size))
		f.Jcc(CondAE, full)
		f.MovRI(RAX, 0)
		f.MovRI(RDX, histWriting)
		f.Lock().Cmpxchg(8, At(slot, 0), RDX)
		f.Jcc(CondNE, lost)
		f.histWords(h, key, RDX, func(word Mem, off int32, _ bool) {
			f.MovRM(8, RAX, word)
			f.MovMR(8, wordIn(slot, word, off), RAX)
		})
		f.MovMI(8, At(slot, 0), histReady)
		f.Jmp(found)

		f.Bind(lost) // somebody else was faster: the slot is looked at once more
		f.MovRI(RDX, t.Addr)
		f.Lock().DecM(8, At(RDX, histEntries))
		f.Jmp(loop)

		f.Bind(full)
		f.MovRI(RDX, t.Addr)
		f.Lock().DecM(8, At(RDX, histEntries))
		f.Jmp(drop)
	})
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
		f.cpu()
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

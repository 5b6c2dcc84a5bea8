package amd64

import (
	"math/bits"

	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
)

// filterText emits a test of a string whose address and length are in temporaries. One that could not be read passes no test.
func (f *frame) filterText(s *storing, step *fetch.FilterStep, to func(int) Label) {
	n := step.Test.Field.Arg
	a, t := &s.w.Prog.Args[n], s.temps[n]
	fault, yes, no := to(step.Else), to(step.Then), to(step.Else)
	if step.Turned {
		yes, no = no, yes
	}
	m := matching{frame: f, cur: f.s1(), end: f.s2(), fault: fault, no: no}
	if f.w.Kernel != nil {
		f.kernelText(a, t, step.Parts, m, yes)
		return
	}
	f.textSpan(a, t, fault)
	m.looked = a.Store == fetch.StoreString
	if a.Store == fetch.StoreCounted {
		m.touch()
	}
	m.parts(step.Parts)
	f.Jmp(yes)
}

// textSpan emits S1, which it gives, and S2 = where the string in temporaries t and t+1 begins and ends, and RDX = its length.
func (f *frame) textSpan(a *fetch.Arg, t int, fault Label) Reg {
	f.MovRM(4, RDX, f.tempAt(t+1))
	if a.Store == fetch.StoreCounted {
		f.OpRI(OpCmp, 4, RDX, countedFault)
		f.Jcc(CondE, fault)
	} else {
		f.OpRI(OpSub, 4, RDX, 1) // the NUL
		f.Jcc(CondB, fault)
	}
	f.MovRM(8, f.s1(), f.tempAt(t))
	f.Lea(f.s2(), AtIndex(f.s1(), RDX, 1, 0))
	return f.s1()
}

// kernelText is filterText in a kernel: the copy of a string that is staged is compared; any other is read where it is, by the
// kernel's own functions.
func (f *frame) kernelText(a *fetch.Arg, t int, parts [][]symbol.ByteSet, m matching, yes Label) {
	f.textSpan(a, t, m.fault)
	compare := func() {
		m.parts(parts)
		f.Jmp(yes)
	}
	if a != f.staged {
		compare()
		return
	}
	long := f.Label()
	f.TestRR(8, m.cur, m.cur) // the address of a string that was staged is 0
	f.Jcc(CondNE, long)
	f.Lea(m.cur, At(RSP, f.stage))
	f.OpRR(OpAdd, 8, m.end, m.cur)
	m.copied = true
	compare()
	f.after(func() {
		f.Bind(long)
		m.copied = false
		compare()
	})
}

// matching is the comparison of the bytes from cur to end with a pattern.
type matching struct {
	*frame
	cur, end  Reg
	fault, no Label
	looked    bool // the bytes have been looked at
	copied    bool // they are a copy on the stack
}

// bytes emits RAX = n bytes of the string.
func (m *matching) bytes(n int, at Mem) {
	if m.copied {
		m.MovZXM(n, RAX, at)
		return
	}
	if m.looked {
		m.plainLoad(n, RAX, at, m.fault)
		return
	}
	m.load(spaceAny, n, RAX, at, m.fault)
}

// touch emits a load of each page of the bytes: those of a counted string have not been looked at, and the pattern may not need them all.
func (m *matching) touch() {
	none := m.Label()
	m.OpRR(OpCmp, 8, m.cur, m.end)
	m.Jcc(CondE, none)
	m.MovRR(8, RDX, m.cur)
	loop := m.Here()
	m.load(spaceAny, 1, RAX, At(RDX, 0), m.fault)
	m.OpRI(OpOr, 8, RDX, pageSize-1)
	m.IncR(8, RDX)
	m.OpRR(OpCmp, 8, RDX, m.end)
	m.Jcc(CondB, loop)
	m.Bind(none)
}

// parts emits a jump to no, or falls through. It clobbers RAX, RDX and both registers.
func (m *matching) parts(parts [][]symbol.ByteSet) {
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		m.MovRR(8, RAX, m.end)
		m.OpRR(OpSub, 8, RAX, m.cur)
		m.OpRI(OpCmp, 8, RAX, int32(len(first)))
		m.Jcc(CondNE, m.no)
		m.part(first, m.no)
		return
	}
	if len(first) > 0 {
		m.room(first)
		m.part(first, m.no)
		m.Lea(m.cur, At(m.cur, int32(len(first))))
	}
	for _, p := range parts[1 : len(parts)-1] {
		if len(p) > 0 {
			m.find(p)
		}
	}
	if len(last) > 0 {
		m.room(last)
		m.Lea(m.cur, At(m.end, -int32(len(last))))
		m.part(last, m.no)
	}
}

// room emits a jump to no if there are fewer bytes than the part has.
func (m *matching) room(part []symbol.ByteSet) {
	m.Lea(RAX, At(m.cur, int32(len(part))))
	m.OpRR(OpCmp, 8, RAX, m.end)
	m.Jcc(CondA, m.no)
}

// find emits cur = the end of the part where it is found first from cur on.
func (m *matching) find(part []symbol.ByteSet) {
	next := m.Label()
	loop := m.Here()
	m.room(part)
	m.part(part, next)
	m.Lea(m.cur, At(m.cur, int32(len(part))))
	m.after(func() {
		m.Bind(next)
		m.Lea(m.cur, At(m.cur, 1))
		m.Jmp(loop)
	})
}

// part emits the comparison of the bytes at cur with a part, 8 at once where each has one value. differs is where one is none of its set.
func (m *matching) part(part []symbol.ByteSet, differs Label) {
	for i := 0; i < len(part); {
		n := 0
		for n < 8 && i+n < len(part) && single(&part[i+n]) {
			n++
		}
		if n == 0 {
			m.oneOf(&part[i], i, differs)
			i++
			continue
		}
		n = 1 << (bits.Len(uint(n)) - 1)
		v := uint64(0)
		for j := range n {
			v |= uint64(first(&part[i+j])) << (8 * j)
		}
		m.bytes(n, At(m.cur, int32(i)))
		m.MovRI(RDX, v)
		m.OpRR(OpCmp, n, RAX, RDX)
		m.Jcc(CondNE, differs)
		i += n
	}
}

// oneOf emits the comparison of byte i at cur with a set.
func (m *matching) oneOf(set *symbol.ByteSet, i int, differs Label) {
	if *set == (symbol.ByteSet{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}) {
		return
	}
	m.bytes(1, At(m.cur, int32(i)))
	in := m.Label()
	for lo := 0; lo < 256; lo++ {
		if !set.Has(byte(lo)) {
			continue
		}
		hi := lo
		for hi < 255 && set.Has(byte(hi+1)) {
			hi++
		}
		m.Lea(RDX, At(RAX, -int32(lo)))
		m.OpRI(OpCmp, 4, RDX, int32(hi-lo))
		m.Jcc(CondBE, in)
		lo = hi
	}
	m.Jmp(differs)
	m.Bind(in)
}

// single says whether a set has one byte.
func single(s *symbol.ByteSet) bool {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n == 1
}

// first is the lowest byte of a set.
func first(s *symbol.ByteSet) byte {
	for i, w := range s {
		if w != 0 {
			return byte(64*i + bits.TrailingZeros64(w))
		}
	}
	return 0
}

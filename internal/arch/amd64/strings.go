package amd64

import (
	"math"

	"kprobes.dev/kprobes/internal/fetch"
)

// measure emits, for each string of the argument, its address and its length into the
// temporaries from t, and adds its units to the record's. The length counts the NUL
// of a C string; 0 means that reading it faulted, for a counted string countedFault.
func (f *frame) measure(a *fetch.Arg, s *storing, t int) {
	fault, done := f.Label(), f.Label()
	n := max(a.Count, 1)
	for j := range n {
		f.MovMI(8, f.tempAt(t+2*j+1), 0)
	}
	switch {
	case counted(a):
		f.argBase(RAX, a, a.Base, s, fault)
		f.MovMR(8, f.tempAt(t), RAX)
		f.argBase(RAX, a, a.Len, s, fault)
		f.clamp(s, t)
	case a.Store == fetch.StoreCounted:
		f.address(RAX, a, s, fault)
		f.load(spaceAny, 8, RDX, At(RAX, 0), fault)
		f.MovMR(8, f.tempAt(t), RDX)
		f.load(spaceAny, 8, RAX, At(RAX, 8), fault)
		f.clamp(s, t)
	case a.Store == fetch.StorePtrs:
		f.address(RAX, a, s, fault)
		f.pointers(a, s, t, fault)
	default:
		f.address(RAX, a, s, fault)
		f.cString(a, s, t, fault)
	}
	f.Bind(done)
	f.after(func() {
		f.Bind(fault)
		if a.Store == fetch.StoreCounted {
			f.MovMI(4, f.tempAt(t+1), countedFault)
		}
		f.Jmp(done)
	})
}

// countedFault is the length of a counted string that can not be read.
const countedFault = -1

// clamp emits the length in RAX, at most the string's share, into temporary t+1.
func (f *frame) clamp(s *storing, t int) {
	ok := f.Label()
	f.OpRI(OpCmp, 8, RAX, s.cap)
	f.JccShort(CondBE, ok)
	f.MovRI(RAX, uint64(s.cap))
	f.Bind(ok)
	f.length(t)
}

// length stores RAX as the length of string t and adds it to the record's size.
func (f *frame) length(t int) {
	f.MovMR(8, f.tempAt(t+1), RAX)
	f.OpRI(OpAdd, 4, RAX, 7)
	f.ShiftRI(Shr, 4, RAX, 3)
	f.OpMR(OpAdd, 8, f.tempAt(tempUnits), RAX)
}

// cString emits the measuring of the string at RAX.
func (f *frame) cString(a *fetch.Arg, s *storing, t int, fault Label) {
	if f.w.Kernel != nil {
		f.kernelMeasure(a, s, t, fault)
		return
	}
	cur := f.s2()
	f.MovMR(8, f.tempAt(t), RAX)
	f.MovRR(8, cur, RAX)
	f.Lea(RDX, At(RAX, s.cap-1))
	f.check(1, At(cur, 0), fault)
	f.findNUL(fault)
	f.MovRR(8, RAX, cur)
	f.OpRM(OpSub, 8, RAX, f.tempAt(t))
	f.IncR(8, RAX)
	f.length(t)
}

// Words in which 8 bytes are looked at at once: x - ones &^ x has, of the bits of tops, first that of x's first zero byte.
const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)

// findNUL emits S2 = the address of the first NUL from S2 on, or RDX, which is higher, if there is none before that. It
// reads 8 bytes at once but where they would lie in two pages, and clobbers RAX and S1.
func (f *frame) findNUL(fault Label) {
	cur, other := f.s2(), f.s1()
	loop, found, single, end := f.Here(), f.Label(), f.Label(), f.Label()
	f.MovRR(4, RAX, cur)
	f.OpRI(OpAnd, 4, RAX, pageSize-1)
	f.OpRI(OpCmp, 4, RAX, pageSize-8)
	f.Jcc(CondA, single)
	f.plainLoad(8, RAX, At(cur, 0), fault)
	f.MovRI(other, -ones&math.MaxUint64)
	f.OpRR(OpAdd, 8, other, RAX)
	f.NotR(8, RAX)
	f.OpRR(OpAnd, 8, RAX, other)
	f.MovRI(other, tops)
	f.OpRR(OpAnd, 8, RAX, other)
	f.Jcc(CondNE, found)
	f.Lea(cur, At(cur, 8))
	f.OpRR(OpCmp, 8, cur, RDX)
	f.Jcc(CondAE, found)
	f.nextPage(cur, fault)
	f.Jmp(loop)
	f.Bind(found)
	f.Bsf(8, RAX, RAX) // without a bit RAX may become anything, and S2 is not below RDX
	f.ShiftRI(Shr, 4, RAX, 3)
	f.OpRR(OpAdd, 8, cur, RAX)
	f.OpRR(OpCmp, 8, cur, RDX)
	f.CmovRR(CondA, 8, cur, RDX)
	f.Bind(end)
	f.after(func() {
		f.Bind(single)
		f.plainLoad(1, RAX, At(cur, 0), fault)
		f.TestRR(4, RAX, RAX)
		f.Jcc(CondE, end)
		f.IncR(8, cur)
		f.OpRR(OpCmp, 8, cur, RDX)
		f.Jcc(CondAE, end)
		f.nextPage(cur, fault)
		f.Jmp(loop)
	})
}

// pointers emits the measuring of the strings that the pointers at RAX point to. A
// pointer that is bad leaves its string with length 0.
func (f *frame) pointers(a *fetch.Arg, s *storing, t int, fault Label) {
	f.MovMR(8, f.tempAt(tempEnd), RAX)
	for j := range a.Count {
		bad, next := f.Label(), f.Label()
		f.MovRM(8, RAX, f.tempAt(tempEnd))
		f.load(spaceOf(a, len(a.Derefs)-1), 8, RAX, At(RAX, int32(8*j)), fault)
		f.cString(a, s, t+2*j, bad)
		f.Bind(next)
		f.zeroOn(bad, next)
	}
}

// copyString emits the copying of the string in temporaries t and t+1 into the record
// at rec, and its slot at offset at: length in the low half, offset from the record's
// start in the high half. A fault on the way makes it a string that faulted.
func (f *frame) copyString(a *fetch.Arg, t int, rec Reg, at int32) {
	if f.w.Kernel != nil {
		f.kernelCopy(a, t, rec, at)
		return
	}
	src, done, fault := f.s1(), f.Label(), f.Label()
	f.MovRM(8, RDX, f.tempAt(tempCur))
	f.MovRR(8, RAX, RDX)
	f.ShiftRI(Shl, 8, RAX, 32)
	f.OpRM(OpOr, 8, RAX, f.tempAt(t+1))
	f.MovMR(8, At(rec, at), RAX)
	f.OpRR(OpAdd, 8, RDX, rec)
	f.MovRM(4, RAX, f.tempAt(t+1))
	if a.Store == fetch.StoreCounted {
		f.OpRI(OpCmp, 4, RAX, countedFault) // it takes no bytes: rounded up it is 0
		f.Jcc(CondE, done)
	} else {
		f.TestRR(4, RAX, RAX)
		f.Jcc(CondE, done)
		f.OpRI(OpSub, 4, RAX, 1) // the NUL is there: the ring is zeroed
	}
	f.OpRR(OpAdd, 8, RAX, RDX)
	f.MovMR(8, f.tempAt(tempEnd), RAX)
	f.MovRM(8, src, f.tempAt(t))
	if a.Store == fetch.StoreCounted {
		f.checkSpan(src, fault, done)
	}
	f.copyBytes(src, fault)
	f.Bind(done)
	f.MovRM(4, RAX, f.tempAt(t+1))
	f.OpRI(OpAdd, 4, RAX, 7)
	f.OpRI(OpAnd, 4, RAX, -8)
	f.OpMR(OpAdd, 8, f.tempAt(tempCur), RAX)
	f.after(func() {
		f.Bind(fault)
		failed := int32(0)
		if a.Store == fetch.StoreCounted {
			failed = countedFault
		}
		f.MovMI(4, At(rec, at), failed)
		f.Jmp(done)
	})
}

// copyBytes emits the copying from src to RDX, which is a multiple of 8, up to the address in tempEnd: 8 bytes at
// once, and the rest in 4, 2 and 1. It never reads what lies behind.
func (f *frame) copyBytes(src Reg, fault Label) {
	rest := f.Label()
	loop := f.Here()
	f.Lea(RAX, At(RDX, 8))
	f.OpRM(OpCmp, 8, RAX, f.tempAt(tempEnd))
	f.JccShort(CondA, rest)
	f.plainLoad(8, RAX, At(src, 0), fault)
	f.MovMR(8, At(RDX, 0), RAX)
	f.Lea(src, At(src, 8))
	f.Lea(RDX, At(RDX, 8))
	f.JmpShort(loop)
	f.Bind(rest)
	for n := 4; n > 0; n /= 2 {
		none := f.Label()
		f.TestMI(1, f.tempAt(tempEnd), int32(n))
		f.JccShort(CondE, none)
		f.plainLoad(n, RAX, At(src, 0), fault)
		f.MovMR(n, At(RDX, 0), RAX)
		if n > 1 {
			f.Lea(src, At(src, int32(n)))
			f.Lea(RDX, At(RDX, int32(n)))
		}
		f.Bind(none)
	}
}

// array emits the elements of an array, each 0 if its load faults.
func (f *frame) array(a *fetch.Arg, s *storing, rec Reg, at int32) {
	bad, start := f.Label(), f.Label()
	f.address(RDX, a, s, bad)
	f.Bind(start)
	f.after(func() {
		f.Bind(bad)
		f.MovRI(RDX, 0)
		f.Jmp(start)
	})
	for j := range a.Count {
		fault, done := f.Label(), f.Label()
		f.load(spaceAny, a.Size, RAX, At(RDX, int32(j*a.Size)), fault)
		f.Bind(done)
		f.MovMR(a.Size, At(rec, at+int32(j*a.Size)), RAX)
		f.zeroOn(fault, done)
	}
}

package amd64

import (
	"kprobes.dev/kprobes/fetch"
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
	cur, end := f.s2(), f.Label()
	f.MovMR(8, f.tempAt(t), RAX)
	f.MovRR(8, cur, RAX)
	f.Lea(RDX, At(RAX, s.cap-1))
	f.check(1, At(cur, 0), fault)
	loop := f.Here()
	f.OpRR(OpCmp, 8, cur, RDX)
	f.Jcc(CondE, end)
	f.nextPage(cur, fault)
	f.plainLoad(1, RAX, At(cur, 0), fault)
	f.TestRR(4, RAX, RAX)
	f.JccShort(CondE, end)
	f.IncR(8, cur)
	f.Jmp(loop)
	f.Bind(end)
	f.MovRR(8, RAX, cur)
	f.OpRM(OpSub, 8, RAX, f.tempAt(t))
	f.IncR(8, RAX)
	f.length(t)
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
	f.copyBytes(src, fault, done)
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

// copyBytes emits the copying from src to RDX up to the address in tempEnd.
func (f *frame) copyBytes(src Reg, fault, done Label) {
	loop := f.Here()
	f.OpRM(OpCmp, 8, RDX, f.tempAt(tempEnd))
	f.Jcc(CondAE, done)
	f.plainLoad(1, RAX, At(src, 0), fault)
	f.MovMR(1, At(RDX, 0), RAX)
	f.IncR(8, src)
	f.IncR(8, RDX)
	f.JmpShort(loop)
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

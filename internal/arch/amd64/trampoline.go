package amd64

import (
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
)

// A trampoline serves the returns of one function whose exits are not all known, or are jumps
// to other functions: at the entry the return address is replaced by that of a stub, and the
// function's returns are where the stub goes on.
//
// The stub's address stands for the return address, so a return needs nothing but memory that
// never changes: there is a stub for each place that calls the function, and the real address
// is in a table, as far behind the stub as any stub's. Trampolines stand in pieces, each for
// TrampolinesPerPiece functions, and all pieces have the same layout and the same code:
//
//	stubs  0          64 bytes for each function: bare code, stubs of the first 5 callers
//	       64 Ki      4032 bytes for each function: stubs of 504 callers more
//	table  4 Mi       64 bytes for each function: head, return addresses of the first 5 callers
//	       4 Mi+64 Ki return addresses of 504 callers more
//
// The first 64 bytes of a function:
//
//	stubs  0     the bare code: puts the return address back and returns
//	       24    stub 3:  call *table(0);  nop
//	       32    stub 4 …
//	table  0     address of the common code: the bare one, or that of a detour
//	       8     returns that belonged to no call of any event (kretprobe BUG!)
//	       16    the stack slot of the last of these
//	       24    return address of stub 3
//	       32    that of stub 4 …
//
// A function that is called from no more places than these touches no memory beyond them.
//
// A call and no jump leads from the stub to the common code: it writes where it came from over
// the slot of the return address, which is free by then, and the processor's own stack of
// return addresses is as deep again as it is to be. The common code makes the return address
// of that and stands, from then on, where the function's ret instruction would have stood. So
// it is a detour like others, of an instruction that nobody has.
//
// Patching the first word of the table, as if it were an instruction, arms and disarms it.
// Calls in progress then return through the bare code.
//
// The room of all pieces is one range, whose size is a power of two that divides its address: a
// shift and a comparison tell whether an address is in it.

const (
	// TrampolineDist is how far behind a stub the word is that holds what the stub stands for.
	TrampolineDist = 4 << 20
	// TrampolinePiece is the size of a piece, stubs and tables.
	TrampolinePiece = 2 * TrampolineDist
	// TrampolinesPerPiece is the number of functions that a piece serves.
	TrampolinesPerPiece = 1024
	// TrampolineHead is the size of a function's first stubs, and of the words that belong to them.
	TrampolineHead = 64
	// trampolineHeads is the size of the first stubs of all functions of a piece.
	trampolineHeads = TrampolinesPerPiece * TrampolineHead
	// trampolineMore is the size of a function's further stubs.
	trampolineMore = (TrampolineDist - trampolineHeads) / TrampolinesPerPiece
)

// Stubs and words of the table, all of 8 bytes.
const (
	stubSize    = 8
	tableCommon = 0
	tableStray  = 8
	tableSlot   = 16
	firstStub   = 24
	fewCalls    = (TrampolineHead - firstStub) / stubSize
	moreCalls   = trampolineMore / stubSize
	maxProbe    = 56 // words of the second table that are searched for a return address
)

// TrampolineCalls is how many places a trampoline tells apart from which the function is
// called. Calls from others are missed.
const TrampolineCalls = fewCalls + moreCalls

// TrampolineAt gives the n-th trampoline of the room at lo. mapped is the address of a word that
// tells how many bytes of the room are mapped.
func TrampolineAt(lo, size, mapped uint64, n int) *arch.Trampoline {
	piece := lo + uint64(n)/TrampolinesPerPiece*TrampolinePiece
	k := uint64(n) % TrampolinesPerPiece
	stubs := piece + k*TrampolineHead
	return &arch.Trampoline{
		Stubs: stubs, More: piece + trampolineHeads + k*trampolineMore, Table: stubs + TrampolineDist,
		Lo: lo, Size: size, Mapped: mapped,
	}
}

// bareCode is where the instructions of the bare code stand, the ret last.
type bareCode [6]uint64

// bare emits the code that puts the return address back, without its ret. It gives the
// addresses of the instructions, that of the ret last.
func (a *Asm) bare() (at bareCode) {
	for i, emit := range []func(){
		func() { a.Push(RAX) },
		func() { a.MovRM(8, RAX, At(RSP, 8)) },
		func() { a.MovRM(8, RAX, At(RAX, TrampolineDist-callLen)) },
		func() { a.MovMR(8, At(RSP, 8), RAX) },
		func() { a.Pop(RAX) },
	} {
		at[i] = a.Addr()
		emit()
	}
	at[5] = a.Addr()
	return at
}

// BareRange is where the bare code of a trampoline stands.
func BareRange(t *arch.Trampoline) interval.Range {
	return interval.Range{Start: t.Stubs, End: t.Stubs + firstStub}
}

// callLen is the length of a stub's call.
const callLen = 6

// NewStubs makes the code of a trampoline's stubs, the first and the further ones.
func NewStubs(t *arch.Trampoline) (first, more []byte, err error) {
	if t.Stubs%TrampolineHead != 0 || t.More%stubSize != 0 || t.Table != t.Stubs+TrampolineDist {
		return nil, nil, errno.Errorf(unix.EINVAL, "trampoline: stubs at 0x%x and 0x%x, table at 0x%x", t.Stubs, t.More, t.Table)
	}
	a := NewAsm(t.Stubs)
	a.bare()
	a.Ret()
	for a.Len() < firstStub {
		a.Int3()
	}
	a.stubs(t, TrampolineHead)
	b := NewAsm(t.More)
	b.stubs(t, trampolineMore)
	first, err = a.Finish()
	if err == nil {
		more, err = b.Finish()
	}
	return first, more, err
}

// stubs emits stubs until the code has size bytes.
func (a *Asm) stubs(t *arch.Trampoline, size int) {
	for a.Len() < size {
		a.CallM(AtAddr(t.Table + tableCommon))
		a.Nop(stubSize - callLen)
	}
}

// PieceStubs makes the code of all stubs of a piece. It is the same for each.
func PieceStubs() ([]byte, error) {
	code := make([]byte, TrampolineDist)
	for n := range TrampolinesPerPiece {
		t := TrampolineAt(0, TrampolinePiece, 0, n)
		first, more, err := NewStubs(t)
		if err != nil {
			return nil, err
		}
		copy(code[t.Stubs:], first)
		copy(code[t.More:], more)
	}
	return code, nil
}

// PieceHeads makes what the first words of the tables of a piece, which begins at an address, hold
// before the first call.
func PieceHeads(piece uint64) []byte {
	b := make([]byte, trampolineHeads)
	for at := 0; at < len(b); at += TrampolineHead {
		binary.LittleEndian.PutUint64(b[at+tableCommon:], piece+uint64(at))
		binary.LittleEndian.PutUint64(b[at+tableStray:], 1) // not 0: no stub's
		binary.LittleEndian.PutUint64(b[at+tableSlot:], 1)
	}
	return b
}

// Stray tells, from the first bytes of a trampoline's table, how many returns came that
// belonged to no call of any event, and where on the stack the last of them had its return
// address.
func Stray(table []byte) (n, slot uint64) {
	return binary.LittleEndian.Uint64(table[tableStray:]) - 1, binary.LittleEndian.Uint64(table[tableSlot:])
}

// StrayHeader is the number of bytes of a table that Stray needs.
const StrayHeader = firstStub

// IsStub says whether a value, found where a return address may stand, is the address of a
// stub in the room of trampolines at lo.
func IsStub(v, lo, size uint64) bool {
	at := v - lo
	return at < size && at&TrampolineDist == 0 && v%stubSize == 0 &&
		(at%TrampolineDist >= trampolineHeads || at%TrampolineHead >= firstStub)
}

// The layout of trampolines before there were pieces: a page of stubs for each function, all pages
// one behind the other, then the tables likewise.
const (
	flatTrampoline = 4096
	// FlatStubs is the size of all functions' stubs, and of their tables.
	FlatStubs = 4096 * flatTrampoline
)

// IsFlatStub is IsStub for the layout before.
func IsFlatStub(v, lo uint64) bool {
	return v-lo < FlatStubs && v%stubSize == 0 && v%flatTrampoline >= firstStub
}

// StubOf gives the stub whose call has written v into the slot of a return address, where the
// common code finds it: it begins to run with that.
func StubOf(v uint64) uint64 { return v - callLen }

// ReturnDetour implements arch.Arch.
func (x86) ReturnDetour(addr uint64, t *arch.Trampoline, ops []arch.ProbeOp, w *arch.CodegenEnv) (*arch.Detour, interval.Range, error) {
	d, err := NewReturnDetour(addr, t, ops, w)
	return d, BareRange(t), err
}

// NewReturnDetour generates the code at addr that the trampoline's stubs are to lead to: the
// work at the function's returns. Its instructions stand for those of the bare code.
func NewReturnDetour(addr uint64, t *arch.Trampoline, ws []arch.ProbeOp, w *arch.CodegenEnv) (*arch.Detour, error) {
	if w.Go != nil || w.Kernel != nil {
		return nil, errno.Errorf(unix.EOPNOTSUPP, "return addresses can not be replaced there")
	}
	e := &emitter{Asm: NewAsm(addr), w: writer{w}}
	d := &arch.Detour{Addr: addr}
	orig, own := NewAsm(t.Stubs).bare(), e.bare()
	for i := range len(own) - 1 {
		d.Pairs = append(d.Pairs, arch.Pair{Orig: orig[i], Copy: own[i], CopyEnd: own[i+1]})
	}
	ret := orig[5]
	d.Points = []arch.PointEntry{{Point: ret, At: e.Addr()}}
	known := func(uint64) PointEnv { return PointEnv{Live: func() RegSet { return AllRegs }, StackFree: -1} }
	if err := e.point(ret, ret, ws, known); err != nil {
		return nil, err
	}
	d.Pairs = append(d.Pairs, arch.Pair{Orig: ret, Copy: e.Addr(), CopyEnd: e.Addr() + 1})
	e.Ret()
	e.rest()
	e.literals()
	return d, e.finish(d)
}

// replaces says whether work of the point is that of a trampoline.
func replaces(ws []arch.ProbeOp) bool {
	for i := range ws {
		if ws[i].Trampoline != nil && ws[i].Role != arch.RoleUnwind {
			return true
		}
	}
	return false
}

// stub emits the choice of a stub for the return address in RAX: the frame's mark becomes its
// address, or 0 if the return address is to stay, since it leads to a stub of this function
// already; then RAX becomes what that stub stands for. The instance in S1 is kept. none is
// where a call goes for which there is no stub.
func (f *frame) stub(t *arch.Trampoline, none Label) {
	nested, fresh, found, done := f.Label(), f.Label(), f.Label(), f.Label()
	f.isStub(t, RAX, f.s2())
	f.Jcc(CondE, nested)
	f.Bind(fresh)
	if t.Off != 0 {
		f.MovRI(RDX, t.Off)
		f.OpMI(OpCmp, 4, At(RDX, 0), 0)
		f.Jcc(CondNE, none)
	}
	other := f.Label()
	f.MovRI(f.s2(), t.Table+firstStub)
	f.OpMR(OpCmp, 8, At(f.s2(), 0), RAX)
	f.Jcc(CondNE, other)
	f.Bind(found)
	f.OpRI(OpSub, 8, f.s2(), TrampolineDist)
	f.MovMR(8, At(RSP, f.mark), f.s2())
	f.Bind(done)
	f.after(func() { f.otherStub(t, other, found, none) })
	f.after(func() { f.nestedStub(t, nested, fresh, done) })
}

// isStub emits a comparison: equal (CondE) says that reg lies in the room of trampolines. It
// clobbers tmp.
func (f *frame) isStub(t *arch.Trampoline, reg, tmp Reg) {
	bits := bits.TrailingZeros64(t.Size)
	f.MovRR(8, tmp, reg)
	f.ShiftRI(Shr, 8, tmp, uint8(bits))
	f.OpRI(OpCmp, 8, tmp, int32(t.Lo>>bits))
}

// otherStub emits the search of the tables for the return address in RAX, from the second word
// on; S2 leads to the first. A free word becomes its own, and the first table is used up before the
// second. Words never change again.
func (f *frame) otherStub(t *arch.Trampoline, other, found, none Label) {
	few, many, try := f.Label(), f.Label(), f.Label()
	f.Bind(other)
	for range fewCalls - 1 {
		f.OpRI(OpAdd, 8, f.s2(), stubSize)
		f.OpMR(OpCmp, 8, At(f.s2(), 0), RAX)
		f.Jcc(CondE, found)
	}
	f.OpMI(OpCmp, 8, At(f.s2(), 0), 0)
	f.Jcc(CondE, few)
	f.Bind(many)
	f.hashed(t)
	f.OpMR(OpCmp, 8, At(f.s2(), 0), RAX)
	f.Jcc(CondE, found)
	f.MovMI(8, At(RSP, f.mark), maxProbe)
	loop := f.Here()
	f.MovRM(8, RDX, At(f.s2(), 0))
	f.OpRR(OpCmp, 8, RDX, RAX)
	f.Jcc(CondE, found)
	f.TestRR(8, RDX, RDX)
	f.Jcc(CondE, try)
	f.OpRI(OpAdd, 8, f.s2(), stubSize)
	f.OpMI(OpSub, 4, At(RSP, f.mark), 1)
	f.Jcc(CondNE, loop)
	f.MovRI(RDX, t.Table+TrampolineHead)
	f.OpRR(OpCmp, 8, f.s2(), RDX)
	f.Jcc(CondE, many) // others have used the first table up meanwhile
	f.Jmp(none)
	f.Bind(few)
	f.MovRI(f.s2(), t.Table+firstStub)
	f.MovMI(8, At(RSP, f.mark), fewCalls)
	f.Jmp(loop)
	f.Bind(try)
	f.MovRR(8, RDX, RAX)
	f.MovRI(RAX, 0)
	f.Lock().Cmpxchg(8, At(f.s2(), 0), RDX)
	f.MovRR(8, RAX, RDX)
	f.Jcc(CondE, found)
	f.Jmp(loop) // somebody else was faster: the word is looked at once more
}

// hashed emits S2 = the word of the second table from which on the return address in RAX is
// searched: one of 449, so that there are maxProbe words from each.
func (f *frame) hashed(t *arch.Trampoline) {
	f.MovRI(RDX, hashFactor)
	f.ImulRR(8, RDX, RAX)
	f.ShiftRI(Shr, 8, RDX, 64-9)
	f.MovRR(8, f.s2(), RDX)
	f.ShiftRI(Shr, 8, f.s2(), 3)
	f.OpRR(OpSub, 8, RDX, f.s2())
	f.MovRI(f.s2(), t.More+TrampolineDist)
	f.Lea(f.s2(), AtIndex(f.s2(), RDX, 8, 0))
}

// nestedStub emits what is done where the return address is that of a stub. One of this
// function's own comes of a second event, or of a call that ended in a jump to the function
// itself; it may also stand behind those of others, where functions end in jumps to one another.
// Such a return is seen when the own stub is reached, so that stubs never pile up. Else the
// other function's stub is a return address like any.
func (f *frame) nestedStub(t *arch.Trampoline, nested, fresh, done Label) {
	own := f.Label()
	f.Bind(nested)
	f.walk(t, own)
	f.MovRM(8, RAX, At(RSP, f.drop))
	f.Jmp(fresh)
	f.Bind(own)
	f.MovRM(8, RAX, At(RAX, 0))
	f.MovMI(8, At(RSP, f.mark), 0)
	f.Jmp(done)
}

// walk emits a jump to own if the return address in RAX is one of the function's own stubs, or a stub
// that stands for such a one; RAX is the address of that stub's word then. It clobbers RAX, RDX and S2.
func (f *frame) walk(t *arch.Trampoline, own Label) {
	none := f.Label()
	walk := f.Here()
	f.wordOf(t, f.s2(), none)
	for _, part := range []struct {
		at   uint64
		size int32
	}{{t.Table, TrampolineHead}, {t.More + TrampolineDist, trampolineMore}} {
		f.MovRI(RDX, part.at)
		f.MovRR(8, f.s2(), RAX)
		f.OpRR(OpSub, 8, f.s2(), RDX)
		f.OpRI(OpCmp, 8, f.s2(), part.size)
		f.Jcc(CondB, own)
	}
	f.MovRM(8, RAX, At(RAX, 0))
	f.Jmp(walk)
	f.Bind(none)
}

// wordOf emits RAX = the address of the word of the stub in RAX, or a jump to none if that is no address
// of a stub; RAX has TrampolineDist too much then. It clobbers tmp.
//
// Where all is taken out the tracer puts stubs back in registers, as they are (target/process): between any
// two instructions a register with a stub's address may get the real one. No such register is ever
// compared first and used then.
func (f *frame) wordOf(t *arch.Trampoline, tmp Reg, none Label) {
	f.OpRI(OpAdd, 8, RAX, TrampolineDist)
	f.isStub(t, RAX, tmp)
	f.Jcc(CondNE, none)
	f.TestRI(4, RAX, TrampolineDist)
	f.Jcc(CondE, none)
}

// replace emits the replacing of the return address by the stub that was chosen.
func (f *frame) replace() {
	keep := f.Label()
	f.MovRM(8, RAX, At(RSP, f.mark))
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondE, keep)
	f.MovMR(8, At(RSP, f.drop), RAX)
	f.Bind(keep)
}

// matched notes at a trampoline's return that an event has found the call's instance: the mark's
// lower half is not 0 then. The upper half says that there are more (reenter.go).
func (f *frame) matched(w *arch.ProbeOp) {
	if w.Trampoline != nil {
		f.MovMI(4, At(RSP, f.mark), 1)
	}
}

// stray emits the counting of a return that belonged to no call of any event.
func (f *frame) stray(t *arch.Trampoline) {
	none, done := f.Label(), f.Label()
	f.OpMI(OpCmp, 4, At(RSP, f.mark), 0)
	f.Jcc(CondE, none)
	f.Bind(done)
	f.after(func() {
		f.Bind(none)
		f.MovRI(RDX, t.Table)
		f.Lea(RAX, At(RSP, f.drop))
		f.MovMR(8, At(RDX, tableSlot), RAX)
		f.Lock().IncM(8, At(RDX, tableStray))
		f.Jmp(done)
	})
}

// returnsOf gives the trampoline of the works at a return; nil: it is none's.
func returnsOf(ws []arch.ProbeOp) *arch.Trampoline {
	for i := range ws {
		if ws[i].Role == arch.RoleExit && ws[i].Trampoline != nil {
			return ws[i].Trampoline
		}
	}
	return nil
}

// Offset of the return address of a frame from the address that is handed to
// _Unwind_Find_FDE, in struct _Unwind_Context of libgcc (unwind-dw2.c, GCC 3.0 to 15):
// ra and lsda stand before bases.
const unwindRA = -16

// unwind emits the work at the entry of _Unwind_Find_FDE(pc, bases), which libgcc's unwinder
// asks about every frame: where the frame's code address is that of a stub, it becomes the
// one that the stub stands for, in the argument and, if it is there, in the unwinder's context
// of the frame. So whoever walks the stack sees the callers that there are. pc is the return
// address less one, or that of an instruction that a signal has interrupted.
func (f *frame) unwind(t *arch.Trampoline) {
	hit, done := f.Label(), f.Label()
	f.Lea(RAX, At(RDI, 1+TrampolineDist))
	f.MovRR(8, f.s2(), RAX)
	f.OpRI(OpAnd, 8, RAX, -stubSize)
	f.isStub(t, RAX, f.s1())
	f.Jcc(CondE, hit)
	f.Bind(done)
	f.after(func() {
		f.Bind(hit)
		f.mappedWord(t, done)
		f.OpRI(OpAnd, 4, f.s2(), stubSize-1)
		f.Lea(f.s1(), At(RAX, -TrampolineDist))
		real, skip := f.Label(), f.Label()
		follow := f.Here()
		f.MovRM(8, RAX, At(RAX, 0))
		f.TestRR(8, RAX, RAX)
		f.Jcc(CondE, done) // a stub that was never used
		f.wordOf(t, RDX, real)
		f.Jmp(follow)
		f.Bind(real)
		f.OpRI(OpSub, 8, RAX, TrampolineDist)
		f.OpMR(OpCmp, 8, At(RSI, unwindRA), f.s1())
		f.Jcc(CondNE, skip)
		f.MovMR(8, At(RSI, unwindRA), RAX)
		f.Bind(skip)
		f.Lea(RDI, AtIndex(RAX, f.s2(), 1, -1))
		f.Jmp(done)
	})
}

// mappedWord emits a jump to no, unless the address in RAX, which is in the room of trampolines and
// divided by 8, is that of the word of a stub that is mapped. It clobbers RDX and S1.
func (f *frame) mappedWord(t *arch.Trampoline, no Label) {
	yes := f.Label()
	f.MovRI(RDX, t.Lo)
	f.MovRR(8, f.s1(), RAX)
	f.OpRR(OpSub, 8, f.s1(), RDX)
	f.MovRI(RDX, t.Mapped)
	f.OpMR(OpCmp, 8, At(RDX, 0), f.s1())
	f.Jcc(CondBE, no)
	f.TestRI(4, f.s1(), TrampolineDist)
	f.Jcc(CondE, no)
	f.OpRI(OpAnd, 4, f.s1(), TrampolineDist-1)
	f.OpRI(OpCmp, 4, f.s1(), trampolineHeads)
	f.Jcc(CondAE, yes)
	f.OpRI(OpAnd, 4, f.s1(), TrampolineHead-1)
	f.OpRI(OpCmp, 4, f.s1(), firstStub)
	f.Jcc(CondB, no)
	f.Bind(yes)
}

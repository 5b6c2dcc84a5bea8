package amd64

import (
	"encoding/binary"

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
	e.landingTable()
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

package native

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
)

// Instance is what a slot of a pool says of a call in progress.
type Instance = amd64.Instance

// SlotHeader is the size of what each slot begins with.
const SlotHeader = amd64.SlotHeader

// ReadInstance reads a slot; ok is false for one that is free.
func ReadInstance(slot []byte, goProgram bool) (i Instance, ok bool) {
	return amd64.ReadInstance(slot, goProgram)
}

// SetEvent writes whose instance a slot is.
func SetEvent(slot []byte, event int) { amd64.SetEvent(slot, event) }

// SlotStride is log2 of the size of a slot for so many values.
func SlotStride(n int) int { return amd64.SlotStride(n) }

// PoolBytes is the size of a pool.
func PoolBytes(slots, stride int) uint64 { return amd64.PoolBytes(slots, stride) }

// Trampolines: a piece holds the stubs of so many functions, and their tables behind them.
const (
	TrampolineDist      = amd64.TrampolineDist // from a stub to its word
	TrampolinePiece     = amd64.TrampolinePiece
	TrampolinesPerPiece = amd64.TrampolinesPerPiece
	FlatStubs           = amd64.FlatStubs
	StrayHeader         = amd64.StrayHeader
)

// TrampolineAt is the nth trampoline of a room.
func TrampolineAt(lo, size, mapped uint64, n int) *arch.Trampoline {
	return amd64.TrampolineAt(lo, size, mapped, n)
}

// PieceStubs generates the code that each piece of the room has.
func PieceStubs() ([]byte, error) { return amd64.PieceStubs() }

// PieceHeads is what the tables of a piece begin with.
func PieceHeads(piece uint64) []byte { return amd64.PieceHeads(piece) }

// NewStubs generates the stubs of a trampoline.
func NewStubs(t *arch.Trampoline) (first, more []byte, err error) { return amd64.NewStubs(t) }

// IsStub says whether v is the address of a stub in a room.
func IsStub(v, lo, size uint64) bool { return amd64.IsStub(v, lo, size) }

// IsFlatStub is IsStub for a room as earlier versions made it.
func IsFlatStub(v, lo uint64) bool { return amd64.IsFlatStub(v, lo) }

// StubOf is the stub that a thread has come from whose instruction pointer is v.
func StubOf(v uint64) uint64 { return amd64.StubOf(v) }

// Stray reads how many returns of a function found no instance, and where the last one was.
func Stray(table []byte) (n, slot uint64) { return amd64.Stray(table) }

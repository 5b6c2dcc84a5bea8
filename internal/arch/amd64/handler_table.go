package amd64

import "encoding/binary"

// FaultEntry is an entry of the fault table, which is sorted by Lo.
type FaultEntry struct {
	Lo, Hi uint64 // addresses of generated code [Lo, Hi)
	To     uint64 // where a load goes on, or the original instruction; or see Called
	Moved  bool   // a displaced instruction
	Called bool   // not Moved: the resident handler goes on at To, as the signal's handler; it is no place for the thread
	SP     uint64 // Moved: what a thread adds to its stack pointer on the way back (Pair.SP)
	Stub   uint64 // Moved: where handlers are told first (arch.FaultStub), behind Lo; 0: none are
}

// Append appends the entry as it stands in memory.
func (e *FaultEntry) Append(b []byte) []byte {
	kind := uint64(0)
	if e.Called {
		kind = kindCalled
	}
	if e.Moved {
		kind = 1 | e.SP<<8
		if e.Stub > e.Lo && e.Stub-e.Lo < 1<<32 {
			kind |= (e.Stub - e.Lo) << 32
		}
	}
	var w [FaultEntrySize]byte
	binary.LittleEndian.PutUint64(w[:], e.Lo)
	binary.LittleEndian.PutUint64(w[8:], e.Hi)
	binary.LittleEndian.PutUint64(w[16:], e.To)
	binary.LittleEndian.PutUint64(w[24:], kind)
	return append(b, w[:]...)
}

// kindCalled is the last word of a Called entry.
const kindCalled = 2

// ReadFaultEntry reads an entry from memory, at least FaultEntrySize bytes.
func ReadFaultEntry(b []byte) FaultEntry {
	kind := binary.LittleEndian.Uint64(b[24:])
	e := FaultEntry{
		Lo: binary.LittleEndian.Uint64(b), Hi: binary.LittleEndian.Uint64(b[8:]), To: binary.LittleEndian.Uint64(b[16:]),
		Moved: kind&1 != 0, Called: kind == kindCalled, SP: kind >> 8 & 0xff,
	}
	if stub := kind >> 32; stub != 0 {
		e.Stub = e.Lo + stub
	}
	return e
}

// FaultEntrySize is the size of an entry in memory: Lo, Hi, To, and a word of Moved, Called, SP and Stub.
const FaultEntrySize = 32

// TrapEntrySize is the size of an entry of the trap table: an instruction's address, and
// where a thread goes on that has run a breakpoint there: its detour; or, where a jump has
// replaced the breakpoint before its signal was taken, the work or the copy of that
// instruction in the jump's.
const TrapEntrySize = 16

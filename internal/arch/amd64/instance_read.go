package amd64

import (
	"encoding/binary"
)

// Instance is a slot of a pool as it was read from memory.
type Instance struct {
	Event  int
	Epoch  uint16
	Return uint64 // where the call returns to
	// SP is the stack pointer at entry, where the return address stands; 0 for a
	// goroutine.
	SP uint64
	// GoID and Distance (bytes below the high end of its stack) tell where the
	// return address of a goroutine's call stands.
	GoID, Distance uint64
}

// ReadInstance decodes a slot. ok is false if it is free.
func ReadInstance(slot []byte, goProgram bool) (i Instance, ok bool) {
	key := binary.LittleEndian.Uint64(slot[slotKey:])
	if key == 0 {
		return i, false
	}
	i.Event, i.Epoch = int(binary.LittleEndian.Uint32(slot[slotEvent:])), binary.LittleEndian.Uint16(slot[slotEpoch:])
	i.Return = binary.LittleEndian.Uint64(slot[slotReturn:])
	key ^= EventSalt(i.Event)
	if !goProgram {
		i.SP = withoutDepth(key)
		return i, true
	}
	if i.GoID, i.SP = SplitGoKey(key); i.SP == 0 {
		i.Distance = key & (1<<goKeyShift - 1) << 3
	}
	return i, true
}

// SplitGoKey gives of a Go program's key, without the event's salt, the goroutine, or, if sp
// is not 0, the stack pointer on a system stack.
//
//go:norace
//go:nosplit
func SplitGoKey(key uint64) (goid, sp uint64) {
	if key>>63 != 0 {
		return 0, key &^ (1 << 63)
	}
	return key >> goKeyShift, 0
}

// SlotHeader is the number of bytes of a slot that ReadInstance needs.
const SlotHeader = slotValues

// SetEvent makes a slot that was read one of another event: a thread that has claimed a slot
// writes down the event a little later.
func SetEvent(slot []byte, event int) { binary.LittleEndian.PutUint64(slot[slotEvent:], uint64(event)) }

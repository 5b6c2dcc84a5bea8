package handler

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
)

// A return handler runs once for each run of the entry handler, also where a later call has the same
// slot and the same key: a goroutine that calls in a loop has. What the later one would find there is
// the earlier call's Data.
func TestReturnNeedsItsEntry(t *testing.T) {
	header := new([native.SlotHeader]byte)
	binary.LittleEndian.PutUint64(header[:], 0x1234)
	slot := uint64(uintptr(unsafe.Pointer(header)))
	entries, returns := 0, 0
	r := &runs{
		Handlers: Handlers{
			Entry:  func(*Call, *Regs) int { entries++; return 0 },
			Return: func(*Call, *Regs) int { returns++; return 0 },
		},
		Options: Options{DataSize: 8},
		epoch:   new(atomic.Uint32), target: Target{Own: true}, base: slot, shift: 6, slotSize: keySize + 8, slots: make([]byte, keySize+8),
		frames: make([]frame, 1),
	}
	for range 2 {
		if a := r.runEntry(nil, &Regs{}, slot); a != arch.ActionGo {
			t.Fatalf("entry: action %d", a)
		}
		for range 2 { // the second one's entry was not seen
			if a := r.runExit(nil, &Regs{}, slot); a != arch.ActionGo {
				t.Fatalf("exit: action %d", a)
			}
		}
	}
	if entries != 2 || returns != 2 {
		t.Errorf("%d entry handlers, %d return handlers", entries, returns)
	}
}

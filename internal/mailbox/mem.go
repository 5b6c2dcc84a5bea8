package mailbox

import (
	"sync/atomic"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch"
)

// Mem is a mailbox (internal/arch/amd64, gate.go) as it lies in our memory. The target can write to
// all of it: what is read is copied, then checked, then used.
type Mem struct {
	B     []byte // the mailbox, not moved while it is used
	Slots int    // from arch.MailSlotsOff on
	Descs int    // descriptors that there is room for
	First int    // where the first descriptor stands, from the start
}

// Word32 is the word of 4 bytes at an offset, which must be inside.
func (m *Mem) Word32(off int) *uint32 {
	_ = m.B[off+3]
	return (*uint32)(unsafe.Pointer(&m.B[off]))
}

// Word64 is the word of 8 bytes at an offset, which must be inside.
func (m *Mem) Word64(off int) *uint64 {
	_ = m.B[off+7]
	return (*uint64)(unsafe.Pointer(&m.B[off]))
}

// State is the state of a slot.
func (m *Mem) State(slot int) *uint32 { return m.Word32(SlotAt(slot) + arch.MailStateOff) }

// Slot is what stands in a slot.
func (m *Mem) Slot(slot int) []byte { return m.B[SlotAt(slot):][:arch.MailSlotSize] }

// SlotAt is where a slot stands, from the start of the mailbox.
func SlotAt(slot int) int { return arch.MailSlotsOff + slot*arch.MailSlotSize }

// DescAt is where a descriptor stands, from the start of the mailbox.
func (m *Mem) DescAt(desc int) int { return m.First + desc*arch.MailDescSize }

// Move makes a step of a slot's state, if it is still the first one.
func (m *Mem) Move(slot int, from, to uint32) bool {
	return atomic.CompareAndSwapUint32(m.State(slot), from, to)
}

// Init fills in the first page; pid is the process's own id of itself, 0 for a kernel.
func (m *Mem) Init(pid int) {
	atomic.StoreUint32(m.Word32(arch.MailPIDOff), uint32(pid))
	atomic.StoreUint64(m.Word64(arch.MailVersionOff), arch.MailVersion)
	atomic.StoreUint64(m.Word64(arch.MailMagicOff), arch.MailMagic)
}

// InUse says whether a slot is not free.
func (m *Mem) InUse() bool {
	for slot := range m.Slots {
		if atomic.LoadUint32(m.State(slot)) != arch.MailSlotFree {
			return true
		}
	}
	return false
}

// FreeAll frees the slots that we do not own. Precondition: no thread is in the gate.
func (m *Mem) FreeAll() {
	for slot := range m.Slots {
		for _, state := range []uint32{arch.MailSlotClaimed, arch.MailSlotPosted, arch.MailSlotAnswered, arch.MailSlotRefused} {
			m.Move(slot, state, arch.MailSlotFree)
		}
	}
}

// RefuseAll lets threads go that nobody serves; wake, if not nil, wakes one that sleeps on its
// slot's state.
func (m *Mem) RefuseAll(wake func(word *uint32)) {
	for slot := range m.Slots {
		if (m.Move(slot, arch.MailSlotPosted, arch.MailSlotRefused) || m.Move(slot, arch.MailSlotTaken, arch.MailSlotRefused)) && wake != nil {
			wake(m.State(slot))
		}
	}
}

// Disable lets nobody wait any more: a hit is missed at once.
func (m *Mem) Disable() { atomic.StoreUint32(m.Word32(arch.MailOffOff), arch.MailClosed) }

package amd64

import (
	"encoding/binary"
)

// What a module is told of a call lies in a block for each instance of the probe's pool:
//
//	0   the instance's key, once the entry handler has returned 0: only then the return handler runs
//	16  struct kretprobe_instance (linux/kprobes.h), with the call's own data at its end
const (
	blockMark = 0
	blockRI   = 16
	riOf      = 0
	riReturn  = 8
	riTask    = 16
	riFrame   = 24
	riData    = 32
)

// SlotBlock is the size of the block of a call with so many bytes of data.
func SlotBlock(data int) int { return blockRI + riData + (data+15)&^15 }

// SlotSize is the bytes of a slot.
const SlotSize = 1024

// The layout of a slot. struct __kp_slot_data of linux/kp_runtime.h stands at its start.
const (
	slotCPU     = 0
	slotAtomic  = 4
	slotFrameAt = 256 // the frame of the detour
	slotBackTo  = 264 // where the gate goes back to
	slotDescAt  = 272 // the descriptor
	slotStack   = 288 // the end of the handler's stack; 0: it has the thread's
	slotMXCSR   = 296 // the thread's, and behind it the handler's
	slotCall    = 304 // the instance of a return probe's call
	slotAction  = 312 // 32 bits: arch.Action
	slotRuns    = 496 // how many handlers have run in it
	slotBlockAt = 504 // the call's struct kretprobe_instance
	slotPtRegs  = 320 // 21 words, to 488
	slotVector  = 512 // XMM0 to XMM15
)

// The words of struct pt_regs.
const (
	ptOrigAX = 15
	ptIP     = 16
	ptCS     = 17
	ptFlags  = 18
	ptSP     = 19
	ptSS     = 20
)

// ptWords are the places of the general registers.
var ptWords = [...]int32{
	RAX: 10, RCX: 11, RDX: 12, RBX: 5, RSP: ptSP, RBP: 4, RSI: 13, RDI: 14, R8: 9, R9: 8, R10: 7, R11: 6, R12: 3, R13: 2, R14: 1, R15: 0,
}

func ptWord(n int32) int32 { return slotPtRegs + 8*n }

// SlotDesc is the descriptor of a handler that runs in line.
type SlotDesc struct {
	Handler uint64 // its address
	Of      uint64 // its first argument
	IP      uint64 // in its registers
	Missed  uint64 // address of a 64-bit count of misses
	Off     uint32 // not 0: it is not called any more
	Abandon uint64 // where its gate goes on without it: see NewSlotGate
	RedZone uint64 // bytes below the stack pointer that the probed function may use: 128, and 0 in a Go function
	// Of a return probe: its pool, and the blocks of its instances.
	Pool, Blocks, Block uint64 // addresses, and the bytes of a block
	Stride              uint32 // arch.Pool.Stride
	Marked              uint32 // not 0: there is an entry handler
	Fault               uint64 // address of the fault handler (slotfault.go); 0: there is none
}

// The layout of a descriptor.
const (
	SlotDescSize = 96 // bytes

	slotDescHandler = 0
	slotDescOf      = 8
	slotDescIP      = 16
	slotDescMissed  = 24
	SlotDescOff     = 32 // 32 bits; not 0: it is not called any more
	SlotDescFaults  = 36 // 32 bits: how often something has faulted in it
	slotDescAbandon = 40
	slotDescRedZone = 48
	slotDescPool    = 56
	slotDescBlocks  = 64
	slotDescBlock   = 72
	slotDescStride  = 80
	slotDescMarked  = 84
	slotDescFault   = 88
)

// Put writes a descriptor to its memory.
func (d *SlotDesc) Put(b []byte) {
	binary.LittleEndian.PutUint64(b[slotDescHandler:], d.Handler)
	binary.LittleEndian.PutUint64(b[slotDescOf:], d.Of)
	binary.LittleEndian.PutUint64(b[slotDescIP:], d.IP)
	binary.LittleEndian.PutUint64(b[slotDescMissed:], d.Missed)
	binary.LittleEndian.PutUint64(b[SlotDescOff:], uint64(d.Off))
	binary.LittleEndian.PutUint64(b[slotDescAbandon:], d.Abandon)
	binary.LittleEndian.PutUint64(b[slotDescRedZone:], d.RedZone)
	binary.LittleEndian.PutUint64(b[slotDescPool:], d.Pool)
	binary.LittleEndian.PutUint64(b[slotDescBlocks:], d.Blocks)
	binary.LittleEndian.PutUint64(b[slotDescBlock:], d.Block)
	binary.LittleEndian.PutUint32(b[slotDescStride:], d.Stride)
	binary.LittleEndian.PutUint32(b[slotDescMarked:], d.Marked)
	binary.LittleEndian.PutUint64(b[slotDescFault:], d.Fault)
}

// PutSlot prepares the memory of slot n, which lies at addr. stack is the end of a stack for handlers; 0: they have the thread's.
func PutSlot(b []byte, addr uint64, n int, stack uint64) {
	clear(b[:SlotSize])
	put := binary.LittleEndian.PutUint64
	put(b[slotCPU:], uint64(n)|1<<32)
	put(b[slotStack:], stack)
	for i := range 2 {
		put(b[taskMM+8*i:], addr+slotMM)
	}
	for i := range 3 {
		put(b[taskLeader+8*i:], addr+slotTask)
	}
}

// SlotRun is a run of a handler as its slot tells of it.
type SlotRun struct {
	Key    uint64 // the FS base of its thread
	Frame  uint64 // the stack pointer in the detour; 0: it has just begun
	BackTo uint64 // where the gate goes back to
	Desc   uint64 // of the handler
	Run    uint64 // its number among those of the slot
	Start  bool   // it is no handler, but the start or the end of a module
}

// ReadSlot reads the run of a key out of a copy of its slot. Of the start or the end of a module there is the key alone: all else is what a handler has left that ran
// there before.
func ReadSlot(key uint64, slot []byte) SlotRun {
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(slot[at:]) }
	if binary.LittleEndian.Uint32(slot[slotAtomic:]) == 0 {
		return SlotRun{Key: key, Start: true}
	}
	return SlotRun{Key: key, Frame: word(slotFrameAt), BackTo: word(slotBackTo), Desc: word(slotDescAt), Run: word(slotRuns)}
}

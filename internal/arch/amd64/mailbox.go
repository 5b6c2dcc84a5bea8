package amd64

import (
	"encoding/binary"

	"kprobes.dev/kprobes/internal/arch"
)

// Post is what a thread has posted to a mailbox.
type Post struct {
	Desc     uint64 // of the arch.Call
	Instance uint64 // of a return probe, else 0
	Resume   uint64 // where the gate goes back to, in the detour
	TID      int    // the thread's id, as it sees it itself
	Regs     Regs   // without IP
}

// userFlags are the flags that a user program always has: interrupts, and bit 1.
const userFlags = 0x202

// general gives the general registers by their numbers.
func (r *Regs) general() [16]*uint64 {
	return [16]*uint64{
		RAX: &r.AX, RCX: &r.CX, RDX: &r.DX, RBX: &r.BX, RSP: &r.SP, RBP: &r.BP, RSI: &r.SI, RDI: &r.DI,
		R8: &r.R8, R9: &r.R9, R10: &r.R10, R11: &r.R11, R12: &r.R12, R13: &r.R13, R14: &r.R14, R15: &r.R15,
	}
}

// ReadPost reads a post out of a copy of its slot, arch.MailSlotSize bytes.
func ReadPost(slot []byte) Post {
	p := Post{
		Desc: binary.LittleEndian.Uint64(slot[arch.MailDescOff:]), Instance: binary.LittleEndian.Uint64(slot[arch.MailInstanceOff:]),
		Resume: binary.LittleEndian.Uint64(slot[slotResume:]),
		TID:    int(binary.LittleEndian.Uint32(slot[arch.MailTIDOff:])),
	}
	for i, r := range p.Regs.general() {
		*r = binary.LittleEndian.Uint64(slot[slotRegs+8*i:])
	}
	ax := binary.LittleEndian.Uint64(slot[slotFlags:])
	p.Regs.Flags = userFlags | ax>>8&0xff&statusFlags | ax&1<<11
	for i := range p.Regs.X {
		for j := range p.Regs.X[i] {
			p.Regs.X[i][j] = binary.LittleEndian.Uint64(slot[slotXMM+16*i+8*j:])
		}
	}
	return p
}

// LeaveBlock is the lowest address that the gate writes to for ActionLeave with the stack
// pointer sp, and the number of bytes from there. A function of the C convention may use
// what is below its stack pointer.
func LeaveBlock(sp uint64, goFunction bool) (addr uint64, size int) {
	if !goFunction {
		sp -= redZone
	}
	return sp - leaveBlock, leaveBlock
}

// PutAnswer writes the answer to a post into its slot: the registers now, which were p's.
// block is LeaveBlock's address. The state is left alone.
func (p *Post) PutAnswer(slot []byte, now *Regs, action arch.Action, block uint64) {
	put := binary.LittleEndian.PutUint64
	put(slot[arch.MailBlockOff:], block)
	vectors := uint32(0)
	if now.X != p.Regs.X {
		vectors = 1
	}
	binary.LittleEndian.PutUint32(slot[arch.MailActionOff:], uint32(action))
	binary.LittleEndian.PutUint32(slot[slotVectors:], vectors)
	for i, r := range now.general() {
		put(slot[slotNewRegs+8*i:], *r)
	}
	put(slot[slotNewFlags:], now.Flags&statusFlags&0xff<<8|now.Flags>>11&1)
	put(slot[slotNewIP:], now.IP)
	put(slot[slotNewArith:], now.Flags&statusFlags)
	for i := range now.X {
		for j, v := range now.X[i] {
			put(slot[slotNewXMM+16*i+8*j:], v)
		}
	}
}

package amd64

import (
	"encoding/binary"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
)

// The gate keeps the rules of generated code on a borrowed stack (docs/HACKING.md): no
// return address, no more of the stack than is there, no string instruction.
func TestGateRules(t *testing.T) {
	const at = 0x7f1200000000
	code, err := NewGate(at, GateEnv{Mailbox: 0x7f0000000000, PID: 1 << 22, Wait: 59_999_999_999})
	if err != nil {
		t.Fatal(err)
	}
	depth, deepest := 0, 0
	for off := 0; off < len(code); {
		in, err := Decode(code[off:])
		if err != nil {
			t.Fatalf("at %#x: %v", off, err)
		}
		switch in.Kind {
		case KindCall, KindCallInd, KindRet:
			t.Errorf("at %#x: % x pushes or pops a return address", off, code[off:off+int(in.Len)])
		}
		if op := code[off]; op >= 0x50 && op < 0x58 {
			depth++
		} else if op >= 0x58 && op < 0x60 {
			depth = max(depth-1, 0)
		}
		deepest = max(deepest, 8*depth)
		off += int(in.Len)
	}
	if deepest == 0 || deepest > GateStack || 8*len(gatePushed) > GateStack {
		t.Errorf("the gate takes up to %d bytes of stack, %d are there", max(deepest, 8*len(gatePushed)), GateStack)
	}
}

// What a post says of the flags and what an answer makes of them are each other's reverse.
func TestPostFlags(t *testing.T) {
	slot := make([]byte, arch.MailSlotSize)
	for _, flags := range []uint64{0, 0x8d5, 0x801, 0x800, 0xd5, 0x44, 1} {
		p := Post{}
		now := Regs{Flags: flags | userFlags | 1<<8 | 1<<10}
		p.PutAnswer(slot, &now, arch.ActionGo, 0)
		word := binary.LittleEndian.Uint64(slot[slotNewFlags:])
		binary.LittleEndian.PutUint64(slot[slotFlags:], word|0xfffffffffff<<16)
		if got := ReadPost(slot).Regs.Flags; got != flags|userFlags {
			t.Errorf("flags %#x come back as %#x", flags|userFlags, got)
		}
		if got := binary.LittleEndian.Uint64(slot[slotNewArith:]); got != flags {
			t.Errorf("flags %#x are loaded as %#x", flags, got)
		}
	}
}

// TestJumpsOver: an address inside a jump to generated code is found, its start and its end are not, and
// neither are bytes that look like one, or one that would cross a page.
func TestJumpsOver(t *testing.T) {
	const at, detour = 0x7ff0, 0x900000
	code := make([]byte, 2*pageSize) // from 0x7000 on
	put := func(at uint64, to uint64) {
		code[at-0x7000] = 0xe9
		binary.LittleEndian.PutUint32(code[at-0x7000+1:], uint32(to-at-JumpLen))
	}
	put(at, detour)
	put(0x7f00, 0x1234)
	put(0x7ffe, detour)
	ours := func(to uint64) bool { return to == detour }
	for ip, want := range map[uint64]bool{
		at - 1: false, at: false, at + 1: true, at + 4: true, at + 5: false,
		0x7f02: false, 0x7000: false, 0x7fff: false, 0x8000: false, 0x8001: false,
	} {
		lo, n := Around(ip)
		if lo&^(pageSize-1) != ip&^(pageSize-1) || (lo+uint64(n)-1)&^(pageSize-1) != ip&^(pageSize-1) {
			t.Errorf("around 0x%x: %d bytes from 0x%x, in another page", ip, n, lo)
		}
		if got := JumpsOver(code[lo-0x7000:][:n], ip, ours); got != want {
			t.Errorf("0x%x: %t, want %t", ip, got, want)
		}
	}
}

package amd64

import (
	"encoding/binary"
	"testing"

	"kprobes.dev/kprobes/arch"
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
	slot := make([]byte, MailSlotSize)
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

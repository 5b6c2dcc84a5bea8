package guest

import (
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/mailbox"
)

// TestEndsInCall tells return addresses from other words by the instruction before them.
func TestEndsInCall(t *testing.T) {
	const pc = imageBase + 0x100000
	for code, want := range map[string]bool{
		"90 90 e8 10 00 00 00": true,  // call rel32
		"90 90 e8 10 00 00 80": false, // to where no kernel is
		"90 90 e9 10 00 00 00": false, // jmp
		"90 90 90 90 90 ff d0": true,  // call *%rax
		"90 90 90 90 41 ff d3": true,  // call *%r11
		"90 90 90 90 90 ff e0": false, // jmp *%rax
		"90 90 90 90 90 ff 10": true,  // call *(%rax)
		"90 90 90 90 ff 50 18": true,  // call *0x18(%rax)
		"90 90 90 ff 54 24 08": true,  // call *8(%rsp)
		"90 90 90 90 ff 14 c8": true,  // call *(%rax,%rcx,8)
		"90 ff 15 44 33 22 01": true,  // call *x(%rip)
		"90 ff 90 00 01 00 00": true,  // call *0x100(%rax)
		"ff 94 c8 00 01 00 00": true,  // call *0x100(%rax,%rcx,8)
		"ff 14 c5 00 01 00 00": true,  // call *0x100(,%rax,8)
		"90 90 90 90 90 90 ff": false,
		"90 90 90 90 90 ff 14": false, // its SIB byte is missing
		"90 90 90 90 90 90 90": false,
		"90 90 90 90 ff d0 90": false, // a call, but not at the end
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(code, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := native.EndsInCall(b, pc, imageBase); got != want {
			t.Errorf("%s: %v, want %v", code, got, want)
		}
	}
}

// TestLetWaitersGo refuses posts in a mailbox that a tracer has left, and survives a control area
// that says anything.
func TestLetWaitersGo(t *testing.T) {
	const cpus, off = 2, 4096
	words := make([]uint64, 64<<10/8) // aligned
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 64<<10)
	l, err := lowLayout(extent{0, make([]byte, 100*pageSize)}, cpus)
	if err != nil {
		t.Fatal(err)
	}
	l.data.mem = mem
	c := newControl(l.control.mem)
	c.put(hdrMail, off+1)
	m := mailbox.Mem{B: mem[off:], Slots: cpus}
	*m.State(0), *m.State(1) = arch.MailSlotPosted, arch.MailSlotAbandoned
	letWaitersGo(l, cpus)
	if *m.State(0) != arch.MailSlotRefused || *m.State(1) != arch.MailSlotAbandoned || *m.Word32(arch.MailOffOff) != arch.MailClosed {
		t.Errorf("states %d and %d, off %d", *m.State(0), *m.State(1), *m.Word32(arch.MailOffOff))
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		c.put(hdrMail, rnd.Uint64()>>rnd.IntN(64))
		letWaitersGo(l, cpus)
	}
}

package self

import (
	"testing"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// A function of three instructions, of one, three and seven bytes, and what follows it.
const (
	first  = 0x401000
	second = first + 1
	third  = second + 3
	behind = third + 7
)

// siteAt makes a site whose detour stands at an address: work and copy of each instruction,
// 16 bytes for each, then the way back. It has work where that says so.
func siteAt(addr uint64, patch int, detour uint64, ins []uint64, back uint64, work ...uint64) *target.Site {
	d := &arch.Detour{Addr: detour, Code: make([]byte, 256)}
	at := detour
	for _, in := range ins {
		for _, w := range work {
			if w == in {
				d.Points = append(d.Points, arch.PointEntry{Point: in, At: at})
			}
		}
		d.Pairs = append(d.Pairs, arch.Pair{Orig: in, Copy: at + 16, CopyEnd: at + 20})
		at += 32
	}
	d.Back = at
	d.Pairs = append(d.Pairs, arch.Pair{Orig: back, Copy: at, CopyEnd: at + 5})
	return &target.Site{Addr: addr, Patch: make([]byte, patch), Detour: d, Room: 256}
}

// movedContext is a signal frame's struct ucontext, at an address that does not change.
var movedContext [64]uint64

// TestMoveDropsTrapFlag: a thread that was about to step a copy is moved out of its detour without
// the trap flag; one that stands in the program's code keeps what flags it has.
func TestMoveDropsTrapFlag(t *testing.T) {
	trap := siteAt(first, 1, 0x300000, []uint64{first}, second, first) // the jump takes its place
	jump := siteAt(first, 5, 0x320000, []uint64{first, second, third}, behind, first)
	p := &plan{threads: patch.NewThreads([]*target.Site{jump}, []*target.Site{trap}, nil, patch.Policy{})}
	for _, c := range []struct{ pc, to, flags uint64 }{
		{0x300010, 0x320010, 0x246},
		{second, 0x320030, 0x346},
		{behind, behind, 0x346},
	} {
		uc := &movedContext
		uc[ucRIP/8], uc[ucFlags/8] = c.pc, 0x346
		p.move(&slot{state: slotParked, uc: uintptr(unsafe.Pointer(uc))})
		if uc[ucRIP/8] != c.to || uc[ucFlags/8] != c.flags {
			t.Errorf("a thread at 0x%x goes on at 0x%x with flags 0x%x, want 0x%x, 0x%x", c.pc, uc[ucRIP/8], uc[ucFlags/8], c.to, c.flags)
		}
	}
}

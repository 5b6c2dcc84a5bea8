package self

import (
	"testing"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/target"
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

func TestWays(t *testing.T) {
	all := []uint64{first, second, third}
	const old, now = 0x300000, 0x310000
	trap := siteAt(first, 1, old, all[:1], second, first)          // a breakpoint: it goes back into the jump's bytes
	jump := siteAt(first, 5, now, all, behind, first, third)       // in its place
	before := siteAt(first, 5, old, all, behind, first, third)     // a jump in the same bytes
	inside := siteAt(second, 5, old, all[1:], behind, second)      // one that goes back behind all
	other := siteAt(first, 5, now, []uint64{first, second}, third) // a shorter one
	for _, c := range []struct {
		name          string
		remove, was   []*target.Site
		add           *target.Site
		pc, to        uint64
		leaves, stays bool // the old detour must be left, threads in its middle block
	}{
		{"text, at the patch", nil, nil, jump, first, first, false, false},
		{"text, inside the patch", nil, nil, jump, second, now + 48, false, false},
		{"text, with work", nil, nil, siteAt(first, 5, now, all, behind, second), second, now + 32, false, false},
		{"text, behind the patch", nil, nil, jump, third + 3, third + 3, false, false},
		{"work to be done", []*target.Site{trap}, nil, jump, old, now, true, false},
		{"work done", []*target.Site{trap}, nil, jump, old + 16, now + 16, true, false},
		{"on the way back", []*target.Site{trap}, nil, jump, old + 32, now + 48, true, false},
		{"in the middle of work", []*target.Site{trap}, nil, jump, old + 7, old + 7, true, true},
		{"removed before, work done", nil, []*target.Site{trap}, jump, old + 16, now + 16, true, false},
		{"removed before, on the way back", nil, []*target.Site{trap}, jump, old + 32, now + 48, true, false},
		{"removed before, in the middle", nil, []*target.Site{trap}, jump, old + 9, old + 9, true, true},
		{"finishes where it is", []*target.Site{before}, nil, jump, old + 7, old + 7, false, false},
		{"finishes, at a copy", []*target.Site{before}, nil, jump, old + 48, old + 48, false, false},
		{"only removed", []*target.Site{trap}, nil, nil, old + 32, old + 32, false, false},
		{"goes back behind all", []*target.Site{inside}, nil, other, old + 64, old + 64, false, false},
	} {
		ch := &target.Change{Remove: c.remove}
		if c.add != nil {
			ch.Add = []*target.Site{c.add}
		}
		p := &plan{adding: c.add != nil}
		p.ways(ch, c.was)
		p.bound()
		if to, _ := p.resume(c.pc); to != c.to {
			t.Errorf("%s: a thread at 0x%x goes on at 0x%x, want 0x%x", c.name, c.pc, to, c.to)
		}
		if got := p.inGone(old + 7); got != c.leaves {
			t.Errorf("%s: the old detour must be left: %v, want %v", c.name, got, c.leaves)
		}
		p.meet(1, c.pc, true)
		if got := p.verdict == blockedBy; got != c.stays {
			t.Errorf("%s: a thread at 0x%x blocks: %v, want %v", c.name, c.pc, got, c.stays)
		}
	}
}

// TestWaysNeighbour: the way back of a new site's detour leads to the next site. A thread that has
// done the work there in the old detour goes on at the copy, and does not do it again.
func TestWaysNeighbour(t *testing.T) {
	const old, before, now = 0x300000, 0x310000, 0x320000
	trap := siteAt(second, 1, old, []uint64{second}, third, second)
	neighbour := siteAt(first, 1, before, []uint64{first}, second, first)
	jump := siteAt(second, 5, now, []uint64{second, third}, behind, second)
	p := &plan{adding: true}
	p.ways(&target.Change{Remove: []*target.Site{trap}, Add: []*target.Site{neighbour, jump}}, nil)
	for name, c := range map[string]struct{ pc, to uint64 }{
		"work to be done": {old, now},
		"work done":       {old + 16, now + 16},
		"on the way back": {old + 32, now + 48},
	} {
		if to, _ := p.resume(c.pc); to != c.to {
			t.Errorf("%s: a thread at 0x%x goes on at 0x%x, want 0x%x", name, c.pc, to, c.to)
		}
	}
}

// movedContext is a signal frame's struct ucontext, at an address that does not change.
var movedContext [64]uint64

// TestMoveDropsTrapFlag: a thread that was about to step a copy is moved out of its detour without
// the trap flag; one that stands in the program's code keeps what flags it has.
func TestMoveDropsTrapFlag(t *testing.T) {
	p := &plan{back: []move{{from: 0x300010, to: first}}, inner: []move{{from: second, to: 0x320010}}}
	for _, c := range []struct{ pc, to, flags uint64 }{
		{0x300010, first, 0x246},
		{second, 0x320010, 0x346},
		{third, third, 0x346},
	} {
		uc := &movedContext
		uc[ucRIP/8], uc[ucFlags/8] = c.pc, 0x346
		p.move(&slot{state: slotParked, uc: uintptr(unsafe.Pointer(uc))})
		if uc[ucRIP/8] != c.to || uc[ucFlags/8] != c.flags {
			t.Errorf("a thread at 0x%x goes on at 0x%x with flags 0x%x, want 0x%x, 0x%x", c.pc, uc[ucRIP/8], uc[ucFlags/8], c.to, c.flags)
		}
	}
}

// TestEditsOf: what goes is written first, in the order of addresses; what comes in its place with as
// many bytes is one edit; new bytes over old ones are not compared with the file's; a site that was
// left to somebody else's bytes, and came back, is taken out once.
func TestEditsOf(t *testing.T) {
	site := func(addr uint64, patch string) *target.Site {
		orig := make([]byte, len(patch))
		for i := range orig {
			orig[i] = byte(addr) + byte(i)
		}
		return &target.Site{Addr: addr, Orig: orig, Patch: []byte(patch)}
	}
	left, again := site(0x100, "LEFT1"), site(0x100, "AGAIN")
	trap, jump := site(0x200, "T"), site(0x1fe, "JUMP5")
	old, other := site(0x300, "OLD.."), site(0x300, "OTHER")
	alone, fresh := site(0x80, "ALONE"), site(0x400, "FRESH")
	got := editsOf(&target.Change{
		Remove: []*target.Site{left, old, trap, alone, again},
		Add:    []*target.Site{fresh, jump, other},
	})
	type want struct {
		addr         uint64
		old, now     string
		check, leave bool
	}
	wants := []want{
		{0x80, "ALONE", string(alone.Orig), true, true},
		{0x100, "AGAIN", string(again.Orig), true, true},
		{0x200, "T", string(trap.Orig), true, false},
		{0x400, string(fresh.Orig), "FRESH", true, false},
		{0x1fe, string(jump.Orig), "JUMP5", false, false},
		{0x300, "OLD..", "OTHER", true, false},
	}
	if len(got) != len(wants) {
		t.Fatalf("%d edits, want %d: %+v", len(got), len(wants), got)
	}
	for i, w := range wants {
		e := got[i]
		if g := (want{e.addr, string(e.old[:e.n]), string(e.new[:e.n]), e.check, e.leave}); g != w {
			t.Errorf("edit %d: %+v, want %+v", i, g, w)
		}
	}
}

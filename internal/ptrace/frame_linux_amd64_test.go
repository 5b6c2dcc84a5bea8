package ptrace

import (
	"bytes"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/interval"
)

func testSpec(xsize int) *frameSpec {
	x := make([]byte, max(xsize, xsaveMin))
	for i := range x {
		x[i] = byte(i*7 + 1)
	}
	le.PutUint64(x[swReserved:], 0xe7) // XCR0 as the kernel shows it
	le.PutUint64(x[fxSize:], 0x7)      // in use
	return &frameSpec{
		regs: Regs{RIP: 0x401000, RSP: 0x7ffe00001000, RAX: 0xfff, RCX: 1, R8: 8, R15: 15, RDI: 7, CS: 0x33, SS: 0x2b, Flags: 0x246},
		mask: 0xabcd, xstate: x[:xsize], sizes: xstateSizes{Default: uint64(xsize), Max: uint64(xsize)},
		gadget: gadgets{syscallRet: 0x501000, sigreturn: 0x502000}, data: 32,
	}
}

// The frame is what rt_sigreturn reads, byte by byte (arch/x86/kernel/signal_64.c).
func TestFrameLayout(t *testing.T) {
	s := testSpec(832)
	const lo, hi = 0x7ffe00000003, 0x7ffe00000803
	f, err := s.build(lo, hi)
	if err != nil {
		t.Fatal(err)
	}
	if f.sp < lo || f.sp+uint64(len(f.bytes)) > f.data || f.data+32 > hi {
		t.Fatalf("frame %#x with %#x bytes, data at %#x, lies outside [%#x, %#x)", f.sp, len(f.bytes), f.data, uint64(lo), uint64(hi))
	}
	// pretcode, then struct ucontext; see the drawing in frame.go
	uc := f.bytes[8:]
	word := func(off int) uint64 { return le.Uint64(uc[off:]) }
	fp := word(40 + 184)
	for _, c := range []struct {
		what      string
		got, want uint64
	}{
		{"return address", le.Uint64(f.bytes), 0x502000},
		{"uc_flags", word(0), 7},
		{"uc_link", word(8), 0},
		{"altstack mode, which is impossible", uint64(le.Uint32(uc[24:])), 7},
		{"r8", word(40), 8},
		{"r15", word(40 + 56), 15},
		{"di", word(40 + 64), 7},
		{"ax", word(40 + 104), 0xfff},
		{"cx", word(40 + 112), 1},
		{"sp", word(40 + 120), 0x7ffe00001000},
		{"ip", word(40 + 128), 0x401000},
		{"flags", word(40 + 136), 0x246},
		{"cs", uint64(le.Uint16(uc[40+144:])), 0x33},
		{"ss", uint64(le.Uint16(uc[40+150:])), 0x2b},
		{"mask", word(296), 0xabcd},
		{"fpstate alignment", fp % 64, 0},
	} {
		if c.got != c.want {
			t.Errorf("%s: %#x, want %#x", c.what, c.got, c.want)
		}
	}
	x := f.bytes[fp-f.sp:]
	for _, c := range []struct {
		what      string
		got, want uint64
	}{
		{"magic1", uint64(le.Uint32(x[464:])), 0x46505853},
		{"extended_size", uint64(le.Uint32(x[468:])), 836},
		{"xfeatures", le.Uint64(x[472:]), 0xe7},
		{"xstate_size", uint64(le.Uint32(x[480:])), 832},
		{"magic2", uint64(le.Uint32(x[832:])), 0x46505845},
	} {
		if c.got != c.want {
			t.Errorf("%s: %#x, want %#x", c.what, c.got, c.want)
		}
	}
	if x[0] != 1 || x[463] != s.xstate[463] || x[512] != 7 || x[831] != s.xstate[831] {
		t.Error("registers are not copied as they are")
	}
}

// A processor without xsave has what fxsave stores, and no magic words.
func TestFrameWithoutXsave(t *testing.T) {
	s := testSpec(fxSize)
	f, err := s.build(0x10000, 0x10000+uint64(frameSize(fxSize, 32)))
	if err != nil {
		t.Fatal(err)
	}
	x := f.bytes[le.Uint64(f.bytes[8+40+184:])-f.sp:]
	if !bytes.Equal(x[:fxSize], s.xstate) || le.Uint64(f.bytes[8:])&ucFPXstate != 0 {
		t.Errorf("registers, or flags %#x", le.Uint64(f.bytes[8:]))
	}
	for _, n := range []int{500, 513, xsaveMin - 1} {
		s.xstate = make([]byte, n)
		if _, err := s.build(0x10000, 0x20000); err == nil {
			t.Errorf("%d bytes are taken", n)
		}
	}
}

// Tile data that is not in use is left out; the second magic word is where either size of
// the thread's area makes the kernel look for it.
func TestFrameWithTiles(t *testing.T) {
	for _, used := range []bool{false, true} {
		s := testSpec(11008)
		s.sizes = xstateSizes{Default: 2816, Max: 11008}
		le.PutUint64(s.xstate[swReserved:], 0x602e7)
		if used {
			le.PutUint64(s.xstate[fxSize:], 0x40007)
		}
		f, err := s.build(0x10000, 0x10000+uint64(frameSize(11008, 32)))
		if err != nil {
			t.Fatal(err)
		}
		x := f.bytes[le.Uint64(f.bytes[8+40+184:])-f.sp:]
		size, features := le.Uint32(x[480:]), le.Uint64(x[472:])
		if used && (size != 11008 || features != 0x602e7) || !used && (size != 2816 || features != 0x202e7) {
			t.Errorf("tiles in use: %v, but size %d and features %#x", used, size, features)
		}
		if le.Uint32(x[11008:]) != fpMagic2 || !used && le.Uint32(x[2816:]) != fpMagic2 {
			t.Errorf("tiles in use: %v: second magic word is missing", used)
		}
	}
}

func TestFrameByPop(t *testing.T) {
	s := testSpec(832)
	s.gadget = gadgets{syscallRet: 0x501000, popRAX: 0x503000}
	f, err := s.build(0x10000, 0x20000)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{0x503000, 15, 0x501000, 7} {
		if got := le.Uint64(f.bytes[8*i:]); got != want {
			t.Errorf("word %d is %#x, want %#x", i, got, want)
		}
	}
}

func TestFrameNeedsRoom(t *testing.T) {
	s := testSpec(832)
	need := uint64(frameSize(832, 32))
	for at := uint64(0x10000); at < 0x10080; at++ {
		f, err := s.build(at, at+need)
		if err != nil || f.sp < at || f.data+32 > at+need {
			t.Fatalf("in [%#x, +%d): %+v, %v", at, need, f, err)
		}
	}
	for _, r := range []interval.Range{{Start: 0x10000, End: 0x10000 + need - 1}, {Start: 0x10000, End: 0x10000}, {Start: 0x20000, End: 0x10000}, {Start: 0, End: 100}} {
		if _, err := s.build(r.Start, r.End); err == nil || !strings.Contains(err.Error(), "do not fit") {
			t.Errorf("[%#x, %#x): %v", r.Start, r.End, err)
		}
	}
	s.xstate = s.xstate[:500]
	if _, err := s.build(0x10000, 0x20000); err == nil {
		t.Error("a short xsave area is taken")
	}
}

func TestResumed(t *testing.T) {
	in := func(ax int64) Regs { return Regs{RIP: 0x1002, RAX: uint64(ax), OrigRAX: 35} }
	for _, c := range []struct {
		name   string
		r      Regs
		kept   bool
		ip, ax uint64
	}{
		{"user mode", Regs{RIP: 0x1002, RAX: ^uint64(513), OrigRAX: NoSyscall}, true, 0x1002, ^uint64(513)},
		{"ended", in(7), true, 0x1002, 7},
		{"EINTR", in(-4), true, 0x1002, ^uint64(3)},
		{"ERESTARTSYS", in(-512), true, 0x1000, 35},
		{"ERESTARTNOINTR", in(-513), false, 0x1000, 35},
		{"ERESTARTNOHAND", in(-514), true, 0x1000, 35},
		{"ERESTART_RESTARTBLOCK, kept", in(-516), true, 0x1000, 219},
		{"ERESTART_RESTARTBLOCK, lost", in(-516), false, 0x1000, 35},
	} {
		got := c.r.resumed(c.kept)
		if got.RIP != c.ip || got.RAX != c.ax || got.OrigRAX != NoSyscall {
			t.Errorf("%s: rip %#x, rax %#x, orig_rax %#x, want %#x, %#x, -1", c.name, got.RIP, got.RAX, got.OrigRAX, c.ip, c.ax)
		}
	}
}

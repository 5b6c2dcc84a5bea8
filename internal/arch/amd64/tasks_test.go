package amd64

import (
	"debug/elf"
	"slices"
	"strings"
	"testing"
)

// taskInstsOf finds them in the executable sections of a file, without knowing its functions.
func taskInstsOf(t *testing.T, file string) (out []uint64) {
	t.Helper()
	e, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, s := range e.Sections {
		if s.Flags&elf.SHF_EXECINSTR == 0 || s.Type == elf.SHT_NOBITS {
			continue
		}
		code, err := s.Data()
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range FindTaskInsts(code, s.Addr, func(uint64) (lo, hi uint64, ok bool) { return 0, 0, false }) {
			out = append(out, in.Addr)
		}
	}
	slices.Sort(out)
	return out
}

// TestTaskInstsOfLibraries: no system call that objdump finds is overlooked, and next to nothing is taken for one.
func TestTaskInstsOfLibraries(t *testing.T) {
	for _, file := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libm.so.6", goCommand(t)} {
		have := taskInstsOf(t, file)
		var want []uint64
		objdumpText(t, file, func(l objdumpLine, _ []byte) {
			if s := string(l.text); strings.HasPrefix(s, "syscall") || strings.HasPrefix(s, "wrfsbase") || strings.HasPrefix(s, "pop    %fs") {
				want = append(want, l.addr)
			}
		})
		for _, a := range want {
			if _, ok := slices.BinarySearch(have, a); !ok {
				t.Errorf("%s: the instruction at 0x%x is overlooked", file, a)
			}
		}
		if len(have) > len(want)+len(want)/20+5 {
			t.Errorf("%s: %d instructions found, objdump finds %d", file, len(have), len(want))
		}
	}
}

// TestTaskInst: what is known of one instruction, by the code before it in its function.
func TestTaskInst(t *testing.T) {
	for _, c := range []struct {
		name          string
		code          []byte
		moves, shares bool
		none          bool
	}{
		{name: "wrfsbase", code: []byte{0xf3, 0x48, 0x0f, 0xae, 0xd0}, moves: true, shares: true},
		{name: "wrfsbase of 32 bits", code: []byte{0xf3, 0x0f, 0xae, 0xd7}, moves: true, shares: true},
		{name: "rdfsbase", code: []byte{0xf3, 0x48, 0x0f, 0xae, 0xc0}, none: true},
		{name: "mov to fs", code: []byte{0x8e, 0xe0}, moves: true, shares: true},
		{name: "mov to ds", code: []byte{0x8e, 0xd8}, none: true},
		{name: "pop fs", code: []byte{0x0f, 0xa1}, moves: true, shares: true},
		{name: "getpid", code: []byte{0xb8, 39, 0, 0, 0, 0x0f, 0x05}},
		{name: "a number that is not known", code: []byte{0x89, 0xf8, 0x0f, 0x05}, moves: true, shares: true},
		{name: "a number from two places", code: []byte{0xb8, 39, 0, 0, 0, 0x85, 0xff, 0x74, 0x02, 0x89, 0xf0, 0x0f, 0x05}, moves: true, shares: true},
		{name: "vfork", code: []byte{0xb8, 58, 0, 0, 0, 0x0f, 0x05}, shares: true},
		{name: "clone3", code: []byte{0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05}, shares: true},
		{name: "clone", code: []byte{0xb8, 56, 0, 0, 0, 0x0f, 0x05}, shares: true},
		{name: "clone as fork does it", code: []byte{0xbf, 0x11, 0, 0x20, 1, 0xb8, 56, 0, 0, 0, 0x0f, 0x05}},
		{name: "arch_prctl", code: []byte{0xb8, 158, 0, 0, 0, 0x0f, 0x05}, moves: true},
		{name: "ARCH_GET_FS", code: []byte{0xbf, 3, 0x10, 0, 0, 0x89, 0xd6, 0xb8, 158, 0, 0, 0, 0x0f, 0x05}},
		{name: "ARCH_SET_FS", code: []byte{0xbf, 2, 0x10, 0, 0, 0xb8, 158, 0, 0, 0, 0x0f, 0x05}, moves: true},
		{name: "by way of another register", code: []byte{0xba, 39, 0, 0, 0, 0x89, 0xd0, 0x0f, 0x05}},
		{name: "after a call", code: []byte{0xb8, 39, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0x0f, 0x05}, moves: true, shares: true},
		{name: "bytes of an immediate", code: []byte{0x48, 0xb8, 0x0f, 0x05, 0xc3, 0, 0, 0, 0, 0}, none: true},
	} {
		code := append(slices.Repeat([]byte{0x90}, 200), append(c.code, 0xc3)...)
		const addr = 0x1000
		got := FindTaskInsts(code, addr, func(uint64) (lo, hi uint64, ok bool) { return addr + 200, addr + uint64(len(code)), true })
		switch {
		case c.none != (len(got) == 0) || len(got) > 1:
			t.Errorf("%s: %+v", c.name, got)
		case !c.none && (got[0].MovesBase() != c.moves || got[0].SharesBlock() != c.shares):
			t.Errorf("%s: %+v, moves an FS base %t, shares a block %t", c.name, got, got[0].MovesBase(), got[0].SharesBlock())
		}
	}
}

// TestTaskInstsInPieces: an instruction is seen wherever the pieces in which code is read meet, with the number that its
// function has in EAX before it, and once.
func TestTaskInstsInPieces(t *testing.T) {
	getpid := []byte{0xb8, 39, 0, 0, 0, 0x48, 0x0f, 0x05} // with a REX prefix
	base := []byte{0xf3, 0x48, 0x0f, 0xae, 0xd0}          // wrfsbase
	const addr = 0x1000
	for at := 2*taskPiece - 20; at < 2*taskPiece+20; at++ {
		for _, c := range [][]byte{getpid, base} {
			code := slices.Repeat([]byte{0x90}, 2*taskPiece+200)
			copy(code[at:], c)
			for _, known := range []bool{false, true} {
				got := FindTaskInsts(code, addr, func(uint64) (lo, hi uint64, ok bool) {
					return addr + taskPiece/2, addr + uint64(len(code)), known
				})
				want := TaskInst{uint64(addr + at), -1, -1}
				if &c[0] == &getpid[0] {
					want.Addr += 5
				}
				switch {
				case len(got) != 1 || got[0].Addr != want.Addr && got[0].Addr != want.Addr+1:
					t.Errorf("code % x at %d, function known %t: %+v", c, at, known, got)
				case known && &c[0] == &getpid[0] && got[0].Number != 39:
					t.Errorf("code % x at %d: %+v, not the number 39", c, at, got)
				}
			}
		}
	}
}

package amd64

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// tableOf32 is data of 4-byte offsets from base at base, tableOf64 of pointers.
func tableOf32(base uint64, targets ...uint64) func(uint64, []byte) error {
	var b []byte
	for _, t := range targets {
		b = binary.LittleEndian.AppendUint32(b, uint32(t-base))
	}
	return dataAt(base, b)
}

func tableOf64(base uint64, targets ...uint64) func(uint64, []byte) error {
	var b []byte
	for _, t := range targets {
		b = binary.LittleEndian.AppendUint64(b, t)
	}
	return dataAt(base, b)
}

func dataAt(base uint64, data []byte) func(uint64, []byte) error {
	return func(addr uint64, buf []byte) error {
		if addr < base || addr-base+uint64(len(buf)) > uint64(len(data)) {
			return errors.New("not mapped")
		}
		copy(buf, data[addr-base:])
		return nil
	}
}

// Code at 0x1000 that jumps through a table, with a xor, a ret at 0x1017 and 0x1018, a
// nop at 0x1019 and a ret behind it to jump to.
const (
	bound2   = "83ff02 7713"                         // cmp $2,%edi; ja 1018
	noBound  = "0f1f440000"                          // nop
	mask3    = "83e703 6690"                         // and $3,%edi
	picJump  = "488d15f40f0000 486304ba 4801d0 ffe0" // 2000(,%rdi,4) by offsets
	goJump   = "488d15f4ff0100 ff24fa 0f1f440000 90" // jmp *21000(,%rdi,8)
	absJump  = "ff24fd00100200 0f1f440000 0f1f4000"  // the same without a base
	landings = "31c0 c3 c3 90 c3"
)

func inCode(addr uint64) (uint64, bool) { return addr &^ 0xff, addr>>12 == 5 }

func TestJumpTables(t *testing.T) {
	for _, c := range []struct {
		name    string
		fn      Func
		code    []string
		targets []uint64
		outside []uint64
		bounded bool
		exit    ExitKind // of the jump, 0 (ret): none
	}{
		{
			"offsets_bounded",
			Func{Mem: tableOf32(0x2000, 0x1015, 0x1018, 0x1019, 0x101a)},
			[]string{bound2, picJump, landings},
			[]uint64{0x1015, 0x1018, 0x1019},
			nil, true, 0,
		},
		{
			"offsets_unbounded_up_to_garbage",
			Func{Mem: tableOf32(0x2000, 0x1015, 0x1018, 0x1016, 0x1019)},
			[]string{noBound, picJump, landings},
			[]uint64{0x1015, 0x1018},
			nil, false, 0,
		},
		{
			"offsets_unbounded_up_to_the_end_of_data",
			Func{Mem: tableOf32(0x2000, 0x1015, 0x1018)},
			[]string{noBound, picJump, landings},
			[]uint64{0x1015, 0x1018},
			nil, false, 0,
		},
		{
			"masked",
			Func{Mem: tableOf32(0x2000, 0x1015, 0x1018, 0x1018, 0x1019, 0x101a)},
			[]string{mask3, picJump, landings},
			[]uint64{0x1015, 0x1018, 0x1019},
			nil, false, 0,
		},
		{
			"bounded_with_an_entry_outside",
			Func{Mem: tableOf32(0x2000, 0x1015, 0x5000, 0x1019), Inside: inCode},
			[]string{bound2, picJump, landings},
			[]uint64{0x1015, 0x1019},
			[]uint64{0x5000},
			true, ExitTableJmp,
		},
		{
			"bounded_with_garbage_in_the_middle",
			Func{Mem: tableOf32(0x2000, 0x1015, 0x9000, 0x1019), Inside: inCode},
			[]string{bound2, picJump, landings},
			[]uint64{0x1015, 0x1019},
			nil, true, 0,
		},
		{
			"pointers_bounded",
			Func{Mem: tableOf64(0x21000, 0x1015, 0x1018, 0x1019, 0x1017)},
			[]string{bound2, absJump, landings},
			[]uint64{0x1015, 0x1018, 0x1019},
			nil, true, 0,
		},
		{
			"pointers_of_go",
			Func{Go: true, Mem: tableOf64(0x21000, 0x1015, 0x1018, 0x1019, 0x1017)},
			[]string{bound2, goJump, landings},
			[]uint64{0x1015, 0x1018, 0x1019},
			nil, true, 0,
		},
		{
			"pointers_to_functions",
			Func{Mem: tableOf64(0x21000, 0x5000, 0x5100, 0x5200), Inside: inCode},
			[]string{bound2, absJump, landings},
			nil, nil, false, ExitIndirectTail,
		},
		{
			"into_a_part",
			Func{Mem: tableOf32(0x2000, 0x1015, 0x3001, 0x1019), Parts: []Part{{0x3000, []byte{0x90, 0xc3}}}},
			[]string{bound2, picJump, landings},
			[]uint64{0x1015, 0x1019, 0x3001},
			nil, true, 0,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			fl := flowOf(t, c.fn, c.code...)
			js := fl.IndirectJumps()
			if len(js) != 1 || !slices.Equal(js[0].Targets, c.targets) || !slices.Equal(js[0].Outside, c.outside) || js[0].Bounded != c.bounded {
				t.Fatalf("jumps %+v, want targets %#x, outside %#x, bounded %v", js, c.targets, c.outside, c.bounded)
			}
			for _, a := range c.targets {
				if !fl.Target(a) {
					t.Errorf("0x%x is no target", a)
				}
			}
			checkJumpExit(t, fl, js[0].Addr, c.exit)
		})
	}
}

func checkJumpExit(t *testing.T, fl *Flow, jump uint64, want ExitKind) {
	t.Helper()
	exits, reason := fl.Exits()
	if reason != nil {
		t.Error(reason)
	}
	i := slices.IndexFunc(exits, func(e Exit) bool { return e.Addr == jump })
	switch {
	case i < 0 && want != 0:
		t.Errorf("the jump is no exit, want %v", want)
	case i >= 0 && exits[i].Kind != want:
		t.Errorf("exit %v, want %v", exits[i].Kind, want)
	}
}

func TestJumpTableUnresolved(t *testing.T) {
	for _, c := range []struct {
		name string
		fn   Func
		code string
	}{
		{"no_memory", Func{}, bound2 + picJump + landings},
		{"memory_not_readable", Func{Mem: tableOf32(0x8000)}, bound2 + picJump + landings},
		{"first_entry_is_garbage", Func{Mem: tableOf32(0x2000, 0x9015, 0x1018, 0x1019)}, bound2 + picJump + landings},
		{"pointers_not_relocated", Func{Mem: tableOf64(0x21000, 0, 0, 0)}, bound2 + absJump + landings},
	} {
		t.Run(c.name, func(t *testing.T) {
			fl := flowOf(t, c.fn, c.code)
			if _, reason := fl.Exits(); len(fl.Unresolved()) != 1 || !errors.Is(reason, ErrExitsUnknown) {
				t.Errorf("unresolved %#x, reason %v", fl.Unresolved(), reason)
			}
		})
	}
}

// Two tables behind each other: the first, which no comparison bounds, ends where the
// second begins, although what follows would do as its entries too.
func TestJumpTablesOneAfterTheOther(t *testing.T) {
	first := "488d15f90f0000 486304ba 4801d0 ffe0"  // 1000: lea 2000
	second := "488d15f10f0000 486304ba 4801d0 ffe0" // 1010: lea 2008
	mem := tableOf32(0x2000, 0x1010, 0x1020, 0x1022-8, 0x1024-8)
	fl := flowOf(t, Func{Mem: mem, Entries: []uint64{0x1010}}, first, second, "c3 90 c3 90 c3 90")
	js := fl.IndirectJumps()
	if len(js) != 2 {
		t.Fatalf("%d jumps", len(js))
	}
	for _, j := range js {
		want := []uint64{0x1010, 0x1020}
		if j.Addr > 0x1010 {
			want = []uint64{0x1022, 0x1024}
		}
		if !slices.Equal(j.Targets, want) {
			t.Errorf("jump at 0x%x: targets %#x, want %#x", j.Addr, j.Targets, want)
		}
	}
}

// A lazily bound entry of a procedure linkage table goes to its own second instruction.
func TestLazyPLTEntry(t *testing.T) {
	fl := flowOf(t, Func{Mem: tableOf64(0x21000, 0x1006)}, "ff25faff0100", "6801000000", "e9e0ffffff")
	if !fl.Target(0x1006) || !fl.Reachable(0x1006) {
		t.Error("the push is not reached")
	}
	checkJumpExit(t, fl, 0x1000, ExitTableJmp)
}

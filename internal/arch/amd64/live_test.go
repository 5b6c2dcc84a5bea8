package amd64

import (
	"slices"
	"testing"
)

// code makes a function's bytes out of hexadecimal pieces, one per instruction.
func flowOf(t testing.TB, f Func, hex ...string) *Flow {
	t.Helper()
	if f.Addr == 0 {
		f.Addr = 0x1000
	}
	f.Code = slices.Concat(f.Code, hexBytes(t, hex...))
	fl, err := Analyse(&f)
	if err != nil {
		t.Fatal(err)
	}
	return fl
}

// names of a RegSet's members that are free.
func freeAt(fl *Flow, addr uint64) RegSet { return AllRegs &^ fl.LiveAt(addr) }

func TestLiveAt(t *testing.T) {
	const a = 0x1000
	for _, c := range []struct {
		name string
		fn   Func
		code []string
		at   uint64
		free RegSet
	}{
		{"ret_frees_nothing", Func{}, []string{"c3"}, a, 0},
		{"written_before_read", Func{}, []string{"b801000000", "c3"}, a, Set(RAX)},
		{"read_then_written", Func{}, []string{"ffc0", "c3"}, a, 0},
		{"xor_idiom_reads_nothing", Func{}, []string{"31c0", "c3"}, a, Set(RAX) | Flags},
		{"low_byte_keeps_the_rest", Func{}, []string{"b001", "c3"}, a, 0},
		{"word_keeps_the_rest", Func{}, []string{"66b80100", "c3"}, a, 0},
		{"cmov_keeps", Func{}, []string{"480f44c1", "c3"}, a, 0},
		{"call_makes_all_live", Func{}, []string{"e800010000", "31c0", "c3"}, a, 0},
		{"before_call_written", Func{}, []string{"bf01000000", "e800010000", "c3"}, a, Set(RDI)},
		{"syscall_makes_all_live", Func{}, []string{"0f05", "31c9", "c3"}, a, 0},
		{"both_ways_write", Func{}, []string{"7403", "31c9", "c3", "b902000000", "c3"}, a, Set(RCX)},
		{"one_way_writes", Func{}, []string{"7403", "31c9", "c3", "c3"}, a, 0},
		{"one_way_writes_the_other_reads", Func{}, []string{"7403", "31c9", "c3", "89c8", "31c9", "c3"}, a, 0},
		{"tail_jump_makes_all_live", Func{}, []string{"e9fb0f0000"}, a, 0},
		{"branch_out_makes_all_live", Func{}, []string{"0f84fa0f0000", "31c0", "c3"}, a, 0},
		{"loop_written_behind", Func{}, []string{"ffc9", "75fc", "31d2", "c3"}, a, Set(RDX)},
		{"endless_loop_frees_nothing", Func{}, []string{"31c0", "ebfc"}, a, 0},
		{"end_of_code_makes_all_live", Func{}, []string{"31c9", "90"}, a, Set(RCX) | Flags},
		{"push_reads", Func{}, []string{"53", "31db", "5b", "c3"}, a, Flags},
		{"behind_push", Func{}, []string{"53", "31db", "5b", "c3"}, a + 1, Set(RBX) | Flags},
		{"rsp_and_rbp_stay_live", Func{}, []string{"bd01000000", "bc01000000", "c3"}, a, 0},
		{"no_instruction", Func{}, []string{"b801000000", "c3"}, a + 1, 0},
		{"entry_from_outside_keeps_all", Func{Entries: []uint64{a + 5}}, []string{"b801000000", "c3"}, a, 0},
		{"go_entry_does_not", Func{Go: true, Entries: []uint64{a + 5}}, []string{"b801000000", "c3"}, a, Set(RAX)},
		{"go_return", Func{Go: true, Scratch: goScratch}, []string{"ffc0", "c3"}, a, goScratch},
		{"go_call", Func{Go: true, Scratch: goScratch}, []string{"e800010000", "c3"}, a, Flags},
		{"go_call_indirect", Func{Go: true, Scratch: goScratch}, []string{"ffd0", "c3"}, a, Flags},
		{"go_flags_read", Func{Go: true, Scratch: goScratch}, []string{"0f94c0", "c3"}, a, Set(R12, R13)},
		{"go_tail_jump", Func{Go: true, Scratch: goScratch}, []string{"e9fb0f0000"}, a, 0},
		{"unreached_frees_nothing", Func{}, []string{"c3", "31c0", "c3"}, a + 1, 0},
		{"unknown_jump_makes_all_live", Func{}, []string{"4801c8", "ffe0"}, a + 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := freeAt(flowOf(t, c.fn, c.code...), c.at); got != c.free {
				t.Errorf("free %#x, want %#x", got, c.free)
			}
		})
	}
}

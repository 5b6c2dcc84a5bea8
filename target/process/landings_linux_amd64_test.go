package process

import (
	"testing"

	"kprobes.dev/kprobes/arch"
	"kprobes.dev/kprobes/target"
)

// TestLandings: the way back of a new site's detour leads to the next site. A thread that has done
// the work there in an old detour goes on at the copy, and does not do it again.
func TestLandings(t *testing.T) {
	const first, second, third = 0x401000, 0x401004, 0x401007
	neighbour := &target.Site{Addr: first, Patch: make([]byte, 1), Detour: &arch.Detour{
		Addr: 0x310000, Back: 0x310020, Points: map[uint64]uint64{first: 0x310000},
		Pairs: []arch.Pair{{Orig: first, Copy: 0x310010, CopyEnd: 0x310014}, {Orig: second, Copy: 0x310020, CopyEnd: 0x310025}},
	}}
	jump := &target.Site{Addr: second, Patch: make([]byte, 5), Detour: &arch.Detour{
		Addr: 0x320000, Points: map[uint64]uint64{second: 0x320000},
		Pairs: []arch.Pair{{Orig: second, Copy: 0x320010, CopyEnd: 0x320013}, {Orig: third, Copy: 0x320013, CopyEnd: 0x320017}},
	}}
	begins, copies := landings([]*target.Site{neighbour, jump})
	if begins[second] != 0x320000 || copies[second] != 0x320010 {
		t.Errorf("work to be done goes on at 0x%x, done at 0x%x", begins[second], copies[second])
	}
	if begins[third] != 0x320013 || copies[third] != 0x320013 || copies[first] != 0x310010 {
		t.Errorf("the others go on at %#x and %#x", begins, copies)
	}
}

package process

import (
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/target"
)

// TestLandings: the way back of a new site's detour leads to the next site. A thread that has done
// the work there in an old detour goes on at the copy, and does not do it again.
func TestLandings(t *testing.T) {
	const first, second, third = 0x401000, 0x401004, 0x401007
	neighbour := &target.Site{Addr: first, Patch: make([]byte, 1), Detour: &arch.Detour{
		Addr: 0x310000, Back: 0x310020, Points: []arch.PointEntry{{Point: first, At: 0x310000}},
		Pairs: []arch.Pair{{Orig: first, Copy: 0x310010, CopyEnd: 0x310014}, {Orig: second, Copy: 0x310020, CopyEnd: 0x310025}},
	}}
	jump := &target.Site{Addr: second, Patch: make([]byte, 5), Detour: &arch.Detour{
		Addr: 0x320000, Points: []arch.PointEntry{{Point: second, At: 0x320000}},
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

// TestLandingsOfReturns: a thread that is in a trampoline's old detour goes on in the new one, not in
// the bare code, which does no work.
func TestLandingsOfReturns(t *testing.T) {
	tr := &arch.Trampoline{Stubs: 0x500000, Table: 0x600000}
	ret := tr.Stubs + 20
	s := &target.Site{Addr: tr.Table, Patch: make([]byte, 8), Region: amd64.BareRange(tr), Detour: &arch.Detour{
		Addr: 0x700000, Points: []arch.PointEntry{{Point: ret, At: 0x700014}},
		Pairs: []arch.Pair{{Orig: tr.Stubs, Copy: 0x700000, CopyEnd: 0x700001}, {Orig: ret, Copy: 0x700100, CopyEnd: 0x700101}},
	}}
	begins, copies := landings([]*target.Site{s})
	if begins[tr.Stubs] != 0x700000 || begins[ret] != 0x700014 || copies[ret] != 0x700100 {
		t.Errorf("they go on at %#x and %#x", begins, copies)
	}
	if s.Holds(tr.Stubs+24) || s.Inside(ret) || len(innerOf([]*target.Site{s})) > 0 {
		t.Error("what is behind the bare code is the site's, or the bare code must not be run")
	}
}

// A breakpoint's entry in the table is its own, not that of a call of it which is emulated in
// another detour: that would lead back to the breakpoint, for ever.
func TestTrapEntriesOfCalls(t *testing.T) {
	const caller, callee = 0x1000, 0x2000
	calls := &target.Site{Addr: caller, Patch: []byte{0xcc}, Trap: true, Detour: &arch.Detour{
		Addr: 0x8000, Pairs: []arch.Pair{{Orig: caller, Copy: 0x8010, CopyEnd: 0x8018}, {Orig: callee, Copy: 0x8018, CopyEnd: 0x801d}},
	}}
	called := &target.Site{Addr: callee, Patch: []byte{0xcc}, Trap: true, Detour: &arch.Detour{
		Addr: 0x9000, Pairs: []arch.Pair{{Orig: callee, Copy: 0x9010, CopyEnd: 0x9012}},
	}}
	f := &faultTable{t: &Target{}, live: map[*target.Site]bool{calls: true, called: true}}
	for range 20 { // the sites are in no order
		if got, want := f.trapEntries(nil), []trapEntry{{caller, 0x8000}, {callee, 0x9000}}; !slices.Equal(got, want) {
			t.Fatalf("%x, want %x", got, want)
		}
	}
}

package process

import (
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// TestLandingsOfReturns: a thread that is in a trampoline's old detour goes on in the new one, not in
// the bare code, which does no work.
func TestLandingsOfReturns(t *testing.T) {
	tr := &arch.Trampoline{Stubs: 0x500000, Table: 0x600000}
	ret := tr.Stubs + 20
	site := func(at uint64) *target.Site {
		return &target.Site{Addr: tr.Table, Patch: make([]byte, 8), Region: amd64.BareRange(tr), Room: 0x200, Detour: &arch.Detour{
			Addr: at, Points: []arch.PointEntry{{Point: ret, At: at + 0x14}},
			Pairs: []arch.Pair{{Orig: tr.Stubs, Copy: at, CopyEnd: at + 1}, {Orig: ret, Copy: at + 0x100, CopyEnd: at + 0x101}},
		}}
	}
	old, s := site(0x600800), site(0x700000)
	p := patch.NewThreads([]*target.Site{s}, []*target.Site{old}, nil, patch.Policy{MoveOut: true})
	for from, to := range map[uint64]uint64{0x600800: 0x700000, 0x600814: 0x700014, 0x600900: 0x700100} {
		if w := p.Standing(from); w.Fate != patch.Leaves || w.To != to {
			t.Errorf("a thread at 0x%x: %+v, want 0x%x", from, w, to)
		}
	}
	if s.Holds(tr.Stubs+24) || s.Inside(ret) || p.Anywhere() {
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

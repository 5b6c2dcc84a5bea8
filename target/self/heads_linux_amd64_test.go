package self

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/target"
)

// told gives the sites whose detours the tables of the heads tell, as a handler finds them: by the address of a detour.
func (h *heads) told(t *testing.T) (out []uint64) {
	t.Helper()
	directory := bytesAt(h.words[0], int(h.words[1])*amd64.FaultEntrySize)
	last := uint64(0)
	for ; len(directory) > 0; directory = directory[amd64.FaultEntrySize:] {
		lo, at, n := le.Uint64(directory), le.Uint64(directory[16:]), le.Uint64(directory[24:])
		if lo < last || n == 0 {
			t.Fatalf("a piece of %d entries from 0x%x, behind one up to 0x%x", n, lo, last)
		}
		for b := bytesAt(at, int(n)*amd64.FaultEntrySize); len(b) > 0; b = b[amd64.FaultEntrySize:] {
			e := amd64.ReadFaultEntry(b)
			if e.Lo < max(lo, last) || e.Hi <= e.Lo {
				t.Fatalf("an entry of [0x%x, 0x%x) in the piece from 0x%x, behind 0x%x", e.Lo, e.Hi, lo, last)
			}
			last = e.Hi
			out = append(out, e.Lo)
		}
	}
	return out
}

// TestHeads: whatever comes and goes, the tables tell exactly the sites that are there, in order. One site more or less changes
// few pieces.
func TestHeads(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tg := &Target{control: &controlBlock{heads: &heads{}}}
	there := map[uint64]*target.Site{}
	site := func(at uint64) *target.Site {
		return &target.Site{Detour: &arch.Detour{Addr: at, Pairs: []arch.Pair{{Orig: 1, Copy: at, CopyEnd: at + 4}}}, Trap: r.IntN(50) == 0}
	}
	for round := range 400 {
		c := &target.Change{}
		n := []int{1, 1, 1, 1000}[r.IntN(4)]
		for range n {
			at := 16 * (1 + r.Uint64N(20000))
			if old := there[at]; old != nil && !slices.Contains(c.Add, old) && r.IntN(2) == 0 {
				tg.dead = append(tg.dead, old) // its room is free, and may be used again
				delete(there, at)
			}
			if there[at] == nil && round%100 < 70 {
				there[at] = site(at)
				c.Add = append(c.Add, there[at])
			}
		}
		if round%100 == 99 { // most go
			for at, s := range there {
				if r.IntN(20) > 0 && !slices.Contains(c.Add, s) {
					tg.dead = append(tg.dead, s)
					delete(there, at)
				}
			}
		}
		h, err := tg.newHeads(c)
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 && len(tg.control.heads.pieces) > 20 && len(tg.dead)+len(c.Add) <= 2 && len(h.fresh) > 4 && len(h.stale) < len(tg.control.heads.pieces) {
			t.Errorf("round %d: %d of %d pieces anew for one site", round, len(h.fresh), len(h.pieces))
		}
		if err := tg.control.heads.replaced(h); err != nil {
			t.Fatal(err)
		}
		tg.control.heads, tg.dead = h, nil
		var want []uint64
		traps := uint64(0)
		for at, s := range there {
			want = append(want, at)
			if s.Trap {
				traps++
			}
		}
		slices.Sort(want)
		if got := h.told(t); !slices.Equal(got, want) || h.words[3] != traps {
			t.Fatalf("round %d: %d sites told of %d, %d breakpoints of %d", round, len(got), len(want), h.words[3], traps)
		}
		if len(h.pieces) > 8+8*len(want)/maxPiece+2 {
			t.Errorf("round %d: %d pieces for %d sites", round, len(h.pieces), len(want))
		}
	}
	if err := tg.control.heads.unmapAll(); err != nil {
		t.Fatal(err)
	}
}

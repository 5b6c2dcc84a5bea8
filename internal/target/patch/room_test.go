package patch_test

import (
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/internal/target/patch"
)

const (
	base = 0x40000000
	size = 64 << 10
)

func TestTakeAndFree(t *testing.T) {
	p := patch.NewPiece(base, size)
	r := rand.New(rand.NewPCG(1, 2))
	taken := map[uint64]int{}
	for range 20_000 {
		if len(taken) > 0 && r.IntN(2) == 0 {
			var back []patch.Room
			for a, n := range taken {
				if back = append(back, patch.Room{Addr: a, Size: n}); r.IntN(3) == 0 {
					break
				}
			}
			p.Free(append(back, patch.Room{Addr: base + size, Size: 32})...) // the last is not the piece's
			for _, s := range back {
				delete(taken, s.Addr)
			}
			continue
		}
		n := 1 + r.IntN(700)
		a, ok := p.Take(base, base+1, n)
		if !ok {
			continue
		}
		for b, m := range taken {
			if a < b+uint64(m) && b < a+uint64(n) {
				t.Fatalf("%d bytes at 0x%x overlap %d at 0x%x", n, a, m, b)
			}
		}
		if a%patch.Align != 0 || a < base || a+uint64(n) > base+size {
			t.Fatalf("%d bytes at 0x%x", n, a)
		}
		taken[a] = n
	}
	var used uint64
	for _, n := range taken {
		used += patch.Round(n)
	}
	if p.Used() != used {
		t.Errorf("%d bytes are in use, want %d", p.Used(), used)
	}
	for a, n := range taken {
		p.Free(patch.Room{Addr: a, Size: n})
	}
	if p.Used() != 0 {
		t.Errorf("%d bytes are in use after all were given back", p.Used())
	}
	if _, ok := p.Take(base, base+1, size); !ok {
		t.Error("the piece is in parts after all were given back")
	}
}

func TestReach(t *testing.T) {
	p := patch.NewPiece(base, size)
	for _, c := range []struct {
		lo, hi uint64
		ok     bool
	}{
		{base - 1<<20, base - 1<<20 + 5, true},
		{base + 1<<30, base + 1<<30 + 5, true},
		{base + 1<<31, base + 1<<31 + 5, false},
		{base - 1<<20, base + 1<<31 - 1<<19, false},
	} {
		if _, ok := p.Take(c.lo, c.hi, 32); ok != c.ok {
			t.Errorf("from 0x%x to 0x%x: %v, want %v", c.lo, c.hi, ok, c.ok)
		}
	}
}

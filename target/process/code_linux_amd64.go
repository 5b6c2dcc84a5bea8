package process

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/arch"
	"kprobes.dev/kprobes/arch/amd64"
)

// codePiece is a mapping that detours stand in.
type codePiece struct {
	addr, size uint64
	free       []span // sorted by address, never touching one another
}

type span struct{ lo, hi uint64 }

const (
	minPiece  = 1 << 20
	codeAlign = 32
)

// reach is the distance that a 32-bit displacement covers, less what instructions need.
const reach = 1<<31 - 1<<12

// Code gives room for code that reaches every address from lo to hi.
func (t *Target) Code(lo, hi uint64, size int) (uint64, error) {
	need := spanOf(0, size).hi
	for _, c := range t.code {
		if !c.reaches(lo, hi) {
			continue
		}
		if a, ok := c.take(need); ok {
			return a, nil
		}
	}
	c, err := t.mapCode(lo, hi, need)
	if err != nil {
		return 0, err
	}
	t.code = append(t.code, c)
	a, _ := c.take(need)
	return a, nil
}

func (c *codePiece) reaches(lo, hi uint64) bool {
	return max(hi, c.addr+c.size)-min(lo, c.addr) < reach
}

func (c *codePiece) take(n uint64) (uint64, bool) {
	for i := range c.free {
		if s := &c.free[i]; s.hi-s.lo >= n {
			a := s.lo
			s.lo += n
			if s.lo == s.hi {
				c.free = append(c.free[:i], c.free[i+1:]...)
			}
			return a, true
		}
	}
	return 0, false
}

// FreeCode takes back room that Code gave.
func (t *Target) FreeCode(addr uint64, size int) {
	t.freeCode([]span{spanOf(addr, size)})
}

func spanOf(addr uint64, size int) span {
	return span{addr, addr + (uint64(size)+codeAlign-1)&^(codeAlign-1)}
}

func (t *Target) freeCode(spans []span) {
	for _, c := range t.code {
		n := len(c.free)
		for _, s := range spans {
			if s.lo >= c.addr && s.lo < c.addr+c.size {
				c.free = append(c.free, s)
			}
		}
		if len(c.free) > n {
			c.join()
		}
	}
}

// join puts the free spans in order and makes one of those that touch.
func (c *codePiece) join() {
	slices.SortFunc(c.free, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	out := c.free[:1]
	for _, f := range c.free[1:] {
		if last := &out[len(out)-1]; last.hi == f.lo {
			last.hi = f.hi
		} else {
			out = append(out, f)
		}
	}
	c.free = out
}

// mapCode maps a new piece near the text, in a stop of its own.
func (t *Target) mapCode(lo, hi, need uint64) (c *codePiece, err error) {
	size := max(minPiece, uint64(1)<<bits.Len64(need-1))
	if n := len(t.code); n > 0 {
		size = max(size, t.code[n-1].size) // many probes: fewer, larger pieces
	}
	err = t.stopped(func(s *Stopped) error {
		c, err = t.mapPiece(s, lo, hi, size)
		return err
	})
	return c, err
}

// mapPiece maps size bytes for code near [lo, hi).
func (t *Target) mapPiece(s *Stopped, lo, hi, size uint64) (*codePiece, error) {
	maps, err := t.p.Maps()
	if err != nil {
		return nil, err
	}
	at, err := FindGap(maps, lo, hi, size)
	if err != nil {
		return nil, err
	}
	addr, err := t.mapPrivate(s, codeName, at, size, unix.PROT_READ|unix.PROT_EXEC)
	if err != nil {
		return nil, err
	}
	return &codePiece{addr: addr, size: size, free: []span{{addr, addr + size}}}, nil
}

// Pool gives the table for a return probe's instances.
func (t *Target) Pool(n, limit int) (*arch.Pool, error) {
	stride := amd64.SlotStride(n)
	if limit <= 0 && stride <= poolStep {
		p := &arch.Pool{Base: t.home.addr + poolOff, Slots: poolSlots, Stride: poolStep}
		t.notePool(p)
		return p, nil
	}
	slots := poolSlots
	if limit > 0 {
		slots = max(6, bits.Len(uint(4*limit-1)))
	}
	base, err := t.home.alloc(amd64.PoolBytes(slots, stride))
	if err != nil {
		return nil, fmt.Errorf("return probe's pool: %w", err)
	}
	p := &arch.Pool{Base: base, Slots: slots, Stride: stride, Max: uint32(max(limit, 0))}
	if limit > 0 {
		if p.Active, err = t.home.alloc(8); err != nil {
			return nil, err
		}
	}
	t.notePool(p)
	return p, nil
}

func (t *Target) notePool(p *arch.Pool) {
	for _, u := range t.pools {
		if u.addr == p.Base {
			return
		}
	}
	t.pools = append(t.pools, poolUse{pool: p, addr: p.Base})
}

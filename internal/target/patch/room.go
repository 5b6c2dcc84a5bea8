package patch

import (
	"cmp"
	"slices"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/interval"
)

// Align is the unit in which room is given, in bytes.
const Align = 32

// Piece is a mapping that generated code stands in, and gives out its room. It is not safe for concurrent use.
type Piece struct {
	Addr, Size uint64
	free       []interval.Range // sorted by address, never touching one another
}

// NewPiece makes a piece of size bytes at addr, all free. Both are multiples of Align.
func NewPiece(addr, size uint64) *Piece {
	return &Piece{Addr: addr, Size: size, free: []interval.Range{{Start: addr, End: addr + size}}}
}

// Round is what size bytes take.
func Round(size int) uint64 { return (uint64(size) + Align - 1) &^ (Align - 1) }

// Holds says whether an address is in the piece.
func (p *Piece) Holds(addr uint64) bool { return addr-p.Addr < p.Size }

// Take gives room for size bytes if there is any, and if code anywhere in the piece
// reaches every address from lo to hi.
func (p *Piece) Take(lo, hi uint64, size int) (uint64, bool) {
	if max(hi, p.Addr+p.Size)-min(lo, p.Addr) >= native.Reach {
		return 0, false
	}
	n := Round(size)
	for i := range p.free {
		if s := &p.free[i]; s.End-s.Start >= n {
			a := s.Start
			s.Start += n
			if s.Start == s.End {
				p.free = slices.Delete(p.free, i, i+1)
			}
			return a, true
		}
	}
	return 0, false
}

// Room is size bytes of room at Addr.
type Room struct {
	Addr uint64
	Size int
}

// Free takes back those of the spans that are the piece's.
func (p *Piece) Free(spans ...Room) {
	n := len(p.free)
	for _, s := range spans {
		if p.Holds(s.Addr) {
			p.free = append(p.free, interval.Range{Start: s.Addr, End: s.Addr + Round(s.Size)})
		}
	}
	if len(p.free) > n {
		p.join()
	}
}

// join puts the free spans in order and makes one of those that touch.
func (p *Piece) join() {
	slices.SortFunc(p.free, func(a, b interval.Range) int { return cmp.Compare(a.Start, b.Start) })
	out := p.free[:1]
	for _, f := range p.free[1:] {
		if last := &out[len(out)-1]; last.End == f.Start {
			last.End = f.End
		} else {
			out = append(out, f)
		}
	}
	p.free = out
}

// Used is the number of bytes that are not free.
func (p *Piece) Used() uint64 {
	n := p.Size
	for _, s := range p.free {
		n -= s.End - s.Start
	}
	return n
}

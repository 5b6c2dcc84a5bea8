package self

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target/patch"
)

// piece is a mapping that detours stand in.
type piece struct {
	*patch.Piece
}

const minPiece = 1 << 20

// codeSpans are the pieces, for who can take no lock.
var codeSpans atomic.Pointer[[]interval.Range]

// isDetour says whether an address is in generated code. It runs in place of a handler.
//
//go:norace
func isDetour(addr uint64) bool {
	if spans := codeSpans.Load(); spans != nil {
		for _, s := range *spans {
			if s.Contains(addr) {
				return true
			}
		}
	}
	return false
}

func (c *piece) unmap() error { return unmap(c.Addr, c.Size) }

// Code gives room for code that reaches every address from lo to hi.
func (t *Target) Code(lo, hi uint64, size int) (uint64, error) {
	t.codeMu.Lock()
	defer t.codeMu.Unlock()
	for _, c := range t.code {
		if a, ok := c.Take(lo, hi, size); ok {
			return a, nil
		}
	}
	c, err := t.mapPiece(lo, hi, patch.Round(size))
	if err != nil {
		return 0, err
	}
	t.code = append(t.code, c)
	var spans []interval.Range
	for _, c := range t.code {
		spans = append(spans, interval.Range{Start: c.Addr, End: c.Addr + c.Size})
	}
	codeSpans.Store(&spans)
	a, ok := c.Take(lo, hi, size)
	if !ok {
		return 0, fmt.Errorf("code of %d bytes at 0x%x does not reach 0x%x to 0x%x: %w", size, c.Addr, lo, hi, unix.ERANGE)
	}
	return a, nil
}

// mapPiece maps memory for code near [lo, hi).
func (t *Target) mapPiece(lo, hi, need uint64) (*piece, error) {
	size := max(minPiece, uint64(1)<<bits.Len64(need-1))
	if n := len(t.code); n > 0 {
		size = max(size, t.code[n-1].Size)
	}
	maps, err := procfs.MapsOf("/proc/self")
	if err != nil {
		return nil, err
	}
	at, err := procfs.FindGap(maps, lo, hi, size, native.Reach)
	if err != nil {
		return nil, err
	}
	if at, err = mapAnon(at, size, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return nil, err
	}
	return &piece{patch.NewPiece(at, size)}, nil
}

// FreeCode takes back room that Code gave.
func (t *Target) FreeCode(addr uint64, size int) {
	t.codeMu.Lock()
	defer t.codeMu.Unlock()
	t.freeCode(patch.Room{Addr: addr, Size: size})
}

// freeCode takes back spans. codeMu is held.
func (t *Target) freeCode(spans ...patch.Room) {
	for _, c := range t.code {
		c.Free(spans...)
	}
}

// lowText is the start of the program's own code.
func (t *Target) lowText() uint64 { return t.seen[0].Start }

// The pool that return probes share unless they set a maximum: log2 of its slots and of their
// size in bytes.
const (
	poolSlots = 18
	poolStep  = 6
)

// Pool gives the table for a return probe's instances.
func (t *Target) Pool(n, limit int) (*arch.Pool, error) {
	want := arch.Pool{Slots: poolSlots, Stride: amd64.SlotStride(n), Max: uint32(max(limit, 0))}
	if limit > 0 {
		want.Slots = max(6, bits.Len(uint(4*limit-1)))
	} else {
		want.Stride = max(want.Stride, poolStep)
	}
	t.poolMu.Lock()
	defer t.poolMu.Unlock()
	for _, p := range t.pools {
		if p.Slots == want.Slots && p.Stride == want.Stride && (limit <= 0 && p.Max == 0 || t.idle[p] && empty(p)) {
			delete(t.idle, p)
			p.Max = want.Max
			return p, nil
		}
	}
	size := poolSize(&want)
	base, err := mapAnon(0, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, fmt.Errorf("return probe's pool: %w", err)
	}
	want.Base, want.Active = base, base+size-8
	t.pools = append(t.pools, &want)
	return &want, nil
}

// EndPool takes back a pool that Pool gave for one probe alone. It serves again once no
// call has an instance in it.
func (t *Target) EndPool(p *arch.Pool) {
	t.poolMu.Lock()
	defer t.poolMu.Unlock()
	if p.Max > 0 {
		t.idle[p] = true
	}
}

// empty says whether no slot of a pool is taken.
func empty(p *arch.Pool) bool {
	b := bytesAt(p.Base, int(amd64.PoolBytes(p.Slots, p.Stride)))
	for at := 0; at < len(b); at += 1 << p.Stride {
		if le.Uint64(b[at:]) != 0 {
			return false
		}
	}
	return true
}

// poolSize is what a pool's mapping takes: its table and a word for the count.
func poolSize(p *arch.Pool) uint64 { return (amd64.PoolBytes(p.Slots, p.Stride) + 8 + 4095) &^ 4095 }

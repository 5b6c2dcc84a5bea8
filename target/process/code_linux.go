package process

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// Bounds of a piece of code, in bytes; one that is needed may be larger.
const (
	minPiece = 1 << 20
	maxPiece = 32 << 20
)

// Code gives room for code that reaches every address from lo to hi.
func (t *Target) Code(lo, hi uint64, size int) (uint64, error) {
	if a, ok := t.takeCode(lo, hi, size); ok {
		return a, nil
	}
	c, err := t.mapCode(lo, hi, patch.Round(size))
	if err != nil {
		return 0, err
	}
	t.setCode(append(t.code, c))
	a, ok := t.takeCode(lo, hi, size)
	if !ok {
		return 0, errno.Errorf(unix.ERANGE, "code of %d bytes at 0x%x does not reach 0x%x to 0x%x", size, c.Addr, lo, hi)
	}
	return a, nil
}

// takeCode takes room in the pieces that there are.
func (t *Target) takeCode(lo, hi uint64, size int) (uint64, bool) {
	t.asked.Lock()
	defer t.asked.Unlock()
	for _, c := range t.code {
		if a, ok := c.Take(lo, hi, size); ok {
			return a, true
		}
	}
	return 0, false
}

// FreeCode takes back room that Code gave.
func (t *Target) FreeCode(addr uint64, size int) {
	t.freeCode(patch.Room{Addr: addr, Size: size})
}

func (t *Target) freeCode(spans ...patch.Room) {
	t.asked.Lock()
	defer t.asked.Unlock()
	for _, c := range t.code {
		c.Free(spans...)
	}
}

// mapCode maps a new piece near the text, in a stop of its own. Many probes make fewer and larger
// pieces, each twice as large as the one before, where there is room.
func (t *Target) mapCode(lo, hi, need uint64) (*patch.Piece, error) {
	size := max(minPiece, uint64(1)<<bits.Len64(need-1))
	if n := len(t.code); n > 0 && t.code[n-1].Size >= size && size < maxPiece {
		var full *headroom.Error
		c, err := t.mapCodeOf(lo, hi, min(2*t.code[n-1].Size, maxPiece))
		if err == nil || !errors.Is(err, ErrNoGap) && !errors.As(err, &full) {
			return c, err
		}
	}
	return t.mapCodeOf(lo, hi, size)
}

func (t *Target) mapCodeOf(lo, hi, size uint64) (c *patch.Piece, err error) {
	if err := t.checkRoom("code of probes", headroom.Take{Mapped: size, Locked: size}); err != nil {
		return nil, err
	}
	err = t.stopped(func(s *ptrace.Stopped) error {
		c, err = t.mapPiece(s, lo, hi, size)
		return err
	})
	return c, err
}

// Reserve says what code Prepare is to map room for.
func (t *Target) Reserve(rooms []target.Room) { t.rooms = rooms }

// planRooms decides what Prepare maps for code: what was told to Reserve, and a piece near the functions that have
// probes of the engine's own. Each may be as large as the process has room for; what is not mapped then comes in stops of its own.
func (t *Target) planRooms() {
	rooms := t.rooms
	for _, f := range t.sharers {
		at := f.Place.Addr
		if !slices.ContainsFunc(rooms, func(r target.Room) bool { return min(r.Lo, at)+ownReach > max(r.Hi, at) }) {
			rooms = append(rooms, target.Room{Lo: at, Hi: at + 1, Size: minPiece})
		}
	}
	t.rooms, t.sites = nil, 0
	maps, err := t.p.Maps()
	if err != nil {
		return // Code will see
	}
	if !isGo(t.p) { // Go's own memory is not there
		maps = procfs.WithHeap(maps, t.p.Image().StartBrk)
	}
	mapped := uint64(0)
	for _, r := range rooms {
		t.sites += r.Sites
		size := min(max(minPiece, uint64(1)<<bits.Len64(uint64(r.Size)-1)), maxPiece)
		if t.checkRoom("code of probes", headroom.Take{Mapped: mapped + size, Locked: mapped + size}) == nil {
			at, err := procfs.FindGap(maps, r.Lo, r.Hi, size, native.Reach)
			if err != nil {
				continue
			}
			mapped += size
			t.rooms = append(t.rooms, target.Room{Lo: at, Hi: at + size, Size: int(size)})
			i, _ := slices.BinarySearchFunc(maps, at, func(m procfs.Map, at uint64) int { return cmp.Compare(m.Start, at) })
			maps = slices.Insert(maps, i, procfs.Map{Start: at, End: at + size, Perm: procfs.PermRead | procfs.PermExec})
		}
	}
}

// ownReach is how far apart functions are, at most, that one piece of code serves.
const ownReach = 1 << 30

// mapRooms maps what planRooms has decided. Precondition: the world is stopped.
func (t *Target) mapRooms(s *ptrace.Stopped) error {
	for _, r := range t.rooms {
		_, err := t.mapPrivate(s, codeName, r.Lo, r.Hi-r.Lo, unix.PROT_READ|unix.PROT_EXEC)
		if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN) { // the process has mapped something there, or may not have more
			continue // Code will see
		}
		if err != nil {
			return err
		}
		t.setCode(append(t.code, patch.NewPiece(r.Lo, r.Hi-r.Lo)))
	}
	t.rooms = nil
	return nil
}

// mapPiece maps size bytes for code near [lo, hi).
func (t *Target) mapPiece(s *ptrace.Stopped, lo, hi, size uint64) (*patch.Piece, error) {
	maps, err := s.Maps()
	if err != nil {
		return nil, err
	}
	if t.golang == nil { // Go's own memory is not there
		maps = procfs.WithHeap(maps, t.p.Image().StartBrk)
	}
	at, err := procfs.FindGap(maps, lo, hi, size, native.Reach)
	if err != nil {
		return nil, err
	}
	addr, err := t.mapPrivate(s, codeName, at, size, unix.PROT_READ|unix.PROT_EXEC)
	if err != nil {
		return nil, err
	}
	return patch.NewPiece(addr, size), nil
}

// Pool gives the table for a return probe's instances. Probes without a limit share one for each
// size of their instances, which is smaller where memory is short.
func (t *Target) Pool(n, limit int) (*arch.Pool, error) {
	stride := max(poolStep, native.SlotStride(n))
	if limit <= 0 {
		for _, u := range t.pools {
			if u.pool.Max == 0 && u.pool.Stride == stride {
				return u.pool, nil
			}
		}
		return t.sharedPool(stride)
	}
	slots := max(6, bits.Len(uint(4*limit-1)))
	if p := t.idlePool(slots, stride, uint32(limit)); p != nil {
		return p, nil
	}
	p, err := t.newPool(slots, stride)
	if err != nil {
		return nil, err
	}
	p.Max = uint32(limit)
	if p.Active, err = t.control.alloc(8); err != nil {
		return nil, err
	}
	t.notePool(p)
	return p, nil
}

// sharedPool makes a pool for all probes without a limit, of the largest size that there is room for.
func (t *Target) sharedPool(stride int) (*arch.Pool, error) {
	less := stride - poolStep // each takes as much room as the first
	for slots := poolSlots - less; ; slots-- {
		p, err := t.newPool(slots, stride)
		if err == nil {
			t.notePool(p)
			return p, nil
		}
		var short *headroom.Error
		if !errors.As(err, &short) || slots <= leastSlots-less {
			return nil, err
		}
	}
}

// newPool makes a pool. All of its pages count, and the file's are made: which of them calls will
// use is not known.
func (t *Target) newPool(slots, stride int) (*arch.Pool, error) {
	size := native.PoolBytes(slots, stride)
	base, err := t.control.alloc(size)
	if err == nil {
		err = t.p.MakeBacking(base, size)
	}
	if err != nil {
		return nil, fmt.Errorf("return probe's pool: %w", err)
	}
	return &arch.Pool{Base: base, Slots: slots, Stride: stride}, nil
}

func (t *Target) notePool(p *arch.Pool) {
	for _, u := range t.pools {
		if u.addr == p.Base {
			return
		}
	}
	t.pools = append(t.pools, poolUse{pool: p, addr: p.Base})
}

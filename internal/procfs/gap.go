package procfs

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
)

// ErrNoGap says that no free range of addresses fits. It also is ENOMEM to errors.Is.
var ErrNoGap = errno.Errorf(syscall.ENOMEM, "no free address range")

const (
	// PageSize is the size of a page on amd64, in bytes.
	PageSize = 4096

	// userTop is the end of user addresses with 4-level paging, less the guard page
	// (TASK_SIZE_MAX, arch/x86/include/asm/page_64_types.h). The kernel maps nothing
	// above it unless asked for an address there.
	UserTop = 1<<47 - PageSize

	// lowest is the default of vm.mmap_min_addr.
	Lowest = 1 << 16

	// gapGuard keeps a new mapping from touching its neighbours: an overrun of either
	// faults, and the kernel cannot merge them.
	gapGuard = 16 * PageSize

	// stackGuardGap is what the kernel keeps free below a growing stack
	// (stack_guard_gap, 256 pages).
	stackGuardGap = 256 * PageSize
)

// heapRoom is how much room above the heap stays free for its growth, best first. A
// malloc whose brk fails goes on with mmap, so the last one is no danger to a program.
var heapRoom = []uint64{1 << 30, 256 << 20, 16 << 20}

// stackRoom is what stays free below the main thread's stack: the usual limit of 8 MiB,
// eight times.
const stackRoom = 64 << 20

// Gaps gives the free ranges between lo and hi, page aligned, in order of address. They
// exclude what maps hold, everything below vm.mmap_min_addr's default, and nothing else:
// a caller that must have one exact address may take it.
func Gaps(maps []Map, lo, hi uint64) []interval.Range {
	lo, hi = PageUp(max(lo, Lowest)), PageDown(min(hi, UserTop))
	var gaps []interval.Range
	for _, m := range maps {
		if m.End <= lo {
			continue
		}
		if m.Start >= hi {
			break
		}
		if m.Start > lo {
			gaps = append(gaps, interval.Range{Start: lo, End: m.Start})
		}
		lo = m.End
	}
	if lo < hi {
		gaps = append(gaps, interval.Range{Start: lo, End: hi})
	}
	return gaps
}

// FindGap gives a page-aligned address of size free bytes such that every address in
// [lo, hi) and every one in the new range are at most reach bytes apart. It
// keeps clear of the neighbours, of the room that the heap and the stack grow into, and
// takes the place nearest to [lo, hi). The error is an ErrNoGap.
//
// The target may map the place itself before the caller does: map it with
// MAP_FIXED_NOREPLACE while the target is stopped.
func FindGap(maps []Map, lo, hi, size, reach uint64) (uint64, error) {
	size = PageUp(size)
	if lo >= hi || size == 0 || hi > UserTop {
		return 0, fmt.Errorf("gap of %#x bytes near [%#x, %#x): %w: no such range", size, lo, hi, ErrNoGap)
	}
	in := interval.Range{End: min(lo+reach, UserTop)}
	if hi > reach {
		in.Start = hi - reach
	}
	for _, room := range heapRoom {
		if addr, ok := nearestGap(withRoom(maps, room), in, lo, hi, size); ok {
			return addr, nil
		}
	}
	return 0, fmt.Errorf("gap of %#x bytes within %#x bytes of [%#x, %#x): %w: the largest free one there has %#x bytes",
		size, reach, lo, hi, ErrNoGap, largest(Gaps(maps, in.Start, in.End)))
}

func nearestGap(maps []Map, reach interval.Range, lo, hi, size uint64) (addr uint64, ok bool) {
	best := ^uint64(0)
	for _, g := range Gaps(maps, reach.Start, reach.End) {
		if g.Size() < size {
			continue
		}
		// The end of the gap that is nearer to the text.
		at, far := g.Start, distance(g.Start, lo, hi)
		if d := distance(g.End-size, lo, hi); d < far {
			at, far = g.End-size, d
		}
		if far < best {
			addr, best, ok = at, far, true
		}
	}
	return addr, ok
}

func distance(addr, lo, hi uint64) uint64 {
	if addr < lo {
		return lo - addr
	}
	if addr >= hi {
		return addr - hi
	}
	return 0
}

func largest(gaps []interval.Range) (n uint64) {
	for _, g := range gaps {
		n = max(n, g.Size())
	}
	return n
}

// withRoom widens each mapping by its guard, the heap upwards and the stacks downwards by
// their room. Overlaps that arise are merged.
func withRoom(maps []Map, heap uint64) []Map {
	var wide []Map
	for _, m := range maps {
		below, above := uint64(gapGuard), uint64(gapGuard)
		switch {
		case m.Anonymous() && m.Path == "[heap]":
			above = heap
		case m.Anonymous() && strings.HasPrefix(m.Path, "[stack"):
			below = stackRoom + stackGuardGap
		}
		w := Map{Start: m.Start - min(below, m.Start), End: min(m.End, ^uint64(0)-above) + above}
		for len(wide) > 0 && w.Start <= wide[len(wide)-1].End {
			w.Start, w.End = min(w.Start, wide[len(wide)-1].Start), max(w.End, wide[len(wide)-1].End)
			wide = wide[:len(wide)-1]
		}
		wide = append(wide, w)
	}
	return wide
}

// withHeap enters the heap of a process that has none yet, at the address where it will
// begin: brk is StartBrk of its Stat, 0 if that is not known.
func WithHeap(maps []Map, brk uint64) []Map {
	at := PageUp(brk)
	i := 0
	for ; i < len(maps) && maps[i].Start < at; i++ {
	}
	switch {
	case brk == 0, slices.ContainsFunc(maps, func(m Map) bool { return m.Path == "[heap]" }):
		return maps
	case i < len(maps) && maps[i].Start < at+PageSize, i > 0 && maps[i-1].End > at:
		return maps // something else is there: it can not grow
	}
	return slices.Insert(slices.Clone(maps), i, Map{Start: at, End: at + PageSize, Perm: PermRead | PermWrite, Path: "[heap]"})
}

func PageDown(n uint64) uint64 { return n &^ (PageSize - 1) }

func PageUp(n uint64) uint64 { return PageDown(n + PageSize - 1) }

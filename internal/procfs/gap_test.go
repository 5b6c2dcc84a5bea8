package procfs

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"
)

const gib = 1 << 30

// far is the reach of a jump with 32 bits.
const far = 1<<31 - PageSize

func TestFindGap(t *testing.T) {
	m := func(lo, hi uint64, path string) Map { return Map{Start: lo, End: hi, Path: path} }
	pie := uint64(0x555555554000)
	for _, c := range []struct {
		name     string
		maps     []Map
		lo, hi   uint64
		size     uint64
		from, to uint64 // where the gap must lie
	}{
		{
			"below a PIE",
			[]Map{m(pie, pie+0x100000, "/bin/x"), m(pie+0x101000, pie+0x122000, "[heap]")},
			pie, pie + 0x100000, 1 << 20, pie - 2*gib, pie,
		},
		{
			"above a program at 4 MiB, clear of its heap",
			[]Map{m(0x400000, 0x500000, "/bin/x"), m(0x600000, 0x700000, "[heap]")},
			0x400000, 0x500000, 16 << 20, 0x700000 + gib, 2*gib + 0x400000,
		},
		{
			"below a program at 4 MiB, if small",
			[]Map{m(0x400000, 0x500000, "/bin/x"), m(0x600000, 0x700000, "[heap]")},
			0x400000, 0x500000, 1 << 20, 0x10000, 0x400000,
		},
		{
			"nearer to a large heap if nothing else is left",
			[]Map{m(0x400000, 0x500000, "/bin/x"), m(0x10000000, 0x60000000, "[heap]")},
			0x400000, 0x500000, 256 << 20, 0x60000000 + 16<<20, 2*gib + 0x400000,
		},
		{
			"between two objects",
			[]Map{m(0x7f0000000000, 0x7f0000100000, "a"), m(0x7f0000200000, 0x7f0000300000, "b"), m(0x7ffff0000000, 0x7ffff0021000, "[stack]")},
			0x7f0000000000, 0x7f0000100000, 0x20000, 0x7effff000000, 0x7f0000200000,
		},
		{
			"not into the stack's room",
			[]Map{m(0x7ffff0000000, 0x7ffff0100000, "a"), m(0x7ffff4000000, 0x7ffff4021000, "[stack]")},
			0x7ffff0000000, 0x7ffff0100000, 0x100000, 0x7fff70200000, 0x7ffff0000000,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, err := FindGap(c.maps, c.lo, c.hi, c.size, far)
			if err != nil {
				t.Fatal(err)
			}
			if at < c.from || at+c.size > c.to || at%PageSize != 0 {
				t.Errorf("%#x, want it in [%#x, %#x)", at, c.from, c.to)
			}
		})
	}
}

// Every place found is free and in reach both ways, in random layouts.
func TestFindGapReaches(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		var maps []Map
		for at := uint64(rnd.IntN(gib)) &^ 0xfff; len(maps) < 40; {
			size := (uint64(rnd.IntN(1<<rnd.IntN(30))) &^ 0xfff) + PageSize
			maps = append(maps, Map{Start: at, End: at + size})
			at += size + uint64(rnd.IntN(1<<rnd.IntN(31)))&^0xfff
		}
		text := maps[rnd.IntN(len(maps))]
		size := uint64(1+rnd.IntN(1<<rnd.IntN(24))) * 16
		at, err := FindGap(maps, text.Start, text.End, size, far)
		if err != nil {
			if !errors.Is(err, ErrNoGap) || !errors.Is(err, syscall.ENOMEM) {
				t.Fatal(err)
			}
			continue
		}
		lo, hi := min(at, text.Start), max(at+size, text.End)
		if Overlaps(maps, at, size) || at < 1<<16 || hi-lo > 1<<31 {
			t.Fatalf("%#x of %#x bytes for %#x-%#x", at, size, text.Start, text.End)
		}
	}
}

func TestFindGapRefuses(t *testing.T) {
	maps := []Map{{Start: 1 << 16, End: UserTop}}
	for _, c := range []struct{ lo, hi, size uint64 }{
		{0x400000, 0x500000, PageSize}, {5, 5, 1}, {6, 5, 1}, {0x400000, 0x500000, 0}, {0, ^uint64(0), 1}, {0, 3 * gib, 1}, {0, 4096, ^uint64(0)},
	} {
		if at, err := FindGap(maps, c.lo, c.hi, c.size, far); !errors.Is(err, ErrNoGap) {
			t.Errorf("%+v: %#x, %v", c, at, err)
		}
	}
	if at, err := FindGap(nil, 0, 5*gib, 1, far); !errors.Is(err, ErrNoGap) {
		t.Errorf("no address reaches both ends of 5 GiB, but %#x, %v", at, err)
	}
}

// A program that has not begun its heap keeps the room for it: generated code next to its data
// would make its first brk fail.
func TestFindGapBeforeHeap(t *testing.T) {
	const text, data, brk = 0x555555554000, 0x555555560000, 0x555555561a10
	maps := []Map{
		{Start: text, End: text + 0x8000, Path: "/bin/x"},
		{Start: data, End: 0x555555562000, Path: "/bin/x"},
		{Start: 0x7ffff7d00000, End: 0x7ffff7e00000, Path: "/lib/libc.so.6"},
	}
	near, err := FindGap(maps, data, data+0x1000, PageSize, far)
	if err != nil || near-0x555555562000 > heapRoom[0] {
		t.Fatalf("without a heap code goes to 0x%x, %v: this test shows nothing", near, err)
	}
	at, err := FindGap(WithHeap(maps, brk), data, data+0x1000, PageSize, far)
	if err != nil || at-0x555555562000 < heapRoom[0] {
		t.Errorf("code at 0x%x, %v: in the way of the heap that begins at 0x%x", at, err, uint64(brk))
	}
	for _, same := range [][]Map{
		append(maps[:2:2], Map{Start: 0x555555562000, End: 0x555555563000, Path: "[heap]"}, maps[2]),
		append(maps[:2:2], Map{Start: 0x555555562000, End: 0x555555563000, Path: "/bin/y"}, maps[2]),
	} {
		if got := WithHeap(same, brk); len(got) != len(same) {
			t.Errorf("%d mappings became %d", len(same), len(got))
		}
	}
	if got := WithHeap(maps, 0); len(got) != len(maps) {
		t.Errorf("a heap was entered though its place is not known")
	}
}

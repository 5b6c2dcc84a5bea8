package qemu

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// large is a pc with 4 GB of RAM and 3 GB of it below 4 GB, a display and firmware.
const large = `FlatView #0
 AS "I/O", root: io
 Root memory region: io
  0000000000000000-0000000000000007 (prio 0, i/o): dma-chan

FlatView #1
 AS "memory", root: system
 AS "cpu-memory-0", root: system
 Root memory region: system
  0000000000000000-000000000009ffff (prio 0, ram): mem KVM
  00000000000a0000-00000000000bffff (prio 1, i/o): vga-lowmem
  00000000000c0000-00000000000e7fff (prio 0, rom): mem @00000000000c0000 KVM
  00000000000e8000-00000000000effff (prio 0, ram): mem @00000000000e8000
  00000000000f0000-00000000000fffff (prio 0, rom): mem @00000000000f0000
  0000000000100000-000000000fffffff (prio 0, ram): mem @0000000000100000
  0000000010000000-00000000bfffffff (prio 0, ram): mem @0000000010000000
  00000000fc000000-00000000fdffffff (prio 1, ram): ring
  00000000fffc0000-00000000ffffffff (prio 0, rom): pc.bios
  0000000100000000-000000013fffffff (prio 0, ram): mem @00000000c0000000 KVM
  ffffffff00000000-ffffffffffffffff (prio 0, ram): mem

FlatView #2
 AS "cpu-smm-0", root: memory
 Root memory region: memory
  0000000000000000-000000000009ffff (prio 0, ram): other
`

func TestRegions(t *testing.T) {
	regions, err := parseRegions(large)
	if err != nil {
		t.Fatal(err)
	}
	got, err := backed(regions, "mem", 4<<30)
	want := []region{
		{start: 0, end: 0xa0000, off: 0},
		{start: 0xe8000, end: 0xf0000, off: 0xe8000},
		{start: 0x100000, end: 0xc0000000, off: 0x100000},
		{start: 0x100000000, end: 0x140000000, off: 0xc0000000},
	}
	same := func(a, b region) bool { return a.start == b.start && a.end == b.end && a.off == b.off }
	if err != nil || !slices.EqualFunc(got, want, same) {
		t.Errorf("RAM: %+v, %v; want %+v", got, err, want)
	}
	if ring, err := backed(regions, "ring", 32<<20); err != nil || len(ring) != 1 || ring[0].start != 0xfc000000 || ring[0].off != 0 {
		t.Errorf("ring: %+v, %v", ring, err)
	}
	if none, err := backed(regions, "nosuch", 1<<20); err != nil || len(none) != 0 {
		t.Errorf("nosuch: %+v, %v", none, err)
	}
	if _, err := backed(regions, "mem", 4<<30-1); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a file that is too short: %v, want EINVAL", err)
	}
}

func TestRegionsBad(t *testing.T) {
	const head = "FlatView #0\n AS \"memory\", root: system\n"
	for _, text := range []string{
		"", "\n", head, "unknown command: 'info mtree -f'\n",
		head + "  0000000000000000-000000000009ffff (prio 0, ram): a\n  0000000000001000-000000000009ffff (prio 0, ram): b\n",
		head + "  00000000000a0000-000000000009ffff (prio 0, ram): backwards\n",
	} {
		if r, err := parseRegions(text); !errors.Is(err, unix.EPROTO) {
			t.Errorf("%q: %v, %v; want EPROTO", text, r, err)
		}
	}
}

func FuzzRegions(f *testing.F) {
	f.Add(large, uint64(4<<30))
	f.Fuzz(func(t *testing.T, text string, size uint64) {
		regions, err := parseRegions(text)
		if err != nil {
			return
		}
		pieces, err := backed(regions, "mem", size)
		if err != nil {
			return
		}
		for i, p := range pieces {
			if p.end <= p.start || p.off > size || p.end-p.start > size-p.off || i > 0 && p.start < pieces[i-1].end {
				t.Errorf("piece %d of %+v in %d bytes", i, pieces, size)
			}
		}
	})
}

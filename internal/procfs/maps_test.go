package procfs

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseMaps(t *testing.T) {
	text := strings.Join([]string{
		"00400000-00452000 r-xp 00001000 08:02 173521                             /usr/bin/a b",
		"00651000-00652000 rw-p 00051000 08:02 173521      /usr/bin/a b (deleted)",
		"00652000-00655000 rw-p 00000000 00:00 0 ",
		"00e03000-00e24000 rw-p 00000000 00:00 0           [heap]",
		"7f0000000000-7f0000001000 rwxs 00000000 00:01 7 /memfd:x\\012y (deleted)",
		"7f0000001000-7f0000002000 ---p 00000000 00:00 0 [anon: a (deleted)]",
		"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0          [vsyscall]",
	}, "\n") + "\n"
	got, err := ParseMaps([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	exe := FileID{8<<32 | 2, 173521}
	want := []Map{
		{Start: 0x400000, End: 0x452000, Perm: PermRead | PermExec, Offset: 0x1000, FileID: exe, Path: "/usr/bin/a b"},
		{Start: 0x651000, End: 0x652000, Perm: PermRead | PermWrite, Offset: 0x51000, FileID: exe, Path: "/usr/bin/a b", Deleted: true},
		{Start: 0x652000, End: 0x655000, Perm: PermRead | PermWrite},
		{Start: 0xe03000, End: 0xe24000, Perm: PermRead | PermWrite, Path: "[heap]"},
		{Start: 0x7f0000000000, End: 0x7f0000001000, Perm: PermRead | PermWrite | PermExec | PermShared, FileID: FileID{1, 7}, Path: "/memfd:x\ny", Deleted: true},
		{Start: 0x7f0000001000, End: 0x7f0000002000, Path: "[anon: a (deleted)]"},
		{Start: 0xffffffffff600000, End: 0xffffffffff601000, Perm: PermExec, Path: "[vsyscall]"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for addr, ok := range map[uint64]bool{0x3fffff: false, 0x400000: true, 0x451fff: true, 0x452000: false, 0x654fff: true, 0x655000: false, ^uint64(0): false} {
		if m, found := FindMap(got, addr); found != ok || ok && !m.Contains(addr) {
			t.Errorf("FindMap(%#x) = %v, %v", addr, m, found)
		}
	}
	if p := got[4].Perm.String() + got[5].Perm.String(); p != "rwxs---p" {
		t.Errorf("permissions print as %s", p)
	}
}

func TestParseMapsRefuses(t *testing.T) {
	for _, text := range []string{
		"x", "1-2", "2-1 r--p 0 0:0 0", "1-1 r--p 0 0:0 0", "1-2 r-- 0 0:0 0", "1-2 r--p 0 00 0", "1-2 r--p 0 0:0", "1-2 r--p 0 0:0 z",
		"1-10000000000000000 r--p 0 0:0 0", "-1-2 r--p 0 0:0 0", "1-3 r--p 0 0:0 0\n2-4 r--p 0 0:0 0", "1-2 r--p 0 0:0 0\n\n",
	} {
		if m, err := ParseMaps([]byte(text)); err == nil {
			t.Errorf("%q gave %v", text, m)
		}
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add("00400000-00452000 r-xp 00001000 08:02 173521   /usr/bin/a b (deleted)\n00652000-00655000 rw-p 00000000 00:00 0 \n")
	f.Add("1-3 r--p 0 0:0 0\n2-4 r--p 0 0:0 0")
	f.Fuzz(func(t *testing.T, text string) {
		maps, err := ParseMaps([]byte(text))
		if err != nil {
			return
		}
		end := uint64(0)
		for _, m := range maps {
			if m.Start < end || m.End <= m.Start {
				t.Fatalf("%v", maps)
			}
			end = m.End
		}
		for _, g := range Gaps(maps, 0, ^uint64(0)) {
			if g.Start >= g.End || Overlaps(maps, g.Start, g.Size()) {
				t.Fatalf("gap %#x in %v", g, maps)
			}
		}
		if at, err := FindGap(maps, 0x400000, 0x500000, PageSize, far); err == nil && Overlaps(maps, at, PageSize) {
			t.Fatalf("gap %#x in %v", at, maps)
		}
	})
}

// TestReadMaps: a text that the kernel wrote while a mapping grew is read again, and one that stays wrong is told.
func TestReadMaps(t *testing.T) {
	torn := "c000000000-c000400000 rw-p 00000000 00:00 0\nc000200000-c000800000 rw-p 00000000 00:00 0\n"
	whole := "c000000000-c000800000 rw-p 00000000 00:00 0\n"
	reads := 0
	maps, err := ReadMaps(func() ([]byte, error) {
		if reads++; reads < 3 {
			return []byte(torn), nil
		}
		return []byte(whole), nil
	})
	if err != nil || len(maps) != 1 || maps[0].End != 0xc000800000 || reads != 3 {
		t.Errorf("%v, %v after %d readings", maps, err, reads)
	}
	if _, err := ReadMaps(func() ([]byte, error) { return []byte(torn), nil }); err == nil {
		t.Error("mappings overlap, and no error")
	}
	gone := errors.New("gone")
	if _, err := ReadMaps(func() ([]byte, error) { return nil, gone }); !errors.Is(err, gone) {
		t.Errorf("%v, want %v", err, gone)
	}
}

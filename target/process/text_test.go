package process

import (
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

// The place of a private copy counts as the file's, and neighbours are one mapping again.
func TestFileMaps(t *testing.T) {
	maps, err := procfs.ParseMaps([]byte(strings.TrimLeft(`
10000-11000 r--p 00000000 fe:01 77                         /bin/a b
11000-12000 r-xp 00001000 fe:01 77                         /bin/a b
12000-13000 r-xp 00002000 00:01 9                          /memfd:kprobes:text:fe:1:77:a b (deleted)
13000-15000 r-xp 00003000 fe:01 77                         /bin/a b
15000-16000 r-xp 00005000 00:01 9                          /memfd:kprobes:text:fe:1:77:a b (deleted)
20000-21000 r-xp 00001000 00:01 10                         /memfd:kprobes:text:fe:1:78:lib.so (deleted)
30000-31000 r-xp 00001000 00:01 11                         /memfd:kprobes:text:fe:zz:78:lib.so (deleted)
40000-41000 r-xp 00000000 00:01 12                         /memfd:kprobes:code (deleted)
`, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range fileMaps(maps) {
		got = append(got, m.Path)
	}
	want := []string{"/bin/a b", "/bin/a b", "lib.so", "/memfd:kprobes:text:fe:zz:78:lib.so", "/memfd:kprobes:code"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	text := fileMaps(maps)[1]
	if text.Start != 0x11000 || text.End != 0x16000 || text.Offset != 0x1000 || text.FileID != (procfs.FileID{Dev: 0xfe<<32 | 1, Inode: 77}) {
		t.Errorf("%+v", text)
	}
	for _, m := range maps[2:6] {
		if of, ok := textOf(m); ok && textFileName(of) != strings.TrimPrefix(m.Path, "/memfd:") {
			t.Errorf("%q is named %q", m.Path, textFileName(of))
		}
	}
	long := procfs.Map{Path: "/" + strings.Repeat("x", 400)}
	long.Inode = 5
	if n := textFileName(long); len(n) != maxMemfdName {
		t.Errorf("%d bytes", len(n))
	}
}

// Runs take the gaps between near pages along, and never leave a mapping; many become fewer.
func TestJoinPages(t *testing.T) {
	maps := []procfs.Map{
		{Start: 0x10000, End: 0x40000, Offset: 0x1000, FileID: procfs.FileID{Inode: 1}},
		{Start: 0x40000, End: 0x90000000, FileID: procfs.FileID{Inode: 2}},
	}
	pages := pagesOf([]uint64{0x3f123, 0x10004, 0x10ff0, 0x12000, 0x40000, 0x30000})
	var got []interval.Range
	for _, r := range fewRuns(maps, pages) {
		got = append(got, r.Range)
		m, _ := procfs.FindMap(maps, r.Start)
		if r.off != r.Start-m.Start+m.Offset {
			t.Errorf("%#x is at %#x in the file", r.Start, r.off)
		}
	}
	want := []interval.Range{{Start: 0x10000, End: 0x13000}, {Start: 0x30000, End: 0x31000}, {Start: 0x3f000, End: 0x40000}, {Start: 0x40000, End: 0x41000}}
	if !slices.Equal(got, want) {
		t.Errorf("%#x", got)
	}
	var many []uint64
	for i := range uint64(3 * textRuns) {
		many = append(many, 0x40000+i*2*textGap)
	}
	if n := len(fewRuns(maps, many)); n > textRuns {
		t.Errorf("%d runs", n)
	}
}

package symbol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// openBytes opens a copy in memory, not loaded yet.
func openBytes(t testing.TB, path string) (*Image, error) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return Open(bytes.NewReader(b), int64(len(b)), path, noDebug)
}

func TestProperties(t *testing.T) {
	for form, want := range map[string]struct {
		typ            Type
		static, interp bool
	}{
		"pie":        {TypeDyn, false, true},
		"nopie":      {TypeExec, false, true},
		"static":     {TypeExec, true, false},
		"static_pie": {TypeDyn, true, false},
	} {
		im := open(t, buildC(t, form), noDebug)
		if im.Type() != want.typ || im.Static() != want.static || (im.Interp() != "") != want.interp || !im.IsProgram() || im.IsGo() || im.GoVersion() != "" {
			t.Errorf("%s: type %v, static %v, interpreter %q, program %v, Go %v", form, im.Type(), im.Static(), im.Interp(), im.IsProgram(), im.IsGo())
		}
		if f, off, ok := im.At(im.Entry()); !ok || off != 0 || f.Name != "_start" {
			t.Errorf("%s: entry point is %v+%d", form, f, off)
		}
	}
	lib := open(t, build(t, "gcc", libSource, "-O1", "-shared", "-fPIC", "-Wl,-soname,libwork.so.3"), noDebug)
	if lib.Soname() != "libwork.so.3" || lib.IsProgram() || lib.Static() {
		t.Errorf("shared object: soname %q, program %v, static %v", lib.Soname(), lib.IsProgram(), lib.Static())
	}
	want := run(t, "readelf", "-n", redis)
	if id := open(t, redis, noDebug).BuildID(); !strings.Contains(want, id) || len(id) != 40 {
		t.Errorf("build-id %q", id)
	}
}

func TestReadAt(t *testing.T) {
	path := buildC(t, "pie")
	im := open(t, path, noDebug)
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fn := one(t, im, "split")
	got := make([]byte, fn.Size)
	if err := im.ReadAt(fn.Addr, got); err != nil {
		t.Fatal(err)
	}
	off, ok := im.FileOff(fn.Addr)
	if !ok || !bytes.Equal(got, file[off:off+fn.Size]) {
		t.Errorf("split: bytes differ from the file's at 0x%x", off)
	}
	if v, ok := im.Vaddr(off); !ok || v != fn.Addr {
		t.Errorf("Vaddr(0x%x) = 0x%x, %v, want 0x%x", off, v, ok, fn.Addr)
	}
	segs := im.Segments()
	last := segs[len(segs)-1]
	tail := bytes.Repeat([]byte{0xaa}, 8)
	if err := im.ReadAt(last.Vaddr+last.Memsz-8, tail); err != nil || !bytes.Equal(tail, make([]byte, 8)) {
		t.Errorf(".bss: %x, %v", tail, err)
	}
	if err := im.ReadAt(last.Vaddr+last.Memsz-4, tail); !errors.Is(err, ErrNotMapped) {
		t.Errorf("past the end: %v", err)
	}
	if !im.InText(fn.Addr) || im.InText(last.Vaddr) || !im.Executable(fn.Addr) || im.Executable(last.Vaddr) {
		t.Error("text ranges are wrong")
	}
}

func TestOpenRefuses(t *testing.T) {
	whole, err := os.ReadFile(buildC(t, "pie"))
	if err != nil {
		t.Fatal(err)
	}
	edit := func(at int, v ...byte) []byte {
		b := slices.Clone(whole)
		copy(b[at:], v)
		return b
	}
	ph := int(binary.LittleEndian.Uint64(whole[32:]))
	load := ph
	for binary.LittleEndian.Uint32(whole[load:]) != 1 {
		load += 56
	}
	for _, c := range []struct {
		name string
		b    []byte
		says string
	}{
		{"empty", nil, "truncated"},
		{"script", append([]byte("#!/bin/sh\n"), make([]byte, 100)...), "does not begin with"},
		{"header only", whole[:64], "program headers"},
		{"half", whole[:len(whole)/4], "truncated"},
		{"32 bit", edit(4, 1), "64-bit"},
		{"big endian", edit(5, 2), "little-endian"},
		{"object file", edit(16, 1, 0), "file type"},
		{"other machine", edit(18, 40, 0), "made for"},
		{"no program headers", edit(56, 0, 0), "can not be run"},
		{"program headers of 5 bytes", edit(54, 5, 0), "5 bytes"},
		{"segment wraps around", edit(load+40, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "impossible"},
		{"segment larger in the file", edit(load+32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f), "impossible"},
	} {
		_, err := Open(bytes.NewReader(c.b), int64(len(c.b)), c.name, nil)
		var fe *FormatError
		if !errors.As(err, &fe) || !errors.Is(err, ErrFormat) || !errors.Is(err, syscall.ENOEXEC) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
	}
}

// TestDamagedTables changes one table at a time: the image opens, says what is wrong, and
// finds what the other tables hold.
func TestDamagedTables(t *testing.T) {
	whole, err := os.ReadFile(buildC(t, "pie"))
	if err != nil {
		t.Fatal(err)
	}
	intact, err := openBytes(t, buildC(t, "pie"))
	if err != nil {
		t.Fatal(err)
	}
	header := func(name string) int {
		i := slices.IndexFunc(intact.elf.sects, func(s section) bool { return s.name == name })
		return int(binary.LittleEndian.Uint64(whole[40:])) + i*64
	}
	huge := []byte{0, 0, 0, 0, 0, 1, 0, 0}
	for _, c := range []struct {
		name  string
		at    int
		bytes []byte
		says  string
		found string // a function that is found all the same
	}{
		{"symtab size", header(".symtab") + 32, huge, "truncated", "main@plt"},
		{"symtab strings", header(".symtab") + 40, []byte{0xff, 0xff}, "section", ""},
		{"symtab entries", header(".symtab") + 56, []byte{7}, "entries of 7 bytes", ""},
		{"strtab size", header(".strtab") + 32, huge, "truncated", ""},
		{"section count", 60, []byte{0xff, 0xff}, "section headers", ""},
		{"section names", 62, []byte{0xfe, 0xff}, "name table", ""},
		{"eh_frame size", header(".eh_frame") + 32, huge, ".eh_frame", "split"},
		{"dynsym size", header(".dynsym") + 32, huge, ".dynsym", "split"},
	} {
		b := slices.Clone(whole)
		copy(b[c.at:], c.bytes)
		im, err := Open(bytes.NewReader(b), int64(len(b)), c.name, noDebug)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		err = im.Load()
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: problems %v, want %q", c.name, err, c.says)
		}
		_, err = im.Lookup("no_such_function")
		if !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "not searched") {
			t.Errorf("%s: Lookup gives %v", c.name, err)
		}
		if c.found == "split" {
			one(t, im, c.found)
		}
		if len(im.Funcs()) == 0 {
			t.Errorf("%s: no functions left", c.name)
		}
	}
}

// brokenReader fails to read what lies in one range.
type brokenReader struct {
	io.ReaderAt
	from, to int64
}

var errBroken = errors.New("input/output error")

func (r brokenReader) ReadAt(p []byte, off int64) (int, error) {
	if off < r.to && off+int64(len(p)) > r.from {
		return 0, errBroken
	}
	return r.ReaderAt.ReadAt(p, off)
}

func TestReaderErrors(t *testing.T) {
	b, err := os.ReadFile(buildC(t, "pie"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(brokenReader{bytes.NewReader(b), 0, 10}, int64(len(b)), "x", noDebug); !errors.Is(err, errBroken) {
		t.Errorf("header: %v", err)
	}
	s, err := openBytes(t, buildC(t, "pie"))
	if err != nil {
		t.Fatal(err)
	}
	sym := s.elf.section(".symtab")
	im, err := Open(brokenReader{bytes.NewReader(b), int64(sym.off), int64(sym.off) + 10}, int64(len(b)), "x", noDebug)
	if err != nil {
		t.Fatal(err)
	}
	if err := im.Load(); !errors.Is(err, errBroken) {
		t.Errorf(".symtab: %v", err)
	}
	if _, err := Open(bytes.NewReader(b), int64(len(b)), "x", &Options{MaxSize: 100}); !errors.Is(err, ErrLimit) {
		t.Errorf("limit of 100 bytes: %v", err)
	}
	if _, err := Open(bytes.NewReader(b), -1, "x", nil); !errors.Is(err, ErrFormat) {
		t.Errorf("negative size: %v", err)
	}
}

// TestTruncated cuts a program at many lengths: each gives an error or an image that works.
func TestTruncated(t *testing.T) {
	for _, path := range []string{buildC(t, "pie"), buildGoForm(t, "pie_sw")} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			exercise(b[:len(b)*i/200])
		}
	}
}

func TestStrings(t *testing.T) {
	for v, want := range map[interface{ String() string }]string{
		LangRust: "Rust", Lang(9): "lang 9", SourcePLT: "plt", SourceNext: "next function", Source(99): "source 99",
		Place{Sym: "f", Offset: 16}: "f+0x10", Place{Mod: "m", Sym: "f"}: "m:f", Place{Mod: "m", Addr: 16}: "m:0x10",
		Place{Addr: 16}: "0x10", Place{Path: "/p", Addr: 16}: "/p:0x10",
	} {
		if got := v.String(); got != want {
			t.Errorf("%#v is %q, want %q", v, got, want)
		}
	}
	if f := (&Func{Addr: 0x10}); f.String() != "0x10" || f.Pretty() != "0x10" {
		t.Errorf("function without name is %q, %q", f, f.Pretty())
	}
}

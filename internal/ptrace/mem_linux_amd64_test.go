package ptrace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

func TestMemory(t *testing.T) {
	r := run(t, build(t, "live"), "1")
	p := r.open()
	maps, err := p.Maps()
	if err != nil {
		t.Fatal(err)
	}
	code := codeOf(t, p, maps)
	b := make([]byte, 16)
	if err := p.ReadMem(code.Start, b); err != nil {
		t.Fatal(err)
	}
	if err := p.WriteMem(code.Start, b); err != nil { // a private copy, of read-only code
		t.Fatal(err)
	}
	for _, addr := range []uint64{0, 8, 1 << 47, 1 << 63, ^uint64(0), ^uint64(0) - 8, 0xffffffff81000000} {
		if err := p.ReadMem(addr, b); !errors.Is(err, ErrFault) {
			t.Errorf("read at %#x: %v", addr, err)
		}
		if err := p.WriteMem(addr, b); !errors.Is(err, ErrFault) {
			t.Errorf("write at %#x: %v", addr, err)
		}
	}
	last := maps[0] // the end of the first hole
	for _, m := range maps {
		if last.End != m.Start && m != maps[0] {
			break
		}
		last = m
	}
	if n, err := p.ReadMemSome(last.End-5, b); n != 5 || err != nil {
		t.Errorf("read up to a hole: %d, %v", n, err)
	}
	if err := p.ReadMem(last.End-5, b); !errors.Is(err, ErrFault) || !strings.Contains(err.Error(), fmt.Sprintf("at %#x", last.End)) {
		t.Errorf("read over a hole: %v", err)
	}
	r.Fine()
}

// Where /proc/PID/mem heeds page permissions, ptrace writes instead.
func TestPoke(t *testing.T) {
	r := run(t, build(t, "live"), "1")
	p := r.open()
	s := stop(t, p)
	at, err := s.Mmap(0, 2*procfs.PageSize, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("a few bytes that begin and end within words")
	if err := p.poke(at+procfs.PageSize-21, text); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(text)+16)
	if err := p.ReadMem(at+procfs.PageSize-21-8, b); err != nil || string(b[8:8+len(text)]) != string(text) {
		t.Fatalf("%q, %v", b, err)
	}
	for _, c := range append(b[:8:8], b[8+len(text):]...) {
		if c != 0 {
			t.Fatalf("bytes beside were changed: %q", b)
		}
	}
	if err := p.poke(16, text); !errors.Is(err, ErrFault) {
		t.Errorf("where nothing is mapped: %v", err)
	}
	release(t, s)
	if err := p.poke(at, text); !errors.Is(err, ErrFault) || !strings.Contains(err.Error(), "stop") {
		t.Errorf("of a running process: %v", err)
	}
	r.Fine()
}

func TestOpenMap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gone (deleted)")
	b, err := os.ReadFile(build(t, "live"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	p := run(t, path, "1").open()
	check := func(what string) {
		t.Helper()
		maps, err := p.Maps()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range maps {
			if m.Anonymous() || m.Perm&procfs.PermExec == 0 {
				continue
			}
			f, err := p.OpenMap(m)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			file, mem := make([]byte, 64), make([]byte, 64)
			_, err1 := f.ReadAt(file, int64(m.Offset))
			if err2 := p.ReadMem(m.Start, mem); err1 != nil || err2 != nil || string(file) != string(mem) {
				t.Errorf("%s: %s is not what is mapped: %v, %v", what, m.Path, err1, err2)
			}
			f.Close()
		}
		if f, err := p.OpenMap(procfs.Map{Start: 1, End: 2, Path: "[heap]"}); err == nil {
			f.Close()
			t.Error("an anonymous mapping has a file")
		}
	}
	check("there")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	check("deleted")
	if err := os.WriteFile(path, []byte("another"), 0o755); err != nil {
		t.Fatal(err)
	}
	check("replaced")
	// Without map_files, by name: another file of that name, or a pipe, is not taken.
	m := codeOf(t, p, mapsOf(t, p))
	if _, err := p.openRegular("root"+path, m); err == nil || !strings.Contains(err.Error(), "another file") {
		t.Errorf("a file that took the name: %v", err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.openRegular("root"+fifo, m); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe: %v", err)
	}
}

func mapsOf(t *testing.T, p *Process) []procfs.Map {
	t.Helper()
	maps, err := p.Maps()
	if err != nil {
		t.Fatal(err)
	}
	return maps
}

func TestChildrenAndMappings(t *testing.T) {
	r := run(t, build(t, "odd"))
	p := r.open()
	s := stop(t, p)
	fd, err := s.MemfdCreate("kprobes-test", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Mmap(0, procfs.PageSize, unix.PROT_READ, unix.MAP_SHARED, -1, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("mmap of no file: %v", err)
	}
	f, err := p.OpenFD(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(procfs.PageSize); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Mmap(0, procfs.PageSize, unix.PROT_READ, unix.MAP_SHARED, fd, 0); err != nil {
		t.Fatal(err)
	}
	release(t, s)
	child, err := strconv.Atoi(r.Ask("fork"))
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Children(); err != nil || len(got) != 1 || got[0] != child {
		t.Errorf("children %v, %v, want %d", got, err, child)
	}
	if got, err := p.Mapping(FileID(&st)); err != nil || len(got) != 1 || got[0] != child {
		t.Errorf("processes with the mapping: %v, %v, want %d", got, err, child)
	}
}

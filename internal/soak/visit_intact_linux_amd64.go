package soak

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// codeMap is an executable mapping of a file.
type codeMap struct {
	from, to, off uint64
	path          string
}

// codeMaps lists the executable private mappings of files in a process; none, if it has ended.
func codeMaps(pid int) []codeMap {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil
	}
	var out []codeMap
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if len(f) != 6 || f[1] != "r-xp" || !strings.HasPrefix(f[5], "/") {
			continue
		}
		low, high, _ := strings.Cut(f[0], "-")
		from, err1 := strconv.ParseUint(low, 16, 64)
		to, err2 := strconv.ParseUint(high, 16, 64)
		off, err3 := strconv.ParseUint(f[2], 16, 64)
		if err1 == nil && err2 == nil && err3 == nil {
			out = append(out, codeMap{from, to, off, f[5]})
		}
	}
	return out
}

// intact compares the code that a process maps from ELF files with these. A process that has ended is
// taken as intact: its output tells.
func intact(pid int) error {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil
	}
	defer mem.Close()
	for _, m := range codeMaps(pid) {
		if err := m.same(mem); err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
	}
	return nil
}

// same compares a mapping with its file.
func (m *codeMap) same(mem *os.File) error {
	got := make([]byte, m.to-m.from)
	if _, err := mem.ReadAt(got, int64(m.from)); err != nil {
		return nil // it has ended, or has unmapped it
	}
	file, err := os.Open(m.path)
	if err != nil {
		return nil
	}
	defer file.Close()
	magic := make([]byte, 4)
	if _, err := file.ReadAt(magic, 0); err != nil || string(magic) != elf.ELFMAG {
		return nil // a Lisp's heap, which it changes
	}
	want := make([]byte, m.to-m.from)
	n, _ := file.ReadAt(want, int64(m.off)) // the last page may be longer than the file
	if i := firstOther(got[:n], want[:n]); i >= 0 {
		return fmt.Errorf("the code at 0x%x (%s+0x%x) is % x, in the file % x", m.from+uint64(i), m.path, m.off+uint64(i), got[i:min(n, i+8)], want[i:min(n, i+8)])
	}
	return nil
}

// firstOther is where two slices of one length begin to differ, or -1.
func firstOther(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

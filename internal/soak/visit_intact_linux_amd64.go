package soak

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// intact compares the code that a process maps from files with these. A process that has ended is taken
// as intact: its output tells.
func intact(pid int) error {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if len(f) != 6 || f[1] != "r-xp" || !strings.HasPrefix(f[5], "/") {
			continue
		}
		if err := sameCode(mem, f); err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
	}
	return nil
}

// sameCode compares a mapping, a line of /proc/PID/maps, with its file.
func sameCode(mem *os.File, f []string) error {
	low, high, _ := strings.Cut(f[0], "-")
	from, err1 := strconv.ParseUint(low, 16, 64)
	to, err2 := strconv.ParseUint(high, 16, 64)
	off, err3 := strconv.ParseUint(f[2], 16, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return fmt.Errorf("map %q is not understood", f)
	}
	got := make([]byte, to-from)
	if _, err := mem.ReadAt(got, int64(from)); err != nil {
		return nil // it has ended, or has unmapped it
	}
	file, err := os.Open(f[5])
	if err != nil {
		return nil
	}
	defer file.Close()
	want := make([]byte, to-from)
	n, _ := file.ReadAt(want, int64(off)) // the last page may be longer than the file
	if i := firstOther(got[:n], want[:n]); i >= 0 {
		return fmt.Errorf("the code at 0x%x (%s+0x%x) is % x, in the file % x", from+uint64(i), f[5], off+uint64(i), got[i:min(n, i+8)], want[i:min(n, i+8)])
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

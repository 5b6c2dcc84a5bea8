package trace

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMask reads masks of CPUs as the kernel does, and shows them as it does.
func TestMask(t *testing.T) {
	for _, c := range []struct {
		in   string
		cpus int
		want string
		err  error
	}{
		{"1\n", 1, "1", nil},
		{"0", 1, "0", nil},
		{"", 2, "0", nil},
		{"0003", 2, "3", nil},
		{" a ", 4, "a", nil},
		{"ff", 9, "0ff", nil},
		{"1,80000001", 33, "1,80000001", nil},
		{"ffffffff", 64, "00000000,ffffffff", nil},
		{"0,0,F", 64, "00000000,0000000f", nil},
		{"x", 2, "", unix.EINVAL},
		{"0x1", 2, "", unix.EINVAL},
		{"-1", 2, "", unix.EINVAL},
		{"4", 2, "", unix.EOVERFLOW},
		{"1,0", 2, "", unix.EOVERFLOW},
		{"000000001", 2, "", unix.EOVERFLOW},
	} {
		skip, err := parseMask(c.in, c.cpus)
		if !errors.Is(err, c.err) || err != nil && c.err == nil {
			t.Errorf("%q of %d CPUs: %v, want %v", c.in, c.cpus, err, c.err)
			continue
		}
		if err != nil {
			continue
		}
		if got := maskText(func(cpu int) bool { return !skip[cpu] }, c.cpus); got != c.want {
			t.Errorf("%q of %d CPUs: %s, want %s", c.in, c.cpus, got, c.want)
		}
	}
}

// TestCommsFor has how many names Linux 6.12 keeps where so many are asked for.
func TestCommsFor(t *testing.T) {
	for most, want := range map[int]int{1: 6552, 128: 6552, 256: 6552, 8190: 6552, 8191: 19659, 1 << 15: 45874} {
		if got := commsFor(most); got != want {
			t.Errorf("of %d threads asked for, %d are kept, want %d", most, got, want)
		}
	}
}

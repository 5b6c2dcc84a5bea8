package qemu

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseRoots(t *testing.T) {
	const text = "CPU#0\r\nRAX=0000000000000000\r\nCR0=80050033 CR2=00007f3f CR3=0000000002a0c000 CR4=000006f0\r\nDR0=0\r\n" +
		"\r\nCPU#1\r\nCR0=60000010 CR2=00000000 CR3=00000000 CR4=00000000\r\nXMM00=00\r\n"
	if got, err := parseRoots(text); err != nil || !slices.Equal(got, []uint64{0x2a0c000, 0}) {
		t.Errorf("%#x, %v", got, err)
	}
	for _, bad := range []string{"", "unknown command: 'info registers'\r\n", "CR3=", "CR3=12345678901234567"} {
		if got, err := parseRoots(bad); !errors.Is(err, unix.EPROTO) {
			t.Errorf("%q: %#x, %v", bad, got, err)
		}
	}
}

package testguest

import (
	"testing"

	"kprobes.dev/kprobes/internal/guestkit"
)

// Image gives a bootable kernel and a static busybox. The first call of a machine fetches
// them, which takes seconds; any number of processes may ask at once.
func Image(tb testing.TB) (kernel, box string) {
	tb.Helper()
	kernel, err := guestkit.Kernel()
	if err == nil {
		box, err = guestkit.Busybox()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return kernel, box
}

// Unpacked gives the folder that a package of Debian's is unpacked in.
func Unpacked(name string) (string, error) { return guestkit.Unpacked(name) }

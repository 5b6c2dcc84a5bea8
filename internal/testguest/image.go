package testguest

import (
	"testing"

	"kprobes.dev/kprobes/internal/guestkit"
)

// Image gives a bootable kernel and a static busybox. The first call of a machine fetches
// them, which takes seconds; any number of processes may ask at once.
func Image(tb testing.TB) (kernel, box string) { return image(tb, guestkit.Cloud) }

func image(tb testing.TB, b guestkit.Build) (kernel, box string) {
	tb.Helper()
	kernel, err := guestkit.KernelOf(b)
	if err == nil {
		box, err = guestkit.Busybox()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return kernel, box
}

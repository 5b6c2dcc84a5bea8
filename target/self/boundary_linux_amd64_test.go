//go:build !race

// Atomic handlers are not to be had under the race detector.

package self_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBoundaries: everything that a thread has is intact around probed instructions of all
// kinds, whatever stands there: events, handlers by jumps and by breakpoints, such that leave,
// and return probes. The program compares bit by bit.
func TestBoundaries(t *testing.T) {
	program := filepath.Join(t.TempDir(), "boundary")
	if msg, err := exec.Command("go", "build", "-o", program, "./testdata/boundary").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, msg)
	}
	out, err := exec.Command(program).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "ok ") {
		t.Errorf("%v\n%.8000s", err, out)
	}
}

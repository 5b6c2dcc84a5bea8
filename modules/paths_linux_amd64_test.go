package modules_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// TestChangedPath has a handler return in the place of the function.
func TestChangedPath(t *testing.T) {
	table := own(t)
	m := insert(t, table, "answers")
	end := collect()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 5000 {
				want := 2 * i
				if i%2 == 1 {
					want = 42
				}
				if n := Sum(i, i); n != want {
					t.Errorf("Sum(%d, %d) = %d, want %d", i, i, n, want)
					return
				}
			}
		})
	}
	wg.Wait()
	end()
	remove(t, table, m)
	call(t, 1, 100)
}

// TestCgo loads a module with a jprobe into a program with C functions, which probes itself.
func TestCgo(t *testing.T) {
	text, err := os.ReadFile("testdata/jumps.c")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, module := filepath.Join(dir, "cgo"), filepath.Join(dir, "jumps.o")
	if err := os.WriteFile(module, source(t, "jumps", string(text)), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", program, "./testdata/cgo")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(program, module).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var n int
	if _, err := fmt.Sscan(string(out), &n); err != nil || n == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	if want := fmt.Sprintf("%d\ncalls=%d returned=%d wrong=0 missed=0\n", n, n, n); string(out) != want {
		t.Errorf("%s, want %s", out, want)
	}
}

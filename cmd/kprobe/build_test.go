package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

var (
	buildDir string // where the command is; "": it has not been built
	// built is the command, which is built once for all tests: the test binary itself does not know its verbs.
	built = sync.OnceValues(func() (path string, err error) {
		if buildDir, err = os.MkdirTemp("", "kprobe-test-"); err != nil {
			return "", err
		}
		path = filepath.Join(buildDir, "kprobe")
		if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build: %w: %s", err, out)
		}
		return path, nil
	})
)

// build gives a copy of the command of its own: kernel uprobes act on every process of a file.
func build(t testing.TB) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return testprog.Copy(t, path)
}

func TestMain(m *testing.M) {
	status := m.Run()
	if buildDir != "" {
		_ = os.RemoveAll(buildDir)
	}
	os.Exit(status)
}

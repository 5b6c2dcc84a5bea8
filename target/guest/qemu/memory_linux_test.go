package qemu

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLockOfGuardian: a lock that a process has left to another, as a killed tracer does to its
// guardian, is waited for longer than that of a process that lives.
func TestLockOfGuardian(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	// flock(1) takes the lock on the shell's file and ends; sleep keeps the file open.
	heir := exec.Command("sh", "-c", `exec 9>"$0"; flock 9 || exit 1; echo taken; exec sleep 600`, path)
	out, err := heir.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := heir.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = heir.Process.Kill()
		_ = heir.Wait()
	}()
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := lock(f, 0, 100*time.Millisecond); !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), "guardian of process") {
		t.Errorf("for a moment: %v", err)
	}
	go func() {
		time.Sleep(300 * time.Millisecond)
		_ = heir.Process.Kill()
	}()
	if err := lock(f, 0, time.Hour); err != nil {
		t.Error(err)
	}
	g, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := lock(g, 0, time.Hour); !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), ", held by process ") {
		t.Errorf("held by a process that lives: %v", err)
	}
}

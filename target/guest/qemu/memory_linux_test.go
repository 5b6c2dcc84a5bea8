package qemu

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"
)

// TestLockOfGuardian: a lock that a process has left to another, as a killed tracer does to its
// guardian, is waited for longer than that of a process that lives; also in a pid namespace, and in one
// whose /proc is that of the namespace outside.
func TestLockOfGuardian(t *testing.T) {
	t.Run("here", lockOfGuardian)
	for name, proc := range map[string][]string{"in a pid namespace": {"--mount-proc"}, "in a pid namespace without a proc of its own": nil} {
		t.Run(name, func(t *testing.T) {
			args := slices.Concat([]string{"--pid", "--fork", "--kill-child"}, proc, []string{os.Args[0], "-test.v", "-test.run=^TestLockOfGuardian$/^here$"})
			out, err := exec.Command("unshare", args...).CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte("--- PASS: TestLockOfGuardian/here")) {
				t.Errorf("unshare %q: %v\n%s", args, err, out)
			}
		})
	}
}

func lockOfGuardian(t *testing.T) {
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
	const moment = 100 * time.Millisecond
	start := time.Now()
	refused(t, lock(f, 0, moment), `held by process \d+, the guardian of one that has ended: `)
	if d := time.Since(start); d < moment {
		t.Errorf("refused after %v", d)
	}
	locked := make(chan error, 1)
	go func() { locked <- lock(f, 0, time.Hour) }()
	if err := heir.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	g, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	self, err := os.Readlink("/proc/self") // not Getpid where /proc is another namespace's
	if err != nil {
		t.Fatal(err)
	}
	refused(t, lock(g, 0, time.Hour), "held by process "+self+": ")
}

// refused holds the refusal of a lock to what it is to say of the holder.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	if !errors.Is(err, ErrHeld) || !regexp.MustCompile(want).MatchString(err.Error()) {
		t.Errorf("refused with %v; want %s", err, want)
	}
}

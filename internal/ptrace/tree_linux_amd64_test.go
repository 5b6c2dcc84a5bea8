package ptrace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// tree runs a shell script in a tree, and gives its output, its status, and how many processes of a program were met.
func tree(t *testing.T, script, program string) (out string, status unix.WaitStatus, met int) {
	t.Helper()
	r, o, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var want unix.Stat_t
	if err := unix.Stat(program, &want); err != nil {
		t.Fatal(err)
	}
	x, err := StartTree(&Command{Path: "/bin/bash", Args: []string{"-c", script}, Stdout: o, Stderr: o}, TreeOptions{
		Takes: func(pid int) bool {
			var st unix.Stat_t
			return unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st) == nil && st.Ino == want.Ino && st.Dev == want.Dev
		},
		Met: func(pid int, m Met, err error) {
			if met++; err != nil || m.Begun {
				t.Errorf("process %d: begun %v: %v", pid, m.Begun, err)
				return
			}
			if err := errors.Join(m.Stopped.Release(), m.Process.Close()); err != nil {
				t.Error(err)
			}
		},
		Loaders: new(Loaders),
	})
	if err != nil {
		t.Fatal(err)
	}
	o.Close()
	var text []byte
	var read sync.WaitGroup
	read.Go(func() {
		text, _ = io.ReadAll(r)
	})
	status, err = x.Run()
	if err != nil {
		t.Fatal(err)
	}
	read.Wait()
	return string(text), status, met
}

// A script does under the tracer what it does without one, and every process of the program is met before its first instruction.
//
// The shell that stops a job hides its standard error: whether it reports there that the job has stopped depends on when the
// job does, with or without a tracer (41 of 3,000 runs without one).
func TestTree(t *testing.T) {
	for _, c := range []struct {
		name, script string
		met          int
	}{
		{"many", "for i in $(seq 100); do /bin/true; done; exit 3", 100},
		{"itself", "exec /bin/true", 1},
		{"jobs", "for i in $(seq 20); do (/bin/true; /bin/true) & done; wait; echo ok", 40},
		{"stop", "exec 2>/dev/null; set -m; sleep 100 & kill -STOP %1; while [ -n \"$(jobs -r)\" ]; do :; done; jobs; kill -CONT %1; kill -TERM %1; wait %1; echo $?", 0},
		{"trap", "trap 'echo usr1; exit 5' USR1; kill -USR1 $$; sleep 1", 0},
		{"none", "/no/such 2>/dev/null; exit $?", 0},
		{"killed", "kill -KILL $$", 0},
		{"child killed", "sleep 100 & kill -KILL $!; wait $! 2>/dev/null; echo $?; /bin/true", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, err := exec.Command("/bin/bash", "-c", c.script).CombinedOutput()
			var ended *exec.ExitError
			var code unix.WaitStatus
			if errors.As(err, &ended) {
				code = unix.WaitStatus(ended.Sys().(syscall.WaitStatus))
			}
			out, status, met := tree(t, c.script, "/bin/true")
			if out != string(want) || status != code || met != c.met {
				t.Errorf("output %q, status %#x, want %q and %#x; %d met, want %d", out, status, want, code, met, c.met)
			}
		})
	}
	met := 0
	x, err := StartTree(&Command{Path: "/bin/true"}, TreeOptions{Takes: func(int) bool { return true }, Loaders: new(Loaders), Met: func(_ int, m Met, err error) {
		met++
		if err = errors.Join(err, m.Stopped.Release(), m.Process.Close()); err != nil || m.Begun {
			t.Error(err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := x.Run(); err != nil || status != 0 || met != 1 {
		t.Errorf("the program itself: %v, status %#x, %d met", err, status, met)
	}
}

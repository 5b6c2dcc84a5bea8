package guest

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHolderAlive: a tracer that has ended does not run, also while nobody has waited for it.
func TestHolderAlive(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	since, err := startTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	l := &Leftover{Holder: uint64(pid), Since: since}
	if other := (&Leftover{Holder: uint64(pid), Since: since + 1}); !l.Alive() || other.Alive() {
		t.Errorf("alive: %v, one with its number: %v", l.Alive(), other.Alive())
	}
	in.Close()
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if l.Alive() {
		t.Error("it has ended, and is alive")
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if l.Alive() {
		t.Error("it is gone, and is alive")
	}
}

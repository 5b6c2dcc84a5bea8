package procfs

import (
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that runs, or is stopped, does not end. One that was killed is told so at once, and is waited for, also while nobody
// takes its status.
func TestAwaitEnd(t *testing.T) {
	for range 50 {
		cmd := exec.Command("cat")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := cmd.Process.Pid
		if AwaitEnd(pid) {
			t.Error("it runs, and has ended")
		}
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		var si unix.Siginfo
		if err := unix.Waitid(unix.P_PID, pid, &si, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
		if AwaitEnd(pid) {
			t.Error("it is stopped, and has ended")
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if !AwaitEnd(pid) {
			t.Error("it was killed, and runs")
		}
		_ = cmd.Wait() // killed
		in.Close()
		if !AwaitEnd(pid) {
			t.Error("it is gone, and runs")
		}
	}
}

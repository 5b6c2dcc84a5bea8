package ptrace

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// A process that has ended before it could be met is no process that we may not trace.
func TestMeetExecEnded(t *testing.T) {
	cmd := exec.Command("/bin/true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	allowed := false
	for _, when := range []string{"before", "after"} {
		if _, err := MeetExec(cmd.Process.Pid, cmd.Process.Pid, new(Loaders), func() { allowed = true }); !errors.Is(err, ErrNoProcess) || !allowed {
			t.Errorf("%s it was waited for: %v, allowed %v", when, err, allowed)
		}
		_ = cmd.Wait()
	}
}

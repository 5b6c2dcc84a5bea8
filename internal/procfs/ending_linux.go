package procfs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// endTime bounds how long a process may take to end that has begun to: the kernel gives its memory back first, and what it holds last.
const endTime = 10 * time.Second

// AwaitEnd waits for the end of a process that is about to end, as one is for a moment after SIGKILL. ended is false if it runs on, or does
// not come to its end within ten seconds.
func AwaitEnd(pid int) (ended bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(endTime); Ending(pid); {
		n, err := unix.Poll(fds, int(max(time.Until(end).Milliseconds(), 0)))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
	n, _ := unix.Poll(fds, 0)
	return n > 0
}

// Ending says whether a process has been killed, or ends by itself.
func Ending(pid int) bool {
	dir := fmt.Sprintf("/proc/%d/", pid)
	b, err := os.ReadFile(dir + "stat")
	if err != nil {
		return false
	}
	s, err := ParseStat(string(b))
	if err != nil || s.Flags&FlagExiting != 0 || s.State == 'Z' || s.State == 'X' {
		return err == nil
	}
	if killed(string(b)) {
		return true
	}
	b, err = os.ReadFile(dir + "status")
	if err != nil {
		return false
	}
	st, err := ParseStatus(string(b))
	return err == nil && st.SigPnd>>(unix.SIGKILL-1)&1 != 0
}

// killed says whether the last field of a stat file, the status that waitpid(2) is to tell, is that of a process which a signal ends. Linux has it there
// from the signal on (fs/proc/array.c, 6.18); of a process that is stopped it is the signal that stops it. Where a kernel has 0 there, a process is taken for
// one that runs between the moment when it has taken the signal and the one in which it begins to end.
func killed(stat string) bool {
	stat = strings.TrimSpace(stat)
	status, err := strconv.ParseUint(stat[strings.LastIndexByte(stat, ' ')+1:], 10, 32)
	if err != nil || status == 0 {
		return false
	}
	switch unix.Signal(status) {
	case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		return false
	}
	return true
}

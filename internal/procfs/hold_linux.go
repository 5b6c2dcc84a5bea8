package procfs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// HoldFile is the file of /proc/PID (proc(5)) whose lock means that an engine holds the process: engines agree by it on
// who may patch a process, one at a time.
//
// The holder has the flock(2) of a file of /proc/PID that every process has, and that only its
// owner and root can open. The kernel knows who has the lock, and gives it up when the holder ends.
// So there is nothing to clean up, and nothing for others to squat on.
//
// Two /proc mounts of different pid namespaces have different files for one process, so that two
// engines there do not see each other's lock. So each of them also maps a memory file of its own name
// into the process, first, and then looks for that of the other: one of them sees the other at
// least, and goes.
const HoldFile = "personality"

// Names of the memory files that tell of an engine in a process.
const (
	// TracerMap is what another process's engine maps before its first patch, and unmaps last. It
	// outlives an engine that is killed. Tracers of all versions know the control block by this name.
	TracerMap = "kprobes:home"
	// OwnMap is what a process's own engine maps: it is there for as long as code of the process may be
	// patched by it, and goes with the program. A fork child has it too, with the patches.
	OwnMap = "kprobes-self:engine"
)

// ErrTaken says that another engine holds the process.
var ErrTaken = errors.New("another engine holds the process")

// A lock that cannot be had and that nobody is told to have is asked for again: somebody has only
// looked who holds it (HeldBy), or has given it up meanwhile.
const (
	holdTries = 20
	holdEvery = time.Millisecond
)

// Hold locks f, a file of that name that the caller has opened, for as long as f is open. The error
// is ErrTaken if another process, or another open file of this one, has the lock; then pid is that
// process, 0 if it lives in a pid namespace that is not seen from here.
func Hold(f *os.File) (pid int, err error) {
	for range holdTries {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return 0, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return 0, err
		}
		if pid, err = exclusive(f); err != nil || pid != 0 {
			return pid, errors.Join(ErrTaken, err)
		}
		time.Sleep(holdEvery)
	}
	return 0, ErrTaken
}

// ReleaseHold gives the lock up and closes f. A process that was forked meanwhile shares the open file:
// closing it alone would leave the lock to that process.
func ReleaseHold(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}

// HeldBy says who has the lock of f: held is false if nobody has. pid as Hold gives it.
func HeldBy(f *os.File) (pid int, held bool, err error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return 0, false, nil
	}
	pid, err = exclusive(f)
	return pid, true, err
}

// exclusive asks the kernel's list of locks for the exclusive one on f; 0: none is listed.
func exclusive(f *os.File) (pid int, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return 0, err
	}
	defer locks.Close()
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	sc := bufio.NewScanner(locks)
	for sc.Scan() {
		// 1: FLOCK  ADVISORY  WRITE 1234 00:15:5678 0 EOF
		w := strings.Fields(sc.Text())
		if len(w) < 6 || w[1] != "FLOCK" || w[3] != "WRITE" || w[5] != want {
			continue
		}
		if pid, err = strconv.Atoi(w[4]); err != nil {
			return 0, fmt.Errorf("/proc/locks: %w", err)
		}
		return max(pid, 0), nil
	}
	return 0, sc.Err()
}

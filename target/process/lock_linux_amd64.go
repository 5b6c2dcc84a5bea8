package process

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

// lockFile is the file of /proc/PID whose lock means that an engine holds the process.
// It is there for every process, only its owner and root can open it (proc(5)), and it goes
// with the process. The lock goes with its holder. So there is nothing to clean up, and
// nothing for others to squat on.
const lockFile = "personality"

// Lock makes the caller the holder of the process until Unlock, Close or its own end. The
// error is a *HeldError if another is. It holds also through an exec of the process.
// Holders see each other if they look at the same /proc mount, or bind mounts of it.
func (p *Proc) Lock() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lock != nil {
		return nil
	}
	f, err := p.openAt(lockFile, unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("process %d: lock: %w", p.pid, p.gone(err))
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		p.lock = f
		return nil
	}
	defer f.Close()
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("process %d: lock: %w", p.pid, err)
	}
	holder, err := holderOf(f)
	if err != nil {
		return fmt.Errorf("process %d: %w: holder: %w", p.pid, ErrBusy, err)
	}
	return &HeldError{PID: p.pid, Holder: *holder}
}

// Unlock gives the process up.
func (p *Proc) Unlock() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lock != nil {
		p.lock.Close()
		p.lock = nil
	}
}

// Holder says who holds the process, ourselves included; nil if nobody does.
func (p *Proc) Holder() (*Holder, error) {
	f, err := p.openAt(lockFile, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("process %d: lock: %w", p.pid, p.gone(err))
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return nil, nil
	}
	return holderOf(f)
}

// holderOf asks the kernel's list of locks for the one on f.
func holderOf(f *os.File) (*Holder, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return nil, err
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
		pid, err := strconv.Atoi(w[4])
		if err != nil {
			return nil, fmt.Errorf("/proc/locks: %w", err)
		}
		return NewHolder(pid), nil
	}
	return &Holder{}, sc.Err() // of a pid namespace that is not seen from here
}

// NewHolder describes a process as a holder. What the kernel does not tell stays zero.
func NewHolder(pid int) *Holder {
	h := &Holder{PID: pid}
	if pid <= 0 {
		h.PID = 0
		return h
	}
	dir := fmt.Sprintf("/proc/%d/", pid)
	if b, err := os.ReadFile(dir + "stat"); err == nil {
		if st, err := ParseStat(string(b)); err == nil {
			h.Comm, h.Start, h.Started = escape(st.Comm), st.Start, startedAt(st.Start)
		}
	}
	var ns unix.Stat_t
	if err := unix.Stat(dir+"ns/pid", &ns); err == nil {
		h.PIDNS = ns.Ino
	}
	return h
}

const clockTick = time.Second / 100 // USER_HZ, fixed on x86

// startedAt converts a start time in ticks since boot to the time of day.
func startedAt(ticks uint64) time.Time {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(up.Nano()) + time.Duration(ticks)*clockTick).Truncate(time.Second)
}

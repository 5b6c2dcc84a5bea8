package process

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/holder"
)

// Lock makes the caller the holder of the process until Unlock, Close or its own end. The
// error is a *HeldError if another is. It holds also through an exec of the process.
// Holders see each other if they look at the same /proc mount, or bind mounts of it.
func (p *Proc) Lock() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lock != nil {
		return nil
	}
	f, err := p.openAt(holder.File, unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("process %d: lock: %w", p.pid, p.gone(err))
	}
	pid, err := holder.Take(f)
	switch {
	case err == nil:
		p.lock = f
		return nil
	case errors.Is(err, holder.ErrTaken):
		err = &HeldError{PID: p.pid, Holder: *NewHolder(pid)}
	default:
		err = fmt.Errorf("process %d: lock: %w", p.pid, err)
	}
	return errors.Join(err, f.Close())
}

// Unlock gives the process up.
func (p *Proc) Unlock() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lock != nil {
		_ = holder.Release(p.lock) // an error of either step leaves no lock: the file is closed
		p.lock = nil
	}
}

// Holder says who holds the process, ourselves included; nil if nobody does.
func (p *Proc) Holder() (*Holder, error) {
	f, err := p.openAt(holder.File, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("process %d: lock: %w", p.pid, p.gone(err))
	}
	defer f.Close()
	pid, held, err := holder.Of(f)
	if err != nil || !held {
		return nil, err
	}
	return NewHolder(pid), nil
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

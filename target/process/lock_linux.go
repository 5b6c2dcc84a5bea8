package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// Lock makes the caller the holder of the process until Unlock, Close or its own end. The
// error is a *HeldError if another is, and does not end just now. It holds also through an exec of the process.
// Holders see each other if they look at the same /proc mount, or bind mounts of it.
func (p *Proc) Lock() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lock != nil {
		return nil
	}
	f, err := p.OpenAt(procfs.HoldFile, unix.O_RDONLY)
	if err != nil {
		return fmt.Errorf("process %d: lock: %w", p.PID(), p.Gone(err))
	}
	pid, err := procfs.Hold(f)
	if errors.Is(err, procfs.ErrTaken) && pid != 0 && procfs.AwaitEnd(pid) {
		pid, err = procfs.Hold(f)
	}
	switch {
	case err == nil:
		p.lock = f
		return nil
	case errors.Is(err, procfs.ErrTaken):
		err = &HeldError{PID: p.PID(), Holder: *procfs.NewHolder(pid)}
	default:
		err = fmt.Errorf("process %d: lock: %w", p.PID(), err)
	}
	return errors.Join(err, f.Close())
}

// Unlock gives the process up.
func (p *Proc) Unlock() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lock != nil {
		_ = procfs.ReleaseHold(p.lock) // an error of either step leaves no lock: the file is closed
		p.lock = nil
	}
}

// Holder says who holds the process, ourselves included; nil if nobody does.
func (p *Proc) Holder() (*procfs.Holder, error) { return holderOf(p.Process) }

func holderOf(p *ptrace.Process) (*procfs.Holder, error) {
	f, err := p.OpenAt(procfs.HoldFile, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("process %d: lock: %w", p.PID(), p.Gone(err))
	}
	defer f.Close()
	pid, held, err := procfs.HeldBy(f)
	if err != nil || !held {
		return nil, err
	}
	return procfs.NewHolder(pid), nil
}

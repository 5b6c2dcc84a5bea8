package qemu

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

const (
	// quitWait is how long QEMU may take to end when it is told to.
	quitWait = 10 * time.Second
	// endWait is how long it may take after a signal.
	endWait = 10 * time.Second
)

// End ends a QEMU that Start has started, also from another process, and removes what Start
// has made. One that has ended already is no error.
func End(spec Spec) error {
	if spec.Dir == "" {
		return errno.Errorf(unix.EINVAL, "stop of a guest: %s was not started by kprobe guest start: who started it ends it", spec)
	}
	r, err := readRecord(spec.Dir)
	if err != nil {
		return err
	}
	if err := r.end(); err != nil {
		return fmt.Errorf("stop of a guest: QEMU, process %d: %w", r.PID, err)
	}
	return r.remove(spec.Dir)
}

// runs says whether the recorded process runs; its id may be another's by now.
func (r *record) runs() bool {
	t, err := startOf(r.PID)
	return err == nil && t == r.Started
}

// end ends the process: by the monitor, or by signals where a tracer holds that.
func (r *record) end() error {
	if !r.runs() {
		return nil
	}
	if mon, err := dialMonitor(r.QMP, time.Second, func(string) {}); err == nil {
		err = mon.run("quit", nil, nil)
		ended := (err == nil || errors.Is(err, ErrGone)) && r.ended(quitWait)
		mon.close()
		if ended {
			return nil
		}
	}
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := r.signal(sig); err != nil {
			return err
		}
		if r.ended(endWait) {
			return nil
		}
	}
	return errno.Errorf(unix.EBUSY, "it does not end, %v after SIGKILL", endWait)
}

// signal sends a signal to the recorded process, and to no other: the descriptor keeps its
// id from being given away between the check and the signal.
func (r *record) signal(sig unix.Signal) error {
	fd, err := unix.PidfdOpen(r.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(fd)
	if !r.runs() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal %v: %w", sig, err)
	}
	return nil
}

// ended waits until the process has ended.
func (r *record) ended(wait time.Duration) bool {
	for end := time.Now().Add(wait); r.runs(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

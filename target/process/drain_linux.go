package process

import (
	"errors"
	"fmt"
	"time"

	"kprobes.dev/kprobes/internal/ptrace"
)

// Bounds of the wait for threads that are inside detours when everything goes. A thread whose registers are in our code leaves as soon as it runs, which takes long where
// many want to run, and each look keeps it from running: it is looked for less often after a while. One that may come back from a signal handler may stay for ever.
const (
	drainTries = 100
	drainWait  = 5 * time.Millisecond
	leaveWait  = 20 * time.Millisecond
	leaveTime  = 10 * time.Second
)

// ErrInDetour says that code stays mapped because a thread may still come back to it.
var ErrInDetour = errors.New("a thread may still return into a detour: its code stays mapped, and harms nothing")

// errLeaving is ErrInDetour where a thread's registers are in the code.
var errLeaving = fmt.Errorf("%w", ErrInDetour)

// drained does something again and again until no thread is in the way (ErrInDetour), or none leaves.
func drained(try func() error) error {
	for n, begun := 1, time.Now(); ; n++ {
		err := try()
		pause := drainWait
		switch {
		case !errors.Is(err, ErrInDetour):
			return err
		case n < drainTries:
		case errors.Is(err, errLeaving) && time.Since(begun) < leaveTime:
			pause = leaveWait
		default:
			return err
		}
		time.Sleep(pause)
	}
}

// anyInside is errLeaving if a thread's registers are in some code. Precondition: the world is stopped.
func anyInside(s *ptrace.Stopped, in func(pc uint64) bool) error {
	for _, th := range s.Everyone() {
		if in(th.ResumePC()) {
			return errLeaving
		}
	}
	return nil
}

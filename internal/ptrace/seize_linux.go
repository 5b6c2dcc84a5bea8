package ptrace

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// group is a process that shares the memory: the target itself, and others that were
// cloned with CLONE_VM and without CLONE_THREAD.
type group struct {
	pid int
	dir *os.File
}

// complete says whether every thread of every group is one that stands: the kernel counts them,
// which is a thousand times faster than to list them. Threads that stand neither end nor start
// others, so if the numbers agree nobody is missing.
func (s *Stopped) complete() bool {
	stand := map[*group]uint64{}
	for _, t := range s.known {
		if t != nil && (t.stopped || t.parked) {
			stand[t.g]++
		}
	}
	for _, g := range s.groups {
		var st unix.Stat_t
		if unix.Fstatat(int(g.dir.Fd()), "task", &st, 0) != nil || uint64(st.Nlink) != stand[g]+2 {
			return false // two links are the directory's own
		}
	}
	return true
}

// seizeNew attaches the threads that it sees for the first time.
func (s *Stopped) seizeNew() (fresh []*Thread, err error) {
	for _, g := range s.groups {
		tids, err := tasksIn(g.dir)
		if err != nil && g.pid == s.p.pid {
			return nil, s.p.Gone(err)
		}
		for _, tid := range tids {
			if _, ok := s.known[tid]; ok {
				continue
			}
			t, err := s.seize(g, tid)
			if err != nil {
				return nil, err
			}
			s.known[tid] = t
			if t != nil {
				fresh = append(fresh, t)
			}
		}
	}
	return fresh, nil
}

// seize attaches one thread; nil if it is not one that runs the program.
func (s *Stopped) seize(g *group, tid int) (*Thread, error) {
	// System call stops are reported as SIGTRAP|0x80, which is no signal: a tracer that
	// dies there cannot leave one behind for the thread.
	options := uintptr(unix.PTRACE_O_TRACESYSGOOD)
	if s.dies {
		options |= unix.PTRACE_O_EXITKILL
	}
	err := ptrace(unix.PTRACE_SEIZE, tid, 0, options)
	if err != nil {
		return nil, s.seizeError(g, tid, err)
	}
	if unix.Faccessat(int(g.dir.Fd()), "task/"+strconv.Itoa(tid), unix.F_OK, 0) != nil {
		// It ended before it was seized; its id may be another's by now.
		return nil, errMoved
	}
	return &Thread{TID: tid, TGID: g.pid, s: s, g: g}, nil
}

// interrupt tells threads to stop.
func interrupt(threads []*Thread) error {
	for _, t := range threads {
		if err := ptrace(unix.PTRACE_INTERRUPT, t.TID, 0, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("thread %d: PTRACE_INTERRUPT: %w", t.TID, err)
		}
		t.told = true
	}
	return nil
}

// seizeError finds out why a thread cannot be attached; nil if that does not matter.
func (s *Stopped) seizeError(g *group, tid int, cause error) error {
	if errors.Is(cause, unix.ESRCH) {
		return nil
	}
	st, err := s.p.statusIn(g, tid)
	if err != nil || st.State == "Z" || st.State == "X" {
		return nil // it has ended
	}
	if worker, err := s.p.worker(g, tid); err != nil || worker {
		return nil
	}
	if st.TracerPID != 0 {
		tracer := processOf(st.TracerPID)
		return fmt.Errorf("%w: thread %d is traced by process %d (%s)", ErrBusy, tid, tracer, comm(tracer))
	}
	if errors.Is(cause, unix.EPERM) {
		return fmt.Errorf("thread %d: %w", tid, s.p.denied("tracing it"))
	}
	return fmt.Errorf("thread %d: PTRACE_SEIZE: %w", tid, cause)
}

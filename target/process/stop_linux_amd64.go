package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// StopOptions tune a stop. Nil and zero fields mean the defaults.
type StopOptions struct {
	Deadline time.Duration // that one attempt may hold threads up before all are let go; default 100 ms
	Attempts int           // default 5, with growing pauses between them, 0.2 s together
}

func (o *StopOptions) withDefaults() StopOptions {
	var d StopOptions
	if o != nil {
		d = *o
	}
	if d.Deadline <= 0 {
		d.Deadline = 100 * time.Millisecond
	}
	if d.Attempts <= 0 {
		d.Attempts = 5
	}
	return d
}

// Stopped is a process whose threads all stand still, at a place where they would next
// run instructions of the program. It is for one goroutine.
type Stopped struct {
	p       *Proc
	t       *tracer
	since   time.Time
	threads []*Thread
	known   map[int]*Thread // by thread id; nil: seen, and not to be stopped
	groups  []*group
	scratch Range
	killed  bool // the tracer is gone: nothing can be asked any more
}

// group is a process that shares the memory: the target itself, and others that were
// cloned with CLONE_VM and without CLONE_THREAD.
type group struct {
	pid int
	dir *os.File
}

// Stop stops every thread of the process, and of processes that share its memory. If a
// thread does not arrive before the deadline (a vfork parent, an uninterruptible wait, a
// wait in a file system of our own) all are let go and another attempt follows; the last
// one's error is a *StuckError. Other errors: ErrBusy (another tracer, or stopped already),
// ErrExec, ErrNoProcess, ErrPermission, ErrChild (see Open).
//
// The caller must Release it; if the calling program ends before, the kernel does.
func (p *Proc) Stop(o *StopOptions) (*Stopped, error) {
	opt := o.withDefaults()
	if err := p.stoppable(); err != nil {
		return nil, err
	}
	if err := p.CheckImage(); err != nil {
		return nil, err
	}
	p.findGadgets() // reads files and memory: not while the process waits
	for n := 1; ; n++ {
		s, err := p.attempt(opt.Deadline)
		if err == nil {
			return s, nil
		}
		var stuck *StuckError
		if errors.As(err, &stuck) {
			stuck.Attempts = n
		} else if !errors.Is(err, errMoved) {
			return nil, err
		}
		if n == opt.Attempts {
			return nil, err
		}
		time.Sleep(time.Duration(n*n) * 6 * time.Millisecond)
	}
}

// errMoved: a thread id changed hands in the middle; the attempt was given up.
var errMoved = errors.New("threads changed while they were stopped")

func (p *Proc) attempt(deadline time.Duration) (*Stopped, error) {
	s := &Stopped{p: p, known: make(map[int]*Thread)}
	if err := p.begin(s); err != nil {
		return nil, err
	}
	s.t = newTracer()
	s.groups = []*group{{p.pid, p.dir}}
	err := s.t.do(func() error { return s.stopAll(deadline) })
	if err == nil {
		err = p.CheckImage()
	}
	if err != nil {
		s.t.do(s.letGo)
		s.abandon()
		return nil, fmt.Errorf("stop of %w", err)
	}
	return s, nil
}

// lingerTime is how long threads that were told to stop, and need not any more, are waited
// for; lingerD how long those of them that sleep uninterruptibly.
const (
	lingerTime = 5 * time.Second
	lingerD    = 100 * time.Millisecond
)

// letGo lets every thread go on after an attempt that failed. Those that have not arrived
// yet have been told to stop and may be on their way out of a system call with EINTR: each
// is let go when it arrives and that is undone, while the others run already.
func (s *Stopped) letGo() error {
	var pending []*Thread
	for _, t := range s.known {
		switch {
		case t == nil:
		case t.stopped:
			t.release() // if that fails it has ended
		default:
			pending = append(pending, t)
		}
	}
	now := time.Now()
	end, look := now.Add(lingerTime), now.Add(lingerD)
	for n := 0; len(pending) > 0; n++ {
		pending = slices.DeleteFunc(pending, func(t *Thread) bool {
			done, err := t.arrive()
			if done && t.stopped {
				t.release()
			}
			return done || err != nil
		})
		if pause(n, end) != nil {
			break
		}
		if time.Now().After(look) {
			look = time.Now().Add(lingerD)
			pending = slices.DeleteFunc(s.withoutWorkers(pending), func(t *Thread) bool {
				st, err := t.Status()
				return err != nil || st.State == "D"
			})
		}
	}
	return nil
}

// begin makes s the one stop of the process.
func (p *Proc) begin(s *Stopped) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return fmt.Errorf("process %d: %w: closed", p.pid, ErrReleased)
	case p.stop != nil:
		return fmt.Errorf("process %d: %w: it is stopped already", p.pid, ErrBusy)
	}
	p.stop = s
	return nil
}

// abandon ends the tracer, and with it every attachment.
func (s *Stopped) abandon() {
	s.killed = true
	s.t.end()
	for _, g := range s.groups[1:] {
		g.dir.Close()
	}
	s.p.mu.Lock()
	s.p.stop = nil
	s.p.mu.Unlock()
}

// stopAll goes on until a look at all threads, taken while all that are known stand still,
// finds no other: then nobody is left who could start one.
func (s *Stopped) stopAll(d time.Duration) error {
	s.since = time.Now()
	deadline := s.since.Add(d)
	for {
		fresh, err := s.seizeNew()
		if err == nil {
			err = s.awaitAll(fresh, deadline, d)
		}
		if err != nil {
			return fmt.Errorf("process %d: %w", s.p.pid, err)
		}
		if len(fresh) > 0 {
			continue
		}
		more, err := s.findSharers()
		if err != nil {
			return fmt.Errorf("process %d: %w", s.p.pid, err)
		}
		if !more {
			break
		}
	}
	for tid, t := range s.known {
		if t != nil && t.stopped {
			s.threads = append(s.threads, t)
		} else {
			delete(s.known, tid)
		}
	}
	if len(s.threads) == 0 {
		return fmt.Errorf("process %d: %w", s.p.pid, ErrNoProcess)
	}
	sortThreads(s.threads)
	return nil
}

// seizeNew attaches the threads that it sees for the first time and tells them to stop.
func (s *Stopped) seizeNew() (fresh []*Thread, err error) {
	for _, g := range s.groups {
		tids, err := tasksIn(g.dir)
		if err != nil && g.pid == s.p.pid {
			return nil, s.p.gone(err)
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
	err := ptrace(unix.PTRACE_SEIZE, tid, 0, unix.PTRACE_O_TRACESYSGOOD)
	if err != nil {
		return nil, s.seizeError(g, tid, err)
	}
	if unix.Faccessat(int(g.dir.Fd()), fmt.Sprintf("task/%d", tid), unix.F_OK, 0) != nil {
		// It ended before it was seized; its id may be another's by now.
		return nil, errMoved
	}
	if err := ptrace(unix.PTRACE_INTERRUPT, tid, 0, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("thread %d: PTRACE_INTERRUPT: %w", tid, err)
	}
	return &Thread{TID: tid, TGID: g.pid, s: s, g: g}, nil
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

// awaitAll waits until every one of the threads has stopped or ended.
func (s *Stopped) awaitAll(pending []*Thread, deadline time.Time, d time.Duration) error {
	pending = append([]*Thread(nil), pending...)
	for n := 0; len(pending) > 0; n++ {
		left := pending[:0]
		for _, t := range pending {
			done, err := t.arrive()
			if err != nil {
				return fmt.Errorf("thread %d: %w", t.TID, err)
			}
			if !done {
				left = append(left, t)
			}
		}
		if len(left) < len(pending) {
			n = 0
		}
		pending = left
		if len(pending) > 0 && pause(n, deadline) != nil || time.Now().After(deadline) {
			pending = s.withoutWorkers(pending)
			if len(pending) > 0 {
				return s.stuck(pending, d)
			}
		}
	}
	return nil
}

// withoutWorkers drops threads that never run the program: those that have ended and stay
// as zombies, and the kernel's own in a user process (io_uring).
func (s *Stopped) withoutWorkers(pending []*Thread) (left []*Thread) {
	for _, t := range pending {
		st, err := s.p.statusIn(t.g, t.TID)
		if err != nil || st.State == "Z" || st.State == "X" {
			continue
		}
		if worker, err := s.p.worker(t.g, t.TID); err != nil || worker {
			continue
		}
		left = append(left, t)
	}
	return left
}

const stuckNamed = 4

func (s *Stopped) stuck(pending []*Thread, d time.Duration) error {
	e := &StuckError{PID: s.p.pid, Deadline: d}
	for _, t := range pending {
		if len(e.Threads) == stuckNamed {
			e.More = len(pending) - stuckNamed
			break
		}
		e.Threads = append(e.Threads, s.p.describe(t.g, t.TID))
	}
	return e
}

// Threads gives the stopped threads in order of their ids, those of processes that share
// the memory after the target's own.
func (s *Stopped) Threads() []*Thread { return s.threads }

// Since is when the first thread was told to stop.
func (s *Stopped) Since() time.Time { return s.since }

// Proc is the process that is stopped.
func (s *Stopped) Proc() *Proc { return s.p }

// Do runs f on the thread that ptrace requests come from. Every method of Stopped and
// Thread goes there by itself; many calls in a row are faster within one Do.
func (s *Stopped) Do(f func() error) error {
	if s.killed {
		return fmt.Errorf("process %d: %w", s.p.pid, ErrReleased)
	}
	return s.t.do(f)
}

// Release lets all threads go on and detaches from them. Whatever was written while they
// stood still, they fetch it as instructions: each returns to the program by IRET, which
// serialises the processor (SDM 3A 10.3), not by SYSRET, which does not. An error means
// that a thread has ended or been lost meanwhile; all others run.
func (s *Stopped) Release() error {
	var errs []error
	err := s.Do(func() error {
		for _, t := range s.threads {
			if err := t.release(); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("thread %d: %w", t.TID, err))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.abandon()
	if len(errs) > 0 {
		return fmt.Errorf("release of process %d: %w", s.p.pid, errors.Join(errs...))
	}
	return nil
}

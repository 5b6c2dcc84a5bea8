package ptrace

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

// StopOptions tune a stop. Nil and zero fields mean the defaults.
type StopOptions struct {
	// Deadline is how long one attempt holds threads up without another one arriving, before all
	// are let go; default 100 ms. However many there are, it ends after that and 50 us a thread.
	Deadline time.Duration
	Attempts int // default 9, with growing pauses between them, 1.2 s together: the kernel's own waits are longer on a busy machine
	// Early is called for threads that slept, once they stand and before those that run the program are stopped: for
	// questions about what only the thread itself can change.
	Early func(*Thread)
	// Dies has the kernel kill the process if the tracer ends before Release: one of ReleaseStopped, which has not run yet.
	Dies bool
}

// perThread is how much longer an attempt may take for each thread: several times what the kernel
// needs to schedule and stop one on a busy machine.
const perThread = 50 * time.Microsecond

func (o *StopOptions) withDefaults() StopOptions {
	var d StopOptions
	if o != nil {
		d = *o
	}
	if d.Deadline <= 0 {
		d.Deadline = 100 * time.Millisecond
	}
	if d.Attempts <= 0 {
		d.Attempts = 9
	}
	return d
}

// Stopped is a process whose threads all stand still, at a place where they would next
// run instructions of the program. It is for one goroutine.
type Stopped struct {
	p       *Process
	t       *tracer
	since   time.Time
	threads []*Thread
	parked  []*Thread       // see park
	known   map[int]*Thread // by thread id; nil: seen, and not to be stopped
	groups  []*group
	maps    []procfs.Map // of the stopped process, see Maps; nil: to be read
	files   []procfs.Map // see FileMaps; nil: to be asked for
	query   *os.File
	asked   bool // for query
	scratch interval.Range
	apart   bool          // memory is read range by range: no system call that reads several is permitted
	early   func(*Thread) // see StopOptions
	dies    bool          // see StopOptions
	killed  bool          // the tracer is gone: nothing can be asked any more
}

// Stop stops every thread of the process, and of processes that share its memory. If a
// thread does not arrive before the deadline (a vfork parent, an uninterruptible wait, a
// wait in a file system of our own) all are let go and another attempt follows; the last
// one's error is a *StuckError. Other errors: ErrBusy (another tracer, or stopped already),
// ErrExec, ErrNoProcess, ErrPermission, ErrChild (see Open).
//
// The caller must Release it; if the calling program ends before, the kernel does.
func (p *Process) Stop(o *StopOptions) (*Stopped, error) {
	opt := o.withDefaults()
	if err := p.Stoppable(); err != nil {
		return nil, err
	}
	if err := p.CheckImage(); err != nil {
		return nil, err
	}
	p.findGadgets() // reads files and memory: not while the process waits
	for n := 1; ; n++ {
		s, stall, err := p.attempt(opt)
		if err == nil {
			return s, nil
		}
		var stuck *StuckError
		if errors.As(err, &stuck) {
			stuck.Attempts = n
		} else if !errors.Is(err, errMoved) {
			return nil, fmt.Errorf("stop of %w", err)
		}
		if n == opt.Attempts {
			return nil, fmt.Errorf("stop of %w", err)
		}
		// The program runs for much longer than it was held up.
		time.Sleep(max(time.Duration(n*n)*6*time.Millisecond, pausePerStall*stall))
	}
}

// pausePerStall is how much longer the pause after a failed attempt is than it held threads up.
const pausePerStall = 4

// errMoved: a thread id changed hands in the middle; the attempt was given up.
var errMoved = errors.New("threads changed while they were stopped")

// attempt tries once, and says how long a failed one has held threads up.
func (p *Process) attempt(o StopOptions) (_ *Stopped, stall time.Duration, _ error) {
	s := &Stopped{p: p, known: make(map[int]*Thread), early: o.Early, dies: o.Dies}
	if err := p.begin(s); err != nil {
		return nil, 0, err
	}
	s.t = newTracer()
	s.groups = []*group{{p.pid, p.dir}}
	err := s.t.do(func() error { return s.stopAll(o.Deadline) })
	if err == nil {
		err = p.CheckImage()
	}
	if err != nil {
		s.t.do(func() error {
			late := s.releaseAll()
			if !s.since.IsZero() {
				stall = time.Since(s.since)
			}
			s.linger(late)
			return nil
		})
		s.abandon()
		return nil, stall, err
	}
	return s, 0, nil
}

// releaseAll lets every thread go on after an attempt that failed, and gives those that have been told
// to stop and have not arrived yet.
func (s *Stopped) releaseAll() (pending []*Thread) {
	for _, t := range s.known {
		switch {
		case t == nil, !t.told, t.parked: // its system call is as it was
		case t.stopped:
			t.release(0) // if that fails it has ended
		default:
			pending = append(pending, t)
		}
	}
	return pending
}

// begin makes s the one stop of the process.
func (p *Process) begin(s *Stopped) error {
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
	s.p.closeGone()
	for _, g := range s.groups[1:] {
		g.dir.Close()
	}
	if s.query != nil {
		s.query.Close()
	}
	s.p.mu.Lock()
	s.p.stop = nil
	s.p.mu.Unlock()
}

// stopAll goes on until no thread is left that is not known: then nobody is there who could start
// one. All are attached before the first is told to stop, since that holds nobody up.
func (s *Stopped) stopAll(d time.Duration) error {
	if err := s.stopKnown(d); errors.Is(err, ErrStuck) {
		return err // which names the process, and is not complete yet
	} else if err != nil {
		return fmt.Errorf("process %d: %w", s.p.pid, err)
	}
	for tid, t := range s.known {
		if t != nil && t.stopped {
			s.threads = append(s.threads, t)
		} else if t == nil || !t.parked {
			delete(s.known, tid)
		}
	}
	if own := func(t *Thread) bool { return t.TGID == s.p.pid }; !slices.ContainsFunc(s.threads, own) && len(s.parked) > 0 {
		// A child in vfork has the memory, but descriptors and signal handlers of its own: no system call
		// of its can stand for one of the process.
		return s.stuck(s.parked, d)
	}
	if len(s.threads) == 0 {
		return fmt.Errorf("process %d: %w", s.p.pid, ErrNoProcess)
	}
	sortThreads(s.threads)
	return nil
}

func (s *Stopped) stopKnown(d time.Duration) error {
	fresh, err := s.seizeNew()
	for more := true; more && err == nil; { // those that were started meanwhile
		var newer []*Thread
		newer, err = s.seizeNew()
		fresh, more = append(fresh, newer...), len(newer) > len(fresh)/64+1
	}
	s.since = time.Now()
	for err == nil {
		if err = s.stopThese(fresh, d); err != nil {
			break
		}
		more := false
		if len(fresh) == 0 || s.complete() {
			if more, err = s.findSharers(); err != nil || !more {
				break
			}
		}
		fresh, err = s.seizeNew()
	}
	return err
}

// stopThese stops threads, those that run the program last: whatever sleeps loses nothing meanwhile
// but to be woken. It is taken for granted that who ran when it was last looked at runs.
func (s *Stopped) stopThese(fresh []*Thread, d time.Duration) error {
	var asleep, runs []*Thread
	for _, t := range fresh {
		if s.p.ran[t.TID] {
			runs = append(runs, t)
		} else {
			asleep = append(asleep, t)
		}
	}
	if err := s.stopGroup(asleep, d); err != nil {
		return err
	}
	for _, t := range asleep {
		if s.early != nil && t.stopped {
			s.early(t)
		}
	}
	return s.stopGroup(runs, d)
}

// stopGroup tells threads to stop, and waits for them.
func (s *Stopped) stopGroup(threads []*Thread, d time.Duration) error {
	if err := interrupt(threads); err != nil {
		return err
	}
	return s.awaitAll(threads, d)
}

// runners notes which threads were stopped while they ran the program, and puts them first.
func (s *Stopped) runners() []*Thread {
	s.p.ran = map[int]bool{}
	var first, others []*Thread
	for _, t := range s.threads {
		if t.running {
			s.p.ran[t.TID] = true
			first = append(first, t)
		} else {
			others = append(others, t)
		}
	}
	return append(first, others...)
}

// Threads gives the stopped threads in order of their ids, those of processes that share
// the memory after the target's own.
func (s *Stopped) Threads() []*Thread { return s.threads }

// Parked gives the threads that wait in vfork for their children, and were not waited for: they run nothing before they
// have stopped. They can not be moved, and make no system calls.
func (s *Stopped) Parked() []*Thread { return s.parked }

// Everyone gives the stopped threads and the parked ones: whose code, registers and stacks count.
func (s *Stopped) Everyone() []*Thread {
	if len(s.parked) == 0 {
		return s.threads
	}
	return slices.Concat(s.threads, s.parked)
}

// Maps reads the mappings of the stopped process. They do not change but by what we make it do.
func (s *Stopped) Maps() ([]procfs.Map, error) {
	if s.maps != nil {
		return s.maps, nil
	}
	maps, err := s.p.Maps()
	if err == nil {
		s.maps = maps
	}
	return maps, err
}

// Since is when the first thread was told to stop.
func (s *Stopped) Since() time.Time { return s.since }

// Process is the process that is stopped.
func (s *Stopped) Process() *Process { return s.p }

// Do runs f on the thread that ptrace requests come from. Every method of Stopped and
// Thread goes there by itself; many calls in a row are faster within one Do.
func (s *Stopped) Do(f func() error) error {
	if s.killed {
		return fmt.Errorf("process %d: %w", s.p.pid, ErrReleased)
	}
	return s.t.do(f)
}

// Within says whether the caller runs within Do.
func (s *Stopped) Within() bool { return unix.Gettid() == s.t.tid }

// Release lets all threads go on and detaches from them. Whatever was written while they
// stood still, they fetch it as instructions: each returns to the program by IRET, which
// serialises the processor (SDM 3A 10.3), not by SYSRET, which does not. An error means
// that a thread has ended or been lost meanwhile; all others run.
func (s *Stopped) Release() error { return s.release(0) }

// ReleaseStopped detaches from all threads, and leaves them where they stand, by SIGSTOP: another tracer may attach, and SIGCONT lets them go on. If
// nobody does they stay there.
func (s *Stopped) ReleaseStopped() error { return s.release(unix.SIGSTOP) }

// release detaches from all threads, the first one with a signal.
func (s *Stopped) release(sig unix.Signal) error {
	var errs []error
	err := s.Do(func() error {
		s.unpark()
		for _, t := range s.runners() {
			if err := t.release(sig); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("thread %d: %w", t.TID, err))
			}
			sig = 0
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

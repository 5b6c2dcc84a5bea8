package ptrace

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// StopOptions tune a stop. Nil and zero fields mean the defaults.
type StopOptions struct {
	// Deadline is how long one attempt holds threads up without another one arriving, before all
	// are let go; default 100 ms. However many there are, it ends after that and 50 us a thread.
	Deadline time.Duration
	Attempts int // default 5, with growing pauses between them, 0.2 s together
	// early is called for threads that slept, once they stand and before those that run the program are stopped: for
	// questions about what only the thread itself can change.
	Early func(*Thread)
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
		d.Attempts = 5
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
	scratch procfs.Range
	apart   bool          // memory is read range by range: no system call that reads several is permitted
	early   func(*Thread) // see StopOptions
	killed  bool          // the tracer is gone: nothing can be asked any more
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
	s := &Stopped{p: p, known: make(map[int]*Thread), early: o.Early}
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

// lingerTime is how long threads that were told to stop, and need not any more, are waited
// for; lingerD how long those of them that sleep uninterruptibly.
const (
	lingerTime = 5 * time.Second
	lingerD    = 100 * time.Millisecond
)

// releaseAll lets every thread go on after an attempt that failed, and gives those that have been told
// to stop and have not arrived yet.
func (s *Stopped) releaseAll() (pending []*Thread) {
	for _, t := range s.known {
		switch {
		case t == nil, !t.told, t.parked: // its system call is as it was
		case t.stopped:
			t.release() // if that fails it has ended
		default:
			pending = append(pending, t)
		}
	}
	return pending
}

// linger waits for threads that have been told to stop and may be on their way out of a system call
// with EINTR: each is let go when it arrives and that is undone, while the others run already.
func (s *Stopped) linger(pending []*Thread) {
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
		if sleep(n, end) != nil {
			break
		}
		if time.Now().After(look) && len(pending) <= askedAtOnce {
			look = time.Now().Add(lingerD)
			pending = slices.DeleteFunc(s.withoutWorkers(pending), func(t *Thread) bool {
				st, err := t.Status()
				return err != nil || st.State == "D"
			})
		}
	}
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
	err := ptrace(unix.PTRACE_SEIZE, tid, 0, unix.PTRACE_O_TRACESYSGOOD)
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

// parkAfter is how long nothing arrives before it is looked at what the missing threads wait for, and
// asleepLooks the number of looks after which those that sleep uninterruptibly are not waited for.
const (
	parkAfter   = 10 * time.Millisecond
	asleepLooks = 3
	askedAtOnce = 64 // of that many threads, since the files of one take 20 us
)

// awaitAll waits until every one of the threads has stopped or ended, or is parked. It gives up when
// none has for d.
func (s *Stopped) awaitAll(pending []*Thread, d time.Duration) error {
	pending = append([]*Thread(nil), pending...)
	last := s.since.Add(d + time.Duration(len(s.known))*perThread)
	look, deadline := s.until(d, last)
	for n, looks := 0, 0; len(pending) > 0; n++ {
		left, err := arrivals(pending)
		if err != nil {
			return err
		}
		if len(left) < len(pending) {
			n, looks = 0, 0
			look, deadline = s.until(d, last)
		}
		pending = left
		if len(pending) > 0 && time.Now().After(look) {
			pending = s.parkSome(pending)
			if looks++; looks >= asleepLooks && s.allAsleep(pending) {
				return s.stuck(pending, parkAfter*asleepLooks)
			}
			look = time.Now().Add(parkAfter)
		}
		if len(pending) > 0 && sleep(n, deadline) != nil || time.Now().After(deadline) {
			if len(pending) <= askedAtOnce {
				pending = s.withoutWorkers(pending)
			}
			if len(pending) > 0 {
				return s.stuck(pending, d)
			}
		}
	}
	return nil
}

// misses is after how many threads that have not arrived a pass ends: they arrive in about the order
// in which they were told to, and we keep a CPU from them.
const misses = 32

// arrivals takes threads that have arrived or ended, and gives the others.
func arrivals(pending []*Thread) (left []*Thread, err error) {
	missed := make([]*Thread, 0, misses)
	for i, t := range pending {
		done, err := t.arrive()
		if err != nil {
			return nil, fmt.Errorf("thread %d: %w", t.TID, err)
		}
		if !done {
			missed = append(missed, t)
		}
		if len(missed) == misses {
			n := copy(pending, pending[i+1:])
			return append(pending[:n], missed...), nil
		}
	}
	return missed, nil
}

// allAsleep says whether threads, one at least, sleep uninterruptibly.
func (s *Stopped) allAsleep(pending []*Thread) bool {
	if len(pending) > askedAtOnce {
		return false
	}
	for _, t := range pending {
		if st, err := t.Status(); err != nil || st.State != "D" {
			return false
		}
	}
	return len(pending) > 0
}

// until is when to look at the threads that have not arrived, and when to give up, if none arrives
// from now on.
func (s *Stopped) until(d time.Duration, last time.Time) (look, deadline time.Time) {
	now := time.Now()
	deadline = now.Add(d)
	if deadline.After(last) {
		deadline = last
	}
	return now.Add(parkAfter), deadline
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

// Parked gives the threads that wait in vfork for their children, and were not waited for: they run nothing before they
// have stopped. They can not be moved, and make no system calls.
func (s *Stopped) Parked() []*Thread { return s.parked }

// everyone gives the stopped threads and the parked ones: whose code, registers and stacks count.
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

// Release lets all threads go on and detaches from them. Whatever was written while they
// stood still, they fetch it as instructions: each returns to the program by IRET, which
// serialises the processor (SDM 3A 10.3), not by SYSRET, which does not. An error means
// that a thread has ended or been lost meanwhile; all others run.
func (s *Stopped) Release() error {
	var errs []error
	err := s.Do(func() error {
		s.unpark()
		for _, t := range s.runners() {
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

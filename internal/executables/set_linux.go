package executables

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/target/process"
)

// Member is a process as the caller of Open probes it.
type Member interface {
	// Leave is called once: when the process has ended, when another program has taken its place, or when the set is closed. It takes out what
	// is still there, and gives the processes that were forked from this one and had its probes.
	Leave() (children []int)
}

// Options say what a Set does with processes.
type Options struct {
	File *File
	Only Only
	// Arm probes a process, and has it run on if it is stopped, whatever it returns. Several goroutines call it at once.
	Arm func(p *process.Proc, stopped *process.Stopped) (Member, error)
	// Refused is told of a process without probes, and why; several goroutines call it at once.
	Refused func(pid int, err error)
	// Replaced, if not nil, is told that another file has taken the executable's place, whose processes count too.
	Replaced func()
}

// Counts say how processes were met.
type Counts struct {
	// First are processes that were probed before the first instruction of their program, Running those that ran when the set was opened, Late those that came
	// later and may have run already.
	First, Running, Late uint64
	// Forked are processes that had the probes of the one that they were forked from until that ended, and then their own.
	Forked uint64
	// Refused have no probes. Short have ended before they could have.
	Refused, Short uint64
	// Unseen are execs that the kernel has permitted by itself, since it had no memory to ask.
	Unseen uint64
}

// Probed is how many processes have had probes.
func (c Counts) Probed() uint64 { return c.First + c.Running + c.Late + c.Forked }

// Set is the processes of an executable.
type Set struct {
	o       Options
	loaders process.Loaders
	watch   *watch // nil: new processes are looked for
	ends    *ends
	arming  chan struct{} // has room for as many as arm at once
	leaving chan struct{} // and for as many as leave
	arms    sync.WaitGroup
	leaves  sync.WaitGroup
	stop    chan struct{}
	settle  sync.Once
	settled chan struct{} // closed when Open need not wait any more

	mu     sync.Mutex
	of     map[int]*entry
	meets  map[int]int // processes that are in an exec of the file, and how often
	closed bool
	counts Counts
}

// entry is a process that is known. member is nil while it is being armed, and if it has no probes.
type entry struct {
	pid    int
	member Member
	gone   sync.Once
}

// maxHeld is how long an exec is held at most, until its turn comes.
const maxHeld = time.Second

// lookEvery is the time between two looks at all processes where execs can not be watched.
const lookEvery = 100 * time.Millisecond

// Open takes the processes that run, and those that come from now on. It waits until one has its probes, or all that run have been refused: there may be
// thousands. Where execs can not be watched, watchErr says why: then
// new processes are looked for from time to time, and short ones are not seen.
func Open(o Options) (s *Set, watchErr, err error) {
	s = &Set{o: o, of: map[int]*entry{}, meets: map[int]int{}, stop: make(chan struct{}), settled: make(chan struct{})}
	s.arming = make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	s.leaving = make(chan struct{}, cap(s.arming))
	if s.ends, err = newEnds(s.ended); err != nil {
		return nil, nil, err
	}
	if s.watch, watchErr = newWatch(o.File); watchErr == nil {
		s.arms.Go(func() {
			if err := s.watch.run(s.meetLater); err != nil {
				s.o.Refused(0, err)
			}
		})
		s.arms.Go(func() { s.watch.follow(s.replacedFile, func(err error) { s.o.Refused(0, err) }) })
	}
	s.arms.Go(func() {
		err := s.look(func(c *Counts) { c.Running++ })
		if err != nil {
			s.o.Refused(0, err)
		}
		s.settle.Do(func() { close(s.settled) })
		if watchErr != nil {
			s.keepLooking()
		}
	})
	<-s.settled
	return s, watchErr, nil
}

// look takes all processes that run and are not known yet, and waits until they have their probes.
func (s *Set) look(count func(*Counts)) error {
	pids, err := s.o.File.Running()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for _, pid := range pids {
		if s.known(pid) || !s.takes(pid) {
			continue
		}
		select {
		case <-s.stop:
			continue
		case s.arming <- struct{}{}:
		}
		all.Go(func() {
			defer func() { <-s.arming }()
			s.attach(pid, count)
		})
	}
	all.Wait()
	return nil
}

// replacedFile takes the processes that have executed what has taken the file's place before their execs were held.
func (s *Set) replacedFile() {
	if s.o.Replaced != nil {
		s.o.Replaced()
	}
	if err := s.look(func(c *Counts) { c.Late++ }); err != nil {
		s.o.Refused(0, err)
	}
}

func (s *Set) keepLooking() {
	for {
		select {
		case <-s.stop:
			return
		case <-time.After(lookEvery):
		}
		if err := s.look(func(c *Counts) { c.Late++ }); err != nil {
			s.o.Refused(0, err)
		}
	}
}

// known says whether a process has an entry, or is about to have one.
func (s *Set) known(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[pid] != nil || s.meets[pid] > 0
}

// meeting notes that a process is being met, with 1, and that it has been, with -1.
func (s *Set) meeting(pid, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meets[pid] += n; s.meets[pid] == 0 {
		delete(s.meets, pid)
	}
}

// takes says whether a process is one that counts.
func (s *Set) takes(pid int) bool {
	if s.o.Only.All() {
		return true
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	return err == nil && s.o.Only.Takes(string(text))
}

// attach takes a process that runs.
func (s *Set) attach(pid int, count func(*Counts)) {
	e := s.enter(pid)
	if e == nil {
		return
	}
	p, err := process.OpenUnwaited(pid)
	switch {
	case errors.Is(err, process.ErrNoProcess): // it has ended since it was seen, perhaps after it was met
		s.forget(e)
	case err != nil:
		s.refused(e, err)
	case !s.o.File.Runs(pid): // another has its id
		s.forget(e)
		_ = p.Close()
	default:
		s.arm(e, p, nil, count)
	}
}

// meetLater has another goroutine meet a process in its exec: the next event must not wait.
func (s *Set) meetLater(x *execution) {
	if !s.takes(x.pid) {
		x.allow()
		return
	}
	s.meeting(x.pid, 1)
	s.arms.Go(func() {
		defer s.meeting(x.pid, -1)
		held := time.AfterFunc(maxHeld, x.allow)
		defer held.Stop()
		s.arming <- struct{}{}
		defer func() { <-s.arming }()
		s.meet(x)
	})
}

func (s *Set) meet(x *execution) {
	m, err := process.MeetExec(x.pid, x.tid, &s.loaders, x.allow)
	switch {
	case errors.Is(err, unix.ENOEXEC) && !errors.Is(err, process.ErrUnsupported):
		return // it has not become a process of the file
	case err == nil && !s.o.File.Runs(x.pid): // the file was its interpreter's or its loader's
		_ = m.Stopped.Release()
		_ = m.Proc.Close()
		return
	}
	s.replaced(x.pid)
	e := s.enter(x.pid)
	switch {
	case e == nil && err == nil: // the set is being closed
		_ = m.Stopped.Release()
		_ = m.Proc.Close()
	case e == nil:
	case err != nil:
		s.refused(e, err)
	case m.Begun:
		s.arm(e, m.Proc, m.Stopped, func(c *Counts) { c.Late++ })
	default:
		s.arm(e, m.Proc, m.Stopped, func(c *Counts) { c.First++ })
	}
}

// enter makes an entry; nil: there is one, or the set is being closed.
func (s *Set) enter(pid int) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.of[pid] != nil {
		return nil
	}
	e := &entry{pid: pid}
	s.of[pid] = e
	return e
}

func (s *Set) forget(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[e.pid] == e {
		delete(s.of, e.pid)
	}
}

// refused counts a process that has no probes. It stays known while it runs, so that it is not tried again and again.
func (s *Set) refused(e *entry, err error) {
	short := errors.Is(err, process.ErrNoProcess) || errors.Is(err, process.ErrExec)
	s.mu.Lock()
	if short {
		s.counts.Short++
	} else {
		s.counts.Refused++
	}
	s.mu.Unlock()
	if short {
		s.forget(e)
		return
	}
	s.o.Refused(e.pid, err)
	if s.ends.add(e) != nil {
		s.forget(e)
	}
}

// arm has a process probed.
func (s *Set) arm(e *entry, p *process.Proc, stopped *process.Stopped, count func(*Counts)) {
	m, err := s.o.Arm(p, stopped)
	if err != nil {
		s.refused(e, err)
		return
	}
	s.mu.Lock()
	e.member = m
	count(&s.counts)
	s.mu.Unlock()
	s.settle.Do(func() { close(s.settled) })
	err = s.ends.add(e)
	if err != nil || !p.Alive() || s.entryOf(e.pid) != e { // or it has executed another program meanwhile
		s.ended(e)
	}
}

// ended has a member leave whose process has ended.
func (s *Set) ended(e *entry) {
	s.forget(e)
	s.leave(e)
}

// leave has a member leave, once.
func (s *Set) leave(e *entry) {
	s.mu.Lock()
	m := e.member
	s.mu.Unlock()
	if m == nil {
		return
	}
	e.gone.Do(func() {
		s.leaves.Go(func() {
			s.leaving <- struct{}{}
			defer func() { <-s.leaving }()
			for _, pid := range m.Leave() { // they have no probes now
				if s.takes(pid) && !s.known(pid) {
					s.attach(pid, func(c *Counts) { c.Forked++ })
				}
			}
		})
	})
}

// entryOf gives the entry of a process, nil if there is none.
func (s *Set) entryOf(pid int) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[pid]
}

// replaced has the member leave whose process has executed another program.
func (s *Set) replaced(pid int) {
	if e := s.entryOf(pid); e != nil {
		s.ended(e)
	}
}

// Replaced tells the set that another program has taken the place of a member's. It must not be called during Close.
func (s *Set) Replaced(m Member) {
	s.mu.Lock()
	var of *entry
	for _, e := range s.of {
		if e.member == m {
			of = e
		}
	}
	s.mu.Unlock()
	if of != nil {
		s.ended(of)
	}
}

// Counts says how processes were met so far.
func (s *Set) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts
	if s.watch != nil {
		c.Unseen = s.watch.lost.Load()
	}
	return c
}

// Close takes no further process, and has all members leave.
func (s *Set) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	close(s.stop)
	if s.watch != nil {
		_ = s.watch.close()
	}
	s.arms.Wait() // those that are being armed are members then
	s.ends.close()
	for _, e := range s.of { // nobody else changes it any more
		s.leave(e)
	}
	s.leaves.Wait()
}

// WhyUnwatched says why execs can not be watched, and what is missing.
func WhyUnwatched(watchErr error) string {
	if errors.Is(watchErr, unix.EPERM) {
		return "execs can be watched by root alone, or with CAP_SYS_ADMIN and CAP_SYS_PTRACE"
	}
	return fmt.Sprintf("execs can not be watched: %v", watchErr)
}

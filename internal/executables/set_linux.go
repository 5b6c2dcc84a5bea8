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
	// Command, if not nil, is a program that is started: then the processes of the set are those among it and what descends from it. They are found by
	// tracing all of these, from exec to exec, for which no privileges are needed. What processes of the set start or execute is not traced.
	Command *process.Command
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
	tree    *tree  // where new processes come from instead
	// privileged: the kernel gives traced processes the rights of their files. Used with tree.
	privileged bool
	ends       *ends
	arming     chan struct{} // has room for as many as arm at once
	leaving    chan struct{} // and for as many as leave
	arms       sync.WaitGroup
	leaves     sync.WaitGroup
	stop       chan struct{}
	settle     sync.Once
	settled    chan struct{} // closed when Open need not wait any more
	looked     chan struct{} // closed when those that ran have been taken

	mu     sync.Mutex
	of     map[int]*entry
	meets  map[int]int           // processes that are in an exec of the file, and how often
	left   map[int]chan struct{} // of processes that are being left; closed when that is done
	closed bool
	counts Counts
}

// maxHeld is how long an exec is held at most, until its turn comes.
const maxHeld = time.Second

// lookEvery is the time between two looks at all processes where execs can not be watched.
const lookEvery = 100 * time.Millisecond

// Open takes the processes that run, and those that come from now on. It waits until one has its probes, or all that run have been refused: there may be
// thousands. Where execs can not be watched, watchErr says why: then
// new processes are looked for from time to time, and short ones are not seen. With a Command it takes those of that alone, once Begin lets it begin.
func Open(o Options) (s *Set, watchErr, err error) {
	s = &Set{o: o, of: map[int]*entry{}, meets: map[int]int{}, left: map[int]chan struct{}{}, stop: make(chan struct{}), settled: make(chan struct{}), looked: make(chan struct{})}
	s.arming = make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	s.leaving = make(chan struct{}, cap(s.arming))
	if s.ends, err = newEnds(s.ended); err != nil {
		return nil, nil, err
	}
	if o.Command != nil {
		if err := s.start(); err != nil {
			s.ends.close()
			return nil, nil, err
		}
		close(s.looked)
		return s, nil, nil
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
		close(s.looked)
		if watchErr != nil {
			s.keepLooking()
		}
	})
	<-s.settled
	return s, watchErr, nil
}

// Looked is closed when all processes that ran when the set was opened have their probes, or have been refused.
func (s *Set) Looked() <-chan struct{} { return s.looked }

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
	s.awaitLeft(pid)
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
	s.took(x.pid, m, err)
}

// took takes a process that was met in its exec, or says why it could not be.
func (s *Set) took(pid int, m process.Met, err error) {
	s.replaced(pid)
	e := s.enter(pid)
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
	if s.tree != nil && !s.tree.begun {
		_ = s.tree.Kill()
		close(s.tree.over)
	}
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

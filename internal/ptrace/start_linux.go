package ptrace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command is a program to be started. Nil streams are the null device.
type Command struct {
	Path string   // looked for in PATH if it has no slash
	Args []string // after the program's name
	Name string   // argv[0]; empty: Path as given
	Env  []string // nil: our own
	Dir  string   // empty: our own

	Stdin, Stdout, Stderr *os.File
}

// child is a process that we have started.
type child struct {
	process *os.Process
	done    chan struct{} // closed when it has ended and state is set
	state   *os.ProcessState
	err     error
}

// Start runs a program up to its entry point, where its shared objects are mapped and
// their constructors have run but none of its own code has, and gives it stopped there.
// Until Release it dies with us. A program that ends before its entry point, or cannot be
// run at all, is an error; those of the exec itself are the errno of exec (ENOENT, EACCES,
// ENOEXEC). A script is its interpreter.
//
// The caller must call Wait.
func Start(c *Command) (*Process, *Stopped, error) {
	path, err := exec.LookPath(c.Path)
	if err != nil {
		return nil, nil, fmt.Errorf("start of %s: %w", c.Path, pathError(err))
	}
	t := newTracer()
	var p *Process
	s := &Stopped{t: t, since: time.Now(), known: make(map[int]*Thread)}
	err = t.do(func() error {
		p, err = s.start(c, path)
		return err
	})
	if err != nil {
		s.dropStart(p)
		return nil, nil, fmt.Errorf("start of %s: %w", c.Path, err)
	}
	return p, s, nil
}

// pathError brings out the errno that a search in PATH hides.
func pathError(err error) error {
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w: %w", err, unix.ENOENT)
	}
	return err
}

// start forks on the tracer's thread, which the child then calls its tracer.
func (s *Stopped) start(c *Command, path string) (*Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	process, err := os.StartProcess(path, c.argv(), c.attr(null))
	if err != nil {
		return nil, err
	}
	// It stops after its exec, with SIGTRAP.
	if err := awaitExec(process.Pid); err != nil {
		process.Kill()
		process.Wait()
		return nil, err
	}
	p, err := OpenUnwaited(process.Pid)
	if err != nil {
		process.Kill()
		process.Wait()
		return nil, err
	}
	p.child = newChild(process)
	s.p, p.stop = p, s
	s.groups = []*group{{p.pid, p.dir}}
	return p, s.runToEntry()
}

func (c *Command) argv() []string {
	name := c.Name
	if name == "" {
		name = c.Path
	}
	return append([]string{name}, c.Args...)
}

func (c *Command) attr(null *os.File) *os.ProcAttr {
	a := &os.ProcAttr{Dir: c.Dir, Env: c.Env, Files: []*os.File{c.Stdin, c.Stdout, c.Stderr}}
	for i, f := range a.Files {
		if f == nil {
			a.Files[i] = null
		}
	}
	a.Sys = &syscall.SysProcAttr{Ptrace: true}
	return a
}

const startTime = 10 * time.Second // for the kernel to bring a new process to its first stop

func awaitExec(pid int) error {
	ev, err := await(pid, time.Now().Add(startTime))
	switch {
	case err != nil:
		return fmt.Errorf("its exec does not end: %w", err)
	case ev.gone:
		return fmt.Errorf("%w: it ended in exec", ErrNoProcess)
	}
	return ptrace(unix.PTRACE_SETOPTIONS, pid, 0, startOptions)
}

// Forks of constructors are followed, to take our breakpoint out of them. The target dies
// with us until it is released: it cannot reach the breakpoint then.
const startOptions = unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACESYSGOOD |
	unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC

// runToEntry stops the process at the entry point of its program by a breakpoint there.
func (s *Stopped) runToEntry() error {
	aux, err := s.p.Auxv()
	if err != nil {
		return err
	}
	entry := aux[atEntry]
	was := make([]byte, len(breakpoint))
	if err := s.p.ReadMem(entry, was); err != nil {
		return fmt.Errorf("entry point: %w", err)
	}
	if err := s.p.WriteMem(entry, breakpoint); err != nil {
		return fmt.Errorf("entry point: %w", err)
	}
	run := &entryRun{s: s, entry: entry, was: was}
	if err := run.until(); err != nil {
		return err
	}
	if err := s.p.WriteMem(entry, was); err != nil {
		return fmt.Errorf("entry point: %w", err)
	}
	return s.atEntry(entry)
}

// entryRun is a program on its way through the dynamic linker.
type entryRun struct {
	s     *Stopped
	entry uint64
	was   []byte
}

// until lets the first thread run until it meets the breakpoint. Signals are its own.
func (r *entryRun) until() error {
	pid := r.s.p.pid
	for sig := 0; ; {
		if err := ptrace(unix.PTRACE_CONT, pid, 0, uintptr(sig)); err != nil {
			return err
		}
		ev, err := awaitLong(pid)
		if err != nil {
			return err
		}
		switch {
		case ev.gone:
			return r.ended(ev)
		case ev.kind == unix.PTRACE_EVENT_FORK, ev.kind == unix.PTRACE_EVENT_VFORK:
			sig = 0
			if err := r.forked(ev.kind == unix.PTRACE_EVENT_FORK); err != nil {
				return err
			}
		case ev.kind == unix.PTRACE_EVENT_EXEC:
			return fmt.Errorf("%w before its entry point", ErrExec)
		case ev.signal == int(unix.SIGTRAP) && r.there():
			return nil
		default:
			sig = ev.signal
		}
	}
}

func (r *entryRun) ended(ev event) error {
	if ev.killed {
		return fmt.Errorf("%w: it was killed by %v before its entry point", ErrNoProcess, unix.Signal(ev.status&0x7f))
	}
	return fmt.Errorf("%w: it ended with status %d before its entry point, as the dynamic linker does when an object is missing", ErrNoProcess, ev.status)
}

// there says whether the thread has just run the breakpoint.
func (r *entryRun) there() bool {
	regs, err := getRegs(r.s.p.pid)
	return err == nil && regs.PC() == r.entry+trapSize
}

// forked lets a child of a constructor go, without the breakpoint in its copy of the
// memory. A vfork child shares the memory, and never comes to the entry point in it.
func (r *entryRun) forked(copied bool) error {
	var pid uint64
	if err := getEventMsg(r.s.p.pid, &pid); err != nil {
		return err
	}
	ev, err := awaitLong(int(pid))
	if err != nil || ev.gone {
		return err
	}
	if copied {
		f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.WriteAt(r.was, int64(r.entry)); err != nil {
			return fmt.Errorf("entry point of fork child %d: %w", pid, err)
		}
	}
	return ignoreGone(ptrace(unix.PTRACE_DETACH, int(pid), 0, 0))
}

// awaitLong waits for news of a thread without a limit: constructors may take their time.
func awaitLong(tid int) (event, error) {
	for {
		if ev, ok, err := waitid(tid, 0); ok || err != nil {
			return ev, err
		}
	}
}

// atEntry makes the stop complete: the first thread at its first instruction, and those
// that constructors have started.
func (s *Stopped) atEntry(entry uint64) error {
	first := &Thread{TID: s.p.pid, TGID: s.p.pid, s: s, g: s.groups[0]}
	if err := first.arrived(); err != nil {
		return err
	}
	r := first.regs
	r.setPC(entry)
	if err := first.setRegs(r); err != nil {
		return err
	}
	s.known[s.p.pid] = first
	d := StopOptions{}
	return s.stopAll(d.withDefaults().Deadline)
}

// dropStart gives up a start that failed.
func (s *Stopped) dropStart(p *Process) {
	if p == nil {
		s.t.end()
		return
	}
	p.child.process.Kill()
	s.abandon()
	p.Wait()
	p.Close()
}

// newChild waits for the process from now on. It asks for its state only once it has
// ended: a wait also tells of the stops of a process that we trace, whatever it was asked
// for (kernel/exit.c, wait_task_stopped).
func newChild(process *os.Process) *child {
	c := &child{process: process, done: make(chan struct{})}
	go func() {
		awaitEnd(process.Pid)
		c.state, c.err = process.Wait()
		close(c.done)
	}()
	return c
}

// awaitEnd waits until a child of this process has ended.
func awaitEnd(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Wait waits for the end of a process of Start and tells how it ended.
func (p *Process) Wait() (*os.ProcessState, error) {
	if p.child == nil {
		return nil, fmt.Errorf("process %d: %w: it was not started here", p.pid, unix.ECHILD)
	}
	<-p.child.done
	return p.child.state, p.child.err
}

// Signal sends a signal to the process itself, never to another that got its pid.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := unix.PidfdSendSignal(p.pidfd, sig, nil, 0); err != nil {
		return fmt.Errorf("process %d: %w", p.pid, p.Gone(err))
	}
	return nil
}

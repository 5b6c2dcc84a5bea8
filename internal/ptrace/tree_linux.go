package ptrace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A tree is traced from the first instruction of its program on, by PTRACE_SEIZE. The kernel attaches the tracer to all that it forks
// (PTRACE_O_TRACEFORK and the like), and stops each at its execs. Nothing is killed if the tracer ends (no PTRACE_O_EXITKILL): the kernel lets
// all run on, with the signals that they were about to get, since news is looked at and not taken (WNOWAIT). One thread does all of it:
//
//	PTRACE_EVENT_FORK, VFORK, CLONE     goes on; the child's own first stop is a PTRACE_EVENT_STOP
//	PTRACE_EVENT_EXEC                   goes on, or is handed over as a Stopped: then its children are not traced any more
//	PTRACE_EVENT_STOP, by a stop signal  stays stopped until SIGCONT (PTRACE_LISTEN), as it would without a tracer
//	a signal                            is delivered
//	an end                              is waited for, so that the parent can wait
//
// The program itself stops behind its exec because it asks for that (PTRACE_TRACEME), which knows no PTRACE_LISTEN. Begin lets go of it with a
// SIGSTOP, attaches anew, and sends SIGCONT: only a tracer that is killed between these three leaves a program that has not begun, and is stopped.

// TreeOptions say what becomes of the processes of a Tree. Its functions must not use the Tree.
type TreeOptions struct {
	// Takes says whether a process, which has just executed its program, is to be handed over.
	Takes func(pid int) bool
	// Met gets such a process, stopped before the first instruction of its program, and has released it when it returns. Meanwhile nothing else of
	// the tree is answered. With an error it was not stopped, and runs on.
	Met     func(pid int, m Met, err error)
	Loaders *Loaders
}

// Tree is a process, and all that descends from it, but for what descends from processes that were handed over.
type Tree struct {
	t    *tracer
	o    TreeOptions
	root *os.Process
}

const treeOptions = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACECLONE

// StartTree starts a program, which stops before its first instruction. Errors are those of the exec.
func StartTree(c *Command, o TreeOptions) (*Tree, error) {
	path, err := exec.LookPath(c.Path)
	if err != nil {
		return nil, fmt.Errorf("start of %s: %w", c.Path, pathError(err))
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	x := &Tree{t: newTracer(), o: o}
	err = x.t.do(func() (err error) {
		if x.root, err = os.StartProcess(path, c.argv(), c.attr(null)); err != nil {
			return err
		}
		ev, err := await(x.root.Pid, time.Now().Add(startTime))
		if err == nil && ev.gone {
			err = fmt.Errorf("%w: it ended in exec", ErrNoProcess)
		}
		return err
	})
	if err != nil {
		if x.root != nil {
			err = errors.Join(err, x.Kill())
		} else {
			x.t.end()
		}
		return nil, fmt.Errorf("start of %s: %w", c.Path, err)
	}
	x.t.shared = true
	return x, nil
}

// Kill ends a program that has not begun, in place of Run.
func (x *Tree) Kill() error {
	err := x.root.Kill()
	x.t.shared = false
	x.t.end()
	_, waited := x.root.Wait()
	return errors.Join(err, waited)
}

// Run lets the program begin and follows the tree until that has ended, whose status it gives. What else is there then runs on by itself. It is to
// be called once.
func (x *Tree) Run() (status unix.WaitStatus, err error) {
	err = x.t.do(func() error {
		if err := x.begin(); err != nil {
			return err
		}
		for {
			if ended, err := x.next(&status); ended || err != nil {
				return err
			}
		}
	})
	x.t.shared = false
	x.t.end()
	if err != nil {
		return 0, fmt.Errorf("processes of %d: %w", x.root.Pid, err)
	}
	return status, nil
}

func (x *Tree) begin() error {
	pid := x.root.Pid
	if err := ptrace(unix.PTRACE_DETACH, pid, 0, uintptr(unix.SIGSTOP)); err != nil {
		return err
	}
	err := ptrace(unix.PTRACE_SEIZE, pid, 0, treeOptions)
	err = errors.Join(err, unix.Kill(pid, unix.SIGCONT))
	if err == nil && x.o.Takes(pid) {
		_, err = await(pid, time.Now().Add(startTime))
		return errors.Join(err, x.handOver(pid))
	}
	return err
}

// next waits for news and answers it.
func (x *Tree) next(status *unix.WaitStatus) (ended bool, err error) {
	tid, ev, err := awaitAny()
	switch {
	case errors.Is(err, unix.EINTR):
		return false, nil
	case err != nil:
		return false, err
	case ev.gone:
		_, err := unix.Wait4(tid, status, unix.WALL, nil)
		return tid == x.root.Pid, err
	case ev.kind == unix.PTRACE_EVENT_EXEC:
		return x.executed(tid, status)
	}
	return false, x.answer(tid, ev)
}

// answer has a thread go on.
func (x *Tree) answer(tid int, ev event) error {
	switch {
	case ev.kind == unix.PTRACE_EVENT_STOP && stops(unix.Signal(ev.signal)):
		return ignoreGone(ptrace(unix.PTRACE_LISTEN, tid, 0, 0))
	case ev.kind != 0:
		ev.signal = 0
	}
	err := ptrace(unix.PTRACE_CONT, tid, 0, uintptr(ev.signal))
	if errors.Is(err, unix.ESRCH) && tid == x.root.Pid {
		time.Sleep(time.Millisecond) // it was handed over and is a child still: somebody else has stopped it
	}
	return ignoreGone(err)
}

func stops(sig unix.Signal) bool {
	return sig == unix.SIGSTOP || sig == unix.SIGTSTP || sig == unix.SIGTTIN || sig == unix.SIGTTOU
}

// executed hands a process over, or has it go on.
func (x *Tree) executed(pid int, status *unix.WaitStatus) (ended bool, err error) {
	// A thread that has got another id takes no request before its exec has been waited for: see meet.
	var ws unix.WaitStatus
	switch got, err := unix.Wait4(pid, &ws, unix.WNOHANG|unix.WALL, nil); {
	case err != nil:
		return false, err
	case got == pid && !ws.Stopped(): // it was killed meanwhile
		*status = ws
		return pid == x.root.Pid, nil
	case !x.o.Takes(pid):
		return false, ignoreGone(ptrace(unix.PTRACE_CONT, pid, 0, 0))
	}
	return false, x.handOver(pid)
}

// handOver hands over a process that stands behind its exec. The thread serves the Stopped meanwhile.
func (x *Tree) handOver(pid int) error {
	e := &execRun{s: &Stopped{t: x.t, since: time.Now(), known: make(map[int]*Thread)}, pid: pid, tid: pid, loaders: x.o.Loaders}
	m, err := e.handedOver()
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.o.Met(pid, m, err)
	}()
	for {
		select {
		case f := <-x.t.work:
			f()
		case <-done:
			return nil
		}
	}
}

// handedOver takes the process to where it can be handed over. If it can not be it goes on, without a tracer.
func (e *execRun) handedOver() (Met, error) {
	p, err := OpenUnwaited(e.pid)
	if err != nil {
		return Met{}, errors.Join(err, ignoreGone(ptrace(unix.PTRACE_DETACH, e.pid, 0, 0)))
	}
	if err = p.begin(e.s); err == nil {
		e.s.p, e.s.groups = p, []*group{{p.pid, p.dir}}
		err = e.load()
	}
	if err == nil {
		err = e.stand()
	}
	if err != nil {
		return Met{}, errors.Join(fmt.Errorf("exec of process %d: %w", e.pid, err), ignoreGone(ptrace(unix.PTRACE_DETACH, e.pid, 0, 0)), p.Close())
	}
	return Met{p, e.s, e.begun}, nil
}

// awaitAny waits for news of a thread that this thread traces, or of a child.
func awaitAny() (tid int, ev event, err error) {
	var info siginfoChild
	_, _, e := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
		unix.WNOWAIT|unix.WSTOPPED|unix.WEXITED|unix.WALL|unix.WNOTHREAD, 0, 0)
	if e != 0 {
		return 0, ev, e
	}
	status := int(info.status)
	switch info.code {
	case cldExited, cldKilled, cldDumped:
		return int(info.pid), event{gone: true, exited: true, status: status, killed: info.code != cldExited}, nil
	}
	return int(info.pid), event{signal: status & 0xff, kind: status >> 8}, nil
}

package process

import (
	"os"
	"sync"

	"kprobes.dev/kprobes/internal/ptrace"
)

// Command is a program to be started. Nil streams are the null device.
type Command = ptrace.Command

// Stopped is a process whose threads all stand still.
type Stopped = ptrace.Stopped

// StopOptions tune a stop.
type StopOptions = ptrace.StopOptions

// Proc is another process, which a tracer can hold for its probes: see Attach. It stays the process that it was at
// Open: when that ends and its pid goes to another, every method fails with ErrNoProcess; when it executes another
// program, memory and stops fail with ErrExec. PID, Alive, Exited, Wait and Signal are those of the process embedded.
type Proc struct {
	*ptrace.Process

	mu   sync.Mutex // guards what follows
	lock *os.File   // held lock, nil if none
}

// Open prepares to reach into process pid, which does not notice. It must exist and run
// (a process whose first thread has ended but others run will do), be an x86-64 process
// of 64 bits, not our own, and one that we may trace. Errors: ErrNoProcess, ErrPermission,
// ErrUnsupported, ErrSelf.
//
// A child of the calling process can be looked at, but Attach refuses it with ErrChild: the kernel tells the stops of a
// traced child to every wait for it in the tracer's process, so that an exec.Cmd.Wait under way would return with a stop
// instead of the child's end. Start makes a child that can be stopped; see also OpenUnwaited.
func Open(pid int) (*Proc, error) {
	p, err := ptrace.Open(pid)
	return newProc(p), err
}

// OpenUnwaited is Open, and takes a child of the calling process too. The caller states
// that nothing in its process waits for the child (os.Process.Wait, exec.Cmd.Wait, wait4,
// waitid, whatever flags they are given) before it has ended, which a pidfd tells (poll(2),
// Exited), or while it is not stopped or attached to.
func OpenUnwaited(pid int) (*Proc, error) {
	p, err := ptrace.OpenUnwaited(pid)
	return newProc(p), err
}

// Start runs a program up to its entry point, where its shared objects are mapped and
// their constructors have run but none of its own code has, and gives it stopped there.
// Until Release it dies with us. A program that ends before its entry point, or cannot be
// run at all, is an error; those of the exec itself are the errno of exec (ENOENT, EACCES,
// ENOEXEC). A script is its interpreter.
//
// The caller must call Wait.
func Start(c *Command) (*Proc, *Stopped, error) {
	p, s, err := ptrace.Start(c)
	return newProc(p), s, err
}

func newProc(p *ptrace.Process) *Proc {
	if p == nil {
		return nil
	}
	p.Skip(ourPaths...) // what a tracer has left goes away
	return &Proc{Process: p}
}

// Close forgets the process: it gives up the lock and ends the watcher of Exited. A
// stopped process must be released before.
func (p *Proc) Close() error {
	p.Unlock()
	return p.Process.Close()
}

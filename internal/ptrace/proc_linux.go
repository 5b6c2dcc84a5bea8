package ptrace

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// Process is another process. It stays the process that it was at Open: when that ends and
// its pid goes to another, every method fails with ErrNoProcess; when it executes another
// program, memory and stops fail with ErrExec.
type Process struct {
	pid   int
	dir   *os.File // /proc/PID: names the process, not the number
	pidfd int
	mem   *os.File // /proc/PID/mem: names the memory, which an exec replaces
	image Image
	// waited: it is our own child, and who started it may wait for it at any time.
	waited bool

	mu     sync.Mutex // guards what follows
	closed bool
	stop   *Stopped      // between Stop and Release
	ran    map[int]bool  // threads that ran the program at the last stop; of whoever has begun one
	gadget *gadgetSet    // found once for an image
	exited chan struct{} // closed at its end; nil until asked for
	wake   int           // eventfd that ends the watcher of exited
	child  *child        // of Start; nil for others
	// backings are the private mappings that a tracer here has made.
	backings  []backing
	filesGone []*os.File // of those that have been unmapped

	locks atomic.Bool // it locks all memory that it maps
	skip  []string    // see Skip
}

// Open prepares to reach into process pid, which does not notice. It must exist and run
// (a process whose first thread has ended but others run will do), be an x86-64 process
// of 64 bits, not our own, and one that we may trace. Errors: ErrNoProcess, ErrPermission,
// ErrUnsupported, ErrSelf.
//
// A child of the calling process can be looked at, but Stop and Attach refuse it with
// ErrChild: the kernel tells the stops of a traced child to every wait for it in the
// tracer's process, so that an exec.Cmd.Wait under way would return with a stop instead of
// the child's end. Start makes a child that can be stopped; see also OpenUnwaited.
func Open(pid int) (*Process, error) {
	p, err := open(pid)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return p, nil
}

// OpenUnwaited is Open, and takes a child of the calling process too. The caller states
// that nothing in its process waits for the child (os.Process.Wait, exec.Cmd.Wait, wait4,
// waitid, whatever flags they are given) before it has ended, which a pidfd tells (poll(2),
// Exited), or while it is not stopped or attached to.
func OpenUnwaited(pid int) (*Process, error) {
	p, err := Open(pid)
	if err == nil {
		p.waited = false
	}
	return p, err
}

// Stoppable refuses a child that somebody may wait for.
func (p *Process) Stoppable() error {
	if p.waited {
		return fmt.Errorf("process %d: %w, which would take a stop for its end: start it with process.Start, or open it with process.OpenUnwaited and wait only once a pidfd tells its end", p.pid, ErrChild)
	}
	return nil
}

func open(pid int) (_ *Process, err error) {
	if pid <= 0 {
		return nil, fmt.Errorf("%w: a pid is above 0", ErrNoProcess)
	}
	p := &Process{pid: pid, pidfd: -1, wake: -1}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if p.dir, err = os.OpenFile("/proc/"+strconv.Itoa(pid), unix.O_DIRECTORY|unix.O_PATH, 0); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, ErrNoProcess
		}
		return nil, err
	}
	if err := p.checkKind(); err != nil {
		return nil, err
	}
	if p.pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	if err := p.openMem(); err != nil {
		return nil, err
	}
	if err := p.checkExe(); err != nil {
		return nil, err
	}
	if p.image, err = p.settledImage(); err != nil {
		return nil, err
	}
	return p, p.CheckAlive() // dir, pidfd and memory are of one process: it has lived until here
}

// checkKind refuses what is no process of its own.
func (p *Process) checkKind() error {
	st, err := p.Status()
	if err != nil {
		return err
	}
	switch {
	case st.TGID == os.Getpid():
		return ErrSelf
	case st.TGID != p.pid:
		return fmt.Errorf("%w: it is a thread of process %d: name that", ErrUnsupported, st.TGID)
	case st.State == "X", st.State == "Z" && p.liveTask() == 0:
		return fmt.Errorf("%w: it has ended (zombie) and waits for its parent %d", ErrNoProcess, st.PPID)
	}
	p.waited = st.PPID == os.Getpid()
	stat, err := p.Stat()
	if err != nil {
		return err
	}
	if stat.Flags&procfs.FlagKernel != 0 {
		return fmt.Errorf("%w: %s is a kernel thread", ErrUnsupported, procfs.Escape(stat.Comm))
	}
	return nil
}

// liveTask gives a thread that still has the process's memory, 0 if there is none.
func (p *Process) liveTask() int {
	if st, err := p.TaskStatus(p.pid); err == nil && st.State != "Z" && st.State != "X" {
		return p.pid // as a rule: to list thousands takes a while
	}
	tids, err := p.Tasks()
	if err != nil {
		return 0
	}
	for _, tid := range tids {
		if st, err := p.TaskStatus(tid); err == nil && st.State != "Z" && st.State != "X" {
			return tid
		}
	}
	return 0
}

// openMem opens the process's memory, which takes the same permission as ptrace.
func (p *Process) openMem() error {
	f, err := p.OpenAt("mem", unix.O_RDWR)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		if tid := p.liveTask(); tid != 0 {
			f, err = p.OpenAt(fmt.Sprintf("task/%d/mem", tid), unix.O_RDWR)
		}
	}
	switch {
	case err == nil:
		p.mem = f
		return nil
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return p.denied("tracing it")
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH):
		return ErrNoProcess
	}
	return fmt.Errorf("memory: %w", err)
}

// denied says why tracing was refused, as far as it can be known from here.
func (p *Process) denied(what string) error {
	why := "it is not dumpable or has more privileges than we: run as root or with CAP_SYS_PTRACE"
	if st, err := p.Status(); err == nil && int(st.UID[1]) != os.Geteuid() {
		why = fmt.Sprintf("it runs as user %d and we as %d: run as that user, or as root or another with CAP_SYS_PTRACE and CAP_DAC_OVERRIDE", st.UID[1], os.Geteuid())
	} else if scope := yamaScope(); scope != "" && scope != "0" {
		why = fmt.Sprintf("kernel.yama.ptrace_scope is %s: run as root or with CAP_SYS_PTRACE, or set it to 0", scope)
	}
	return fmt.Errorf("%w: %s is refused: %s", ErrPermission, what, why)
}

func yamaScope() string {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// PID is the process id in our own pid namespace.
func (p *Process) PID() int { return p.pid }

// Close forgets the process: it ends the watcher of Exited. A
// stopped process must be released before.
func (p *Process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.unback()
	if p.wake >= 0 {
		unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		<-p.exited // the watcher uses both descriptors until then
		unix.Close(p.wake)
	}
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
	}
	for _, f := range []*os.File{p.mem, p.dir} {
		if f != nil {
			f.Close()
		}
	}
	return nil
}

// CheckAlive says with ErrNoProcess that the process has ended.
func (p *Process) CheckAlive() error {
	if err := unix.PidfdSendSignal(p.pidfd, 0, nil, 0); errors.Is(err, unix.ESRCH) {
		return ErrNoProcess
	}
	return nil
}

// Alive says whether the process still exists. One that has ended and was not waited for
// by its parent yet does not.
func (p *Process) Alive() bool {
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 0
}

// Exited gives a channel that is closed when the process has ended, or at Close.
func (p *Process) Exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited != nil {
		return p.exited
	}
	p.exited = make(chan struct{})
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if p.closed || err != nil {
		close(p.exited)
		return p.exited
	}
	p.wake = wake
	go watch(p.pidfd, wake, p.exited)
	return p.exited
}

// watch waits for the end of a process, or for wake.
func watch(pidfd, wake int, exited chan<- struct{}) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	close(exited)
}

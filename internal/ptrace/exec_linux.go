package ptrace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// A process is met in its exec while the kernel holds the thread in the middle of that system call, because somebody has asked to permit
// it (fanotify(7), FAN_OPEN_EXEC_PERM). The steps, and what a tracer leaves that is killed behind each:
//
//	1. PTRACE_SEIZE and PTRACE_INTERRUPT: the thread is traced, and goes on in its system call.
//	2. The exec is permitted. The thread stops behind it (PTRACE_EVENT_EXEC), or where the system call has failed.
//	3. If the loader registers restartable sequences, the thread runs from system call to system call until it has done so: then
//	   the objects of the program are mapped, and its thread control block is there. No instruction is changed for that.
//	4. The thread stands as in any stop.
//
// Nothing is written before step 4 is over, so a killed tracer leaves nothing in the process, which runs on.

// ErrNoExec: the thread has executed no program, or another one [ENOEXEC].
var ErrNoExec = fmt.Errorf("%w: the exec has failed", unix.ENOEXEC)

// execTime bounds how long a thread may take from the permission to its stop, and from there through its loader.
const execTime = 10 * time.Second

// standTime bounds how long each thread of it may take to its stop then. There is no other attempt, as Stop makes: nothing of the program waits for
// this process yet.
const standTime = 2 * time.Second

// Met is a process that was stopped in its exec.
type Met struct {
	Process *Process
	Stopped *Stopped
	// Begun: code of the program, or of an object's, may have run already.
	Begun bool
}

// Loaders remembers which dynamic loaders register restartable sequences. The zero value is ready; several goroutines may use it.
type Loaders struct {
	mu  sync.Mutex
	has map[procfs.FileID]bool
}

// MeetExec attaches to a thread of process pid that the kernel holds in an exec, has allow permit that, and gives the process stopped
// before the first instruction of its program: in its loader, or where that, or a program without one, begins. allow is called in any case, and may be called
// by others too. Errors: ErrNoExec, ErrBusy (another tracer), ErrPermission, ErrNoProcess, and those of Open and Stop.
func MeetExec(pid, tid int, loaders *Loaders, allow func()) (Met, error) {
	t := newTracer()
	e := &execRun{s: &Stopped{t: t, since: time.Now(), known: make(map[int]*Thread)}, pid: pid, tid: tid, loaders: loaders}
	err := t.do(func() error { return e.meet(allow) })
	allow()
	if err != nil {
		e.drop()
		return Met{}, fmt.Errorf("exec of process %d: %w", pid, err)
	}
	return Met{e.s.p, e.s, e.begun}, nil
}

// execRun is a thread on its way through an exec and the loader. Its methods run on the tracer's thread.
type execRun struct {
	s       *Stopped
	pid     int
	tid     int // until the exec; the process's first thread takes its place
	loaders *Loaders
	begun   bool
}

func (e *execRun) meet(allow func()) error {
	if err := e.seize(allow); err != nil {
		return err
	}
	allow()
	ev, err := e.await(time.Now().Add(execTime))
	switch {
	case err != nil:
		return err
	case ev.gone:
		return ErrNoProcess
	case ev.kind != unix.PTRACE_EVENT_EXEC && ev.kind != unix.PTRACE_EVENT_STOP:
		return ErrNoExec // a signal ends the system call
	}
	if ev.kind == unix.PTRACE_EVENT_EXEC {
		// A thread that has got another id takes no request before its exec has been waited for (looks_like_a_spurious_pid in
		// kernel/ptrace.c). No signal is lost with that.
		if _, err := unix.Wait4(e.pid, nil, unix.WNOHANG|unix.WALL, nil); err != nil {
			return fmt.Errorf("wait4: %w", err)
		}
	}
	p, err := OpenUnwaited(e.pid)
	if err != nil {
		return err
	}
	if err := p.begin(e.s); err != nil {
		return errors.Join(err, p.Close())
	}
	e.s.p, e.s.groups = p, []*group{{p.pid, p.dir}}
	if e.begun = ev.kind != unix.PTRACE_EVENT_EXEC; !e.begun {
		if err := e.load(); err != nil {
			return err
		}
	}
	return e.stand()
}

// attachTime is how often a look finds out whether an attach waits for the exec.
const attachTime = 50 * time.Millisecond

// seize attaches to the thread, and tells it to stop. The kernel lets nobody attach in the second half of an exec, in which an interpreter is opened
// (cred_guard_mutex): then the exec is permitted first, and this comes in right behind it. Other goroutines run while it waits.
func (e *execRun) seize(allow func()) error {
	attached := make(chan struct{})
	defer close(attached)
	go permitAwaited(unix.Gettid(), attached, allow)
	step("seize")
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXEC
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(e.tid), 0, options, 0, 0)
	switch errno {
	case 0:
		return ptrace(unix.PTRACE_INTERRUPT, e.tid, 0, 0)
	case unix.ESRCH:
		return ErrNoProcess
	case unix.EPERM:
		return e.unattached()
	}
	return fmt.Errorf("PTRACE_SEIZE of thread %d: %w", e.tid, errno)
}

// permitAwaited calls allow when a tracer's thread waits in the kernel to attach. A thread that waits for a processor is not taken for one: the
// program would run without it, and might end.
func permitAwaited(tracer int, attached <-chan struct{}, allow func()) {
	look := time.NewTicker(attachTime)
	defer look.Stop()
	for {
		select {
		case <-attached:
			return
		case <-look.C:
			if waitsIn(tracer, unix.SYS_PTRACE) {
				allow()
				return
			}
		}
	}
}

// waitsIn says whether a thread of this process sleeps in a system call; true if that is not known.
func waitsIn(tid int, call int) bool {
	now, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", tid)) // "running", or number and arguments
	return err != nil || bytes.HasPrefix(now, fmt.Appendf(nil, "%d ", call))
}

// unattached is why the kernel refuses to attach to the thread.
func (e *execRun) unattached() error {
	st, err := statusOf(e.tid)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH):
		return ErrNoProcess
	case err == nil && (st.State == "Z" || st.State == "X"): // the exec was permitted before its turn came
		return ErrNoProcess
	case err == nil && st.TracerPID != 0:
		tracer := processOf(st.TracerPID)
		return fmt.Errorf("%w: thread %d is traced by process %d (%s)", ErrBusy, e.tid, tracer, comm(tracer))
	}
	return fmt.Errorf("%w: PTRACE_SEIZE of thread %d", ErrPermission, e.tid)
}

// await waits for the next stop. An exec gives the thread that makes it the id of its process.
func (e *execRun) await(deadline time.Time) (event, error) {
	for n := 0; ; n++ {
		ev, ok, err := poll(e.tid)
		if ok && ev.gone && !ev.exited && e.tid != e.pid {
			e.tid = e.pid
			continue
		}
		if ok || err != nil {
			return ev, err
		}
		if err := pause(n, deadline); err != nil {
			return ev, fmt.Errorf("it does not stop within %v: %w", execTime, err)
		}
	}
}

// load takes the process to where its loader has registered restartable sequences. One that does not stays where the exec has put it. If the
// first system call comes that is not the loader's own, the program may have begun.
func (e *execRun) load() error {
	loader, ok, err := e.loader()
	if err != nil || !ok {
		return err
	}
	deadline := time.Now().Add(execTime)
	for sig := 0; ; {
		if err := ptrace(unix.PTRACE_SYSCALL, e.pid, 0, uintptr(sig)); err != nil {
			return err
		}
		ev, err := e.await(deadline)
		switch {
		case err != nil:
			return err
		case ev.gone:
			return ErrNoProcess
		case ev.signal != int(unix.SIGTRAP)|0x80:
			if sig = ev.signal; ev.kind != 0 {
				sig = 0
			}
			continue
		}
		sig = 0
		r, err := getRegs(e.pid)
		switch {
		case err != nil:
			return err
		case r.result() == -int64(unix.ENOSYS) && !loader.Contains(r.PC()):
			e.begun = true
			return nil
		case r.call() == unix.SYS_RSEQ && r.result() != -int64(unix.ENOSYS):
			return nil
		}
	}
}

// loader gives the mappings of the process's loader as one; ok is false if there is none, or one that registers no sequences.
func (e *execRun) loader() (all procfs.Map, ok bool, err error) {
	aux, err := e.s.p.Auxv()
	if err != nil || aux[atBase] == 0 {
		return all, false, err
	}
	maps, err := e.s.p.Maps()
	if err != nil {
		return all, false, err
	}
	all, ok = procfs.FindMap(maps, aux[atBase])
	if !ok || all.Anonymous() {
		return all, false, nil
	}
	for _, m := range maps {
		if m.FileID == all.FileID {
			all.End = max(all.End, m.End)
		}
	}
	has, err := e.loaders.registers(e.s.p, all)
	return all, has, err
}

const atBase = 7 // AT_BASE (linux/auxvec.h): where the loader is mapped

// rseqName is what a C library exports that registers restartable sequences (glibc 2.35 and later).
var rseqName = []byte("\x00__rseq_offset\x00")

// registers says whether the loader mapped at m registers sequences.
func (l *Loaders) registers(p *Process, m procfs.Map) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if has, ok := l.has[m.FileID]; ok {
		return has, nil
	}
	f, err := p.OpenMap(m)
	if err != nil {
		return false, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLoader))
	if err != nil {
		return false, err
	}
	if l.has == nil {
		l.has = map[procfs.FileID]bool{}
	}
	l.has[m.FileID] = bytes.Contains(text, rseqName)
	return l.has[m.FileID], nil
}

// maxLoader bounds what is read of a loader's file, in bytes.
const maxLoader = 8 << 20

// stand makes it a stop as any other.
func (e *execRun) stand() error {
	first := &Thread{TID: e.pid, TGID: e.pid, s: e.s, g: e.s.groups[0], told: true}
	if err := ptrace(unix.PTRACE_SETOPTIONS, e.pid, 0, unix.PTRACE_O_TRACESYSGOOD); err != nil {
		return err
	}
	if err := ptrace(unix.PTRACE_INTERRUPT, e.pid, 0, 0); err != nil {
		return err
	}
	if err := ptrace(unix.PTRACE_CONT, e.pid, 0, 0); err != nil {
		return err
	}
	e.s.known[e.pid], e.s.since = first, time.Now()
	if err := e.s.awaitAll([]*Thread{first}, standTime); err != nil {
		return err
	}
	return e.s.stopAll(standTime)
}

// drop gives the process up: the kernel detaches from the thread when the tracer's ends, and lets it run on.
func (e *execRun) drop() {
	if e.s.p == nil {
		e.s.t.end()
		return
	}
	e.s.abandon()
	_ = e.s.p.Close()
}

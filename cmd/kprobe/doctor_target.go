package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/holder"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/target/process"
)

// examineProcess looks at a process that is to be probed.
func examineProcess(pid int) []finding {
	p, err := process.OpenUnwaited(pid)
	if err != nil {
		return []finding{checkOpen(pid, err)}
	}
	defer p.Close()
	fs := []finding{checkOpen(pid, nil), checkHolder(p.Holder())}
	st, err := p.Status()
	if err != nil {
		return append(fs, unknown("status", err))
	}
	fs = append(fs, checkTracer(st.TracerPID), checkSeccomp(st))
	fs = append(fs, examineProgram(p)...)
	if st.TracerPID == 0 {
		fs = append(fs, examineStopped(p)...)
	}
	return append(fs, examineLimits(pid, "")...)
}

func unknown(check string, err error) finding {
	return fine(check, "not known: %s", escapedError(err)).warn("what depends on it is found out when it is probed")
}

func checkOpen(pid int, err error) finding {
	f := fine("process", "%d is one that this caller may trace", pid)
	switch {
	case err == nil:
		return f
	case errors.Is(err, process.ErrPermission):
		f.Found = escapedError(err)
		return f.fail("run as root or as its user; see rights and yama above")
	case errors.Is(err, process.ErrSelf):
		f.Found = escapedError(err)
		return f.fail("examine another one")
	}
	f.Found = escapedError(err)
	return f.fail("it can not be probed")
}

func checkHolder(h *procfs.Holder, err error) finding {
	switch {
	case err != nil:
		return unknown("holder", err)
	case h == nil:
		return fine("holder", "no other kprobe holds it")
	}
	c, err := holder.Dial(h)
	if err != nil {
		return fine("holder", "held by %s", h).fail("it serves nobody else: end it first")
	}
	_ = c.Close()
	return fine("holder", "held by %s, which serves others too", h)
}

func checkTracer(pid int) finding {
	if pid == 0 {
		return fine("tracer", "nobody traces it")
	}
	return fine("tracer", "process %d traces it", pid).fail("a process has one tracer: let the debugger detach")
}

func checkSeccomp(st *procfs.Status) finding {
	switch st.Seccomp {
	case procfs.SeccompNone:
		return fine("seccomp", "no filter")
	case procfs.SeccompStrict:
		return fine("seccomp", "strict mode").fail("it may make no system call for us: it can not be probed")
	}
	return fine("seccomp", "filters: %d", st.Filters).
		warn("they must allow memfd_create, mmap, munmap, close and rt_sigaction; what they forbid is told when it is probed")
}

// examineProgram looks at the files that the process runs.
func examineProgram(p *process.Proc) []finding {
	t, err := process.Attach(p, nil)
	if err != nil {
		return []finding{fine("program", "%s", escapedError(err)).fail("its files can not be read")}
	}
	fs := []finding{checkProgram(t.Space().Main())}
	l, err := process.FindLeftover(p)
	switch {
	case err != nil:
		fs = append(fs, unknown("left behind", err))
	case l != nil:
		fs = append(fs, fine("left behind", "%d patches of an earlier kprobe", len(l.Sites)).
			warn(fmt.Sprintf("unless it is held now: kprobe detach -p %d", p.PID())))
	default:
		fs = append(fs, fine("left behind", "nothing of an earlier kprobe"))
	}
	return fs
}

func checkProgram(m *symbol.Module) finding {
	if m == nil {
		return fine("program", "its file is not among its mappings").fail("only code of files can be probed")
	}
	im, n := m.Image, 0
	for _, fn := range im.Funcs() {
		if !fn.PLT && fn.Candidate() {
			n++
		}
	}
	language := "C or the like"
	if im.IsGo() {
		language = im.GoVersion()
	}
	f := fine("program", "%s (%s), %d functions", im.Path(), language, n)
	if n == 0 {
		return f.warn("no function is known: install its debug symbols, or probe the objects it maps")
	}
	return f
}

// examineStopped stops the process and asks what the kernel tells of stopped threads only.
func examineStopped(p *process.Proc) []finding {
	s, err := p.Stop(nil)
	if err != nil {
		return []finding{fine("stop", "%s", escapedError(err)).fail("its threads must be able to stop; try again when they wait for less")}
	}
	threads := s.Threads()
	fs := []finding{fine("stop", "%d threads stop", len(threads)), checkSharers(p.PID(), threads)}
	fs = append(fs, checkTraps(s), checkThreadsRseq(s), checkMDWE(mdwe(s)))
	if err := s.Release(); err != nil {
		fs = append(fs, fine("release", "%s", escapedError(err)).warn("a thread ended meanwhile"))
	}
	return fs
}

func checkSharers(pid int, threads []*ptrace.Thread) finding {
	others := map[int]bool{}
	for _, t := range threads {
		if t.TGID != pid {
			others[t.TGID] = true
		}
	}
	if len(others) == 0 {
		return fine("memory shared", "with no other process")
	}
	return fine("memory shared", "with %d other processes (CLONE_VM)", len(others)).warn("they are stopped and probed with it")
}

// checkTraps says whether a breakpoint that is asked for by name may stand in the program.
func checkTraps(s *process.Stopped) finding {
	f := fine("breakpoints", "SIGTRAP is free now: %s may stand where it is asked for (--tactic boost)", native.BreakpointName)
	all, err := s.Dispositions()
	if err != nil {
		return unknown("breakpoints", err)
	}
	if why := trapUser(all, s.Threads()); why != "" {
		f.Found = why
		return f.warn(native.BreakpointName + " is refused, also where it is asked for (--tactic boost, step)")
	}
	return f
}

// trapUser says what in the program stands against breakpoints; "" if nothing does.
func trapUser(all *[ptrace.Signals]ptrace.Sigaction, threads []*ptrace.Thread) string {
	const trap = 1 << (unix.SIGTRAP - 1)
	if all[unix.SIGTRAP].Handler != ptrace.SigDefault {
		return "the program handles or ignores SIGTRAP itself"
	}
	for sig, a := range all {
		if a.Handler > ptrace.SigIgnore && a.Mask&trap != 0 {
			return fmt.Sprintf("the program's handler of signal %d (%s) blocks SIGTRAP", sig, unix.SignalName(unix.Signal(sig)))
		}
	}
	blocked := 0
	for _, t := range threads {
		if m, err := t.SigMask(); err != nil || m&trap != 0 {
			blocked++
		}
	}
	if blocked > 0 {
		return fmt.Sprintf("%d of %d threads block SIGTRAP", blocked, len(threads))
	}
	return ""
}

// checkThreadsRseq counts the threads that have registered a restartable sequence.
func checkThreadsRseq(s *process.Stopped) finding {
	have, threads := 0, s.Threads()
	err := s.Do(func() error {
		for _, t := range threads {
			addr, err := rseqRegistered(t.TID)
			if err != nil {
				return err
			}
			if addr != 0 {
				have++
			}
		}
		return nil
	})
	if err != nil {
		return unknown("threads' rseq", err)
	}
	f := fine("threads' rseq", "%d of %d threads have registered one", have, len(threads))
	if have < len(threads) {
		return f.warn("the others count and record with locked instructions, some ns more (glibc 2.35 registers all; Go, musl and older ones none)")
	}
	return f
}

// prMDWE is PR_GET_MDWE, and mdweRefuse its bit PR_MDWE_REFUSE_EXEC_GAIN (linux/prctl.h,
// kernel 6.3).
const (
	prMDWE     = 66
	mdweRefuse = 1
)

// mdwe lets a thread of the target ask whether it may gain executable memory.
func mdwe(s *process.Stopped) (refused bool, err error) {
	v, err := s.Call(unix.SYS_PRCTL, prMDWE)
	if errors.Is(err, unix.EINVAL) {
		return false, nil // a kernel without it
	}
	return v&mdweRefuse != 0, err
}

func checkMDWE(refused bool, err error) finding {
	switch {
	case err != nil:
		return unknown("new code", err)
	case refused:
		return fine("new code", "the process gave up the right to make memory executable (PR_SET_MDWE); code that is mapped executable at once it still takes")
	}
	return fine("new code", "memory may be made executable")
}

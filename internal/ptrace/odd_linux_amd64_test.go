package ptrace

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

// A vfork parent stands still until its child is done. If that is soon, a later attempt
// stops it; if it is never, the stop is refused, names it, and leaves it alone.
func TestStopVforkParent(t *testing.T) {
	prog := build(t, "odd")
	t.Run("for a while", func(t *testing.T) {
		r := run(t, prog, "vfork", "20")
		p := r.open()
		for range 10 {
			s := stop(t, p)
			injectEach(t, s)
			release(t, s)
		}
		r.Fine()
		untouched(t, p)
	})
	t.Run("for ever", func(t *testing.T) {
		r := run(t, prog, "vfork", "0")
		p := r.open()
		parent := 0
		for _, tid := range tasks(t, r.PID) {
			if tid != r.PID {
				parent = tid
			}
		}
		for vforked := false; !vforked; time.Sleep(time.Millisecond) {
			st, err := p.TaskStatus(parent)
			if err != nil {
				t.Fatal(err)
			}
			vforked = st.State == "D"
		}
		for range 10 {
			s := stop(t, p)
			if len(s.parked) != 1 || s.parked[0].TID != parent || s.parked[0].regs.OrigRAX != unix.SYS_VFORK {
				t.Errorf("parked %+v, want thread %d in vfork", s.parked, parent)
			}
			if m, ok := procfs.FindMap(mapsOf(t, p), s.parked[0].regs.RIP); !ok || m.Perm&procfs.PermExec == 0 {
				t.Errorf("it stands at %#x, which is no code", s.parked[0].regs.RIP)
			}
			if m, ok := procfs.FindMap(mapsOf(t, p), s.parked[0].regs.RSP); !ok || m.Perm&procfs.PermWrite == 0 {
				t.Errorf("its stack pointer is %#x", s.parked[0].regs.RSP)
			}
			injectEach(t, s)
			release(t, s)
		}
		r.Fine()
		untouched(t, p)
	})
}

// A process that was cloned with the memory is stopped with it.
func TestStopTakesSharers(t *testing.T) {
	r := run(t, build(t, "odd"), "sharer")
	p := r.open()
	children, err := p.Children()
	if err != nil || len(children) != 1 {
		t.Fatalf("children %v, %v", children, err)
	}
	for range 20 {
		s := stop(t, p)
		last := s.Threads()[len(s.Threads())-1]
		if last.TGID != children[0] || s.Threads()[0].TGID != r.PID {
			t.Fatalf("last thread is %d of %d, want one of %d", last.TID, last.TGID, children[0])
		}
		waitState(t, children[0], "t")
		release(t, s)
		r.Fine()
	}
	untouched(t, p)
}

func TestStopWithoutFirstThread(t *testing.T) {
	r := run(t, build(t, "odd"), "leader")
	waitState(t, r.PID, "Z")
	p := r.open()
	s := stop(t, p)
	if n := len(s.Threads()); n != 1 || s.Threads()[0].TID == r.PID {
		t.Fatalf("%d threads", n)
	}
	at, err := s.Mmap(0, procfs.PageSize, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WriteMem(at, []byte("x")); err != nil {
		t.Fatal(err)
	}
	release(t, s)
	r.Fine()
	if err := p.CheckImage(); err != nil {
		t.Error(err)
	}
}

// A process that is stopped by job control stays so, and can make calls for us.
func TestStopOfStoppedProcess(t *testing.T) {
	r := run(t, build(t, "live"), "2")
	p := r.open()
	if err := p.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitState(t, r.PID, "T")
	s := stop(t, p)
	injectEach(t, s)
	release(t, s)
	for _, tid := range tasks(t, r.PID) {
		waitState(t, tid, "T")
	}
	if err := p.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.Fine()
	// And one that is stopped while we hold it.
	s = stop(t, p)
	if err := p.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	injectEach(t, s)
	release(t, s)
	for _, tid := range tasks(t, r.PID) {
		waitState(t, tid, "T")
	}
	if err := p.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.Fine()
	untouched(t, p)
}

// Signals that come while a process stands still are all there when it goes on, and none
// before: the live program's timer fires every 3 ms.
func TestStopLosesNoSignal(t *testing.T) {
	r := run(t, build(t, "live"), "2")
	p := r.open()
	count := func() (n int) {
		var rounds int
		if _, err := fmt.Sscanf(r.Ask("how"), "ok %d %d", &rounds, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 20 {
		before := count()
		s := stop(t, p)
		for th := s.Threads()[0]; ; time.Sleep(time.Millisecond) {
			st, err := th.Status()
			if err != nil {
				t.Fatal(err)
			}
			if (st.ShdPnd|st.SigPnd)>>(unix.SIGALRM-1)&1 != 0 {
				break
			}
		}
		injectEach(t, s)
		st, err := s.Threads()[0].Status()
		if err != nil || (st.ShdPnd|st.SigPnd)>>(unix.SIGALRM-1)&1 == 0 {
			t.Fatalf("a pending signal is gone after calls: %+v, %v", st, err)
		}
		release(t, s)
		for end := time.Now().Add(patience); count() <= before; { // another thread may still be on its way to the handler
			if time.Now().After(end) {
				t.Fatalf("the pending signal does not arrive: %d before and after", before)
			}
		}
	}
}

func TestStopOfTraced(t *testing.T) {
	r := run(t, build(t, "live"), "1")
	p, q := r.open(), r.open()
	s := stop(t, p)
	if _, err := p.Stop(nil); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "stopped already") {
		t.Errorf("second stop: %v", err)
	}
	if _, err := q.Stop(nil); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), fmt.Sprintf("traced by process %d", unix.Getpid())) {
		t.Errorf("stop of what another traces: %v", err)
	}
	release(t, s)
	if err := s.Release(); !errors.Is(err, ErrReleased) {
		t.Errorf("second release: %v", err)
	}
	if _, err := s.Call(sysGettid); !errors.Is(err, ErrReleased) {
		t.Errorf("call after the release: %v", err)
	}
	if err := s.Threads()[0].SetRegs(Regs{}); !errors.Is(err, ErrReleased) {
		t.Errorf("registers after the release: %v", err)
	}
	s = stop(t, q)
	release(t, s)
	r.Fine()
}

// A thread in a restartable sequence cannot go on in it after a call: it goes to the
// sequence's abort handler, as the kernel would have it.
func TestCallAbortsRestartableSequence(t *testing.T) {
	r := run(t, build(t, "odd"), "rseq")
	p := r.open()
	var begin, end, abort uint64
	if _, err := fmt.Sscanf(r.Ask("rseq"), "%d %d %d", &begin, &end, &abort); err != nil {
		t.Fatal(err)
	}
	for seen := 0; seen < 5; {
		s := stop(t, p)
		for _, th := range s.Threads() {
			section, at, in, err := th.RseqSection()
			if err != nil {
				t.Fatal(err)
			}
			rip := th.Regs().RIP
			if inside := begin <= rip && rip < end; in != inside || in && (section != interval.Range{Start: begin, End: end} || at != abort) {
				t.Fatalf("thread at %#x: section %#x, abort %#x, in it: %v, want [%#x, %#x), %#x, %v", rip, section, at, in, begin, end, abort, inside)
			}
			if !in {
				continue
			}
			seen++
			all := s.threads
			s.threads = []*Thread{th}
			if _, err := s.Call(sysGettid); err != nil {
				t.Fatal(err)
			}
			s.threads = all
			if rip := th.Regs().RIP; rip != abort {
				t.Fatalf("it goes on at %#x, not at its abort handler %#x", rip, abort)
			}
		}
		release(t, s)
		r.Fine()
	}
}

// An alternate signal stack within another stack has other data right below it, which a
// frame must not be laid over.
func TestCallOnAlternateStack(t *testing.T) {
	r := run(t, build(t, "odd"), "altstack")
	r.Fine() // it is in the handler now
	p := r.open()
	s := stop(t, p)
	th := s.Threads()[0]
	m, ok := procfs.FindMap(mapsOf(t, p), th.Regs().RSP)
	if !ok || m.Path != "[stack]" {
		t.Fatalf("stack pointer %#x is in %+v", th.Regs().RSP, m)
	}
	alt, on := s.altStack(m, th.Regs().RSP)
	if !on || alt.Size() != 16384 || !(alt.Start <= th.Regs().RSP && th.Regs().RSP < alt.End) {
		t.Fatalf("alternate stack %#x, found: %v; stack pointer %#x", alt, on, th.Regs().RSP)
	}
	before := make([]byte, 16384)
	if err := p.ReadMem(alt.Start-16384, before); err != nil {
		t.Fatal(err)
	}
	injectEach(t, s)
	after := make([]byte, 16384)
	if err := p.ReadMem(alt.Start-16384, after); err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Error("bytes below the alternate stack were changed")
	}
	release(t, s)
	r.Fine()
}

// A thread that the kernel will make repeat its call says where it goes on.
func TestResumePC(t *testing.T) {
	r := run(t, build(t, "live"), "1")
	r.Fine() // the other thread has blocked its signals
	p := r.open()
	s := stop(t, p)
	main := s.Threads()[0] // will read a pipe
	for end := time.Now().Add(patience); ; main = s.Threads()[0] {
		nr, in := main.InSyscall()
		if in && nr == unix.SYS_READ {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("main thread is in system call %d, %v", nr, in)
		}
		release(t, s)
		s = stop(t, p)
	}
	defer s.Release()
	b := make([]byte, 2)
	if err := p.ReadMem(main.ResumePC(), b); err != nil || string(b) != "\x0f\x05" || main.ResumePC() != main.Regs().RIP-2 {
		t.Errorf("it goes on at %#x with % x, %v; rip is %#x", main.ResumePC(), b, err, main.Regs().RIP)
	}
	if main.ThreadPointer() == 0 {
		t.Error("no thread pointer")
	}
	mask, err := s.Threads()[1].SigMask()
	if err != nil || mask>>(unix.SIGUSR1-1)&1 == 0 {
		t.Errorf("signal mask of a thread that blocks SIGUSR1: %#x, %v", mask, err)
	}
}

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// keptTries is how many tracers are killed until the kernel keeps a uprobe of one.
const keptTries = 30

// keep kills tracers of a process while the kernel takes out their uprobes on functions, until the kernel keeps one. It
// gives the address.
func keep(t *testing.T, p *testprog.Proc, functions ...string) uint64 {
	t.Helper()
	var at []uint64
	var probes []string
	for _, f := range functions {
		at = append(at, (&session{t: t, pid: p.PID}).place(f))
		probes = append(probes, "p "+f)
	}
	for i := range keptTries {
		s := &session{t: t, pid: p.PID}
		s.start(command(t, append([]string{"trace", "-p", pid(p), "--alone", "--tactic", "uprobe"}, probes...)...))
		within(t, "the kernel's breakpoints", func() bool {
			select {
			case <-s.done:
				t.Fatalf("%s ended early: %v", s.cmd, outcomeOf(t, s.err, s.out.String(), s.errs.String()))
			default:
			}
			return len(breaks(t, p.PID, at...)) == len(at)
		})
		s.interrupt()
		within(t, "the tracer to take out a uprobe", func() bool {
			select {
			case <-s.done:
				return true
			default:
			}
			return takesOut(s.cmd.Process.Pid)
		})
		_ = s.cmd.Process.Kill()
		<-s.done
		if kept := breaks(t, p.PID, at...); len(kept) > 0 {
			t.Logf("kept at 0x%x, of the %d. tracer that was killed", kept, i+1)
			return kept[0]
		}
	}
	t.Skipf("this kernel has kept no uprobe of %d tracers that were killed while it took one out", keptTries)
	return 0
}

// breaks gives those of addresses at which a breakpoint stands.
func breaks(t *testing.T, pid int, at ...uint64) (out []uint64) {
	t.Helper()
	for _, a := range at {
		b := make([]byte, 1)
		if read(t, pid, a, b); b[0] == 0xcc {
			out = append(out, a)
		}
	}
	return out
}

// takesOut says whether a thread of a process waits in the kernel for the end of a perf event's program. What the
// kernel does after that to take out the uprobe fails if the thread is killed.
func takesOut(pid int) bool {
	stacks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", pid))
	for _, s := range stacks {
		b, err := os.ReadFile(s)
		if err == nil && strings.Contains(string(b), "perf_event_detach_bpf_prog") {
			return true
		}
	}
	return false
}

// A uprobe that the kernel has kept of a killed tracer is taken out by whoever comes next.
func TestKeptUprobe(t *testing.T) {
	// whole looks at what is there at the end: the file's code, and nobody's breakpoint for a jump to avoid.
	whole := func(t *testing.T, p *testprog.Proc) {
		t.Helper()
		s := trace(t, p.PID, "--tactic", "jump", "p:a f_six a=$arg1", "p:b f_lea", "p:c f_push")
		n := right(t, p, "go 100")
		r := s.end()
		r.counted(t, "a", n["f_six"], "jump")
		r.counted(t, "b", n["f_lea"], "jump")
		intact(t, p.PID)
	}
	t.Run("attach", func(t *testing.T) {
		p := startWork(t)
		keep(t, p, "f_six", "f_lea", "f_push")
		whole(t, p)
	})
	t.Run("detach", func(t *testing.T) {
		p := startWork(t)
		keep(t, p, "f_six", "f_lea", "f_push")
		if o := run(t, command(t, "detach", "-p", pid(p))); o.code != 0 || !strings.Contains(o.stderr, "the kernel had kept") {
			t.Error(o)
		}
		intact(t, p.PID)
		whole(t, p)
	})
	t.Run("deleted", func(t *testing.T) { // the program's file is no more
		p := startWork(t)
		at := keep(t, p, "f_six", "f_lea", "f_push")
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(exe); err != nil {
			t.Fatal(err)
		}
		if o := run(t, command(t, "detach", "-p", pid(p))); o.code != 0 || len(breaks(t, p.PID, at)) > 0 {
			t.Error(o)
		}
		right(t, p, "go 10")
	})
	t.Run("hit", func(t *testing.T) { // the program runs into it again and again; the kernel makes that of f_nop5 a call
		for _, f := range []string{"f_six", "f_nop5"} {
			p := startWork(t)
			keep(t, p, f)
			right(t, p, "go 1000")
			if o := run(t, command(t, "detach", "-p", pid(p))); o.code != 0 {
				t.Error(o)
			}
			intact(t, p.PID)
			right(t, p, "go 10")
		}
	})
}

// breakAt writes a breakpoint into a function of a process, as the kernel keeps one.
func breakAt(t *testing.T, p *testprog.Proc, function string) uint64 {
	t.Helper()
	at := (&session{t: t, pid: p.PID}).place(function)
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", p.PID), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	if _, err := mem.WriteAt([]byte{0xcc}, int64(at)); err != nil {
		t.Fatal(err)
	}
	return at
}

// The engine meets a breakpoint that nobody lives on, and that no tracer of kprobe's has left.
func TestKeptUprobeOnPage(t *testing.T) {
	p := startWork(t)
	breakAt(t, p, "f_six")
	s := trace(t, p.PID, "--tactic", "jump", "p:a f_lea")
	n := right(t, p, "go 100")
	s.end().counted(t, "a", n["f_lea"], "jump")
}

// After a tracer of kprobe's was killed a handler of SIGTRAP does not matter: neither the tracer's own nor the
// program's.
func TestKeptUprobeBesideHandler(t *testing.T) {
	for _, c := range []struct{ program, function, tactic string }{{"work", "f_six", "boost"}, {"trapuser", "narrow", "jump"}} {
		t.Run(c.program, func(t *testing.T) {
			p := testprog.Start(t, testprog.Copy(t, testprog.Build(t, c.program)))
			breakAt(t, p, c.function)
			s := trace(t, p.PID, "--alone", "--tactic", c.tactic, "p:a libc.so.6:strlen")
			if err := s.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-s.done
			if o := run(t, command(t, "detach", "-p", pid(p))); o.code != 0 || !strings.Contains(o.stderr, "1 breakpoints that the kernel had kept") {
				t.Error(o)
			}
			intact(t, p.PID)
			right(t, p, "go 10")
		})
	}
}

// A uprobe that somebody uses stays, and counts: while what a killed tracer has left is taken out, by
// attaching and by detaching.
func TestLivingUprobeStays(t *testing.T) {
	for _, by := range []string{"attach", "detach"} {
		t.Run(by, func(t *testing.T) {
			p := startWork(t)
			s := trace(t, p.PID, "--alone", "p:a libc.so.6:strlen")
			if err := s.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-s.done
			u := uprobeAt(t, p, "f_lea", 0)
			if by == "attach" {
				if o := run(t, command(t, "trace", "-p", pid(p), "--duration", "10ms", "p:a libc.so.6:strlen")); o.code != 0 {
					t.Error(o)
				}
			} else if o := run(t, command(t, "detach", "-p", pid(p))); o.code != 0 || !strings.Contains(o.stderr, "1 breakpoints that are not ours stay") {
				t.Error(o)
			}
			if at := s.place("f_lea"); len(breaks(t, p.PID, at)) == 0 {
				t.Fatal("the other's uprobe was taken out")
			}
			n := right(t, p, "go 100")
			if hits, err := u.Count(); err != nil || hits != n["f_lea"] {
				t.Errorf("the other's uprobe counts %d, %v, the program %d", hits, err, n["f_lea"])
			}
		})
	}
}

// What may be somebody's other than the kernel's is left alone. A breakpoint that nobody would answer is
// not: a debugger that was killed has left it.
func TestOthersBreakpointsStay(t *testing.T) {
	drop := func(t *testing.T, p *testprog.Proc, at uint64, why string) {
		t.Helper()
		q, err := process.OpenUnwaited(p.PID)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		k := q.DropKept()
		if why == "" {
			if len(k.Dropped) != 1 || k.Dropped[0] != at || len(breaks(t, p.PID, at)) > 0 {
				t.Errorf("0x%x: %+v", at, k)
			}
			return
		}
		if len(k.Stays) != 1 || k.Stays[0] != at || k.Why == nil || !strings.Contains(k.Why.Error(), why) || len(breaks(t, p.PID, at)) == 0 {
			t.Errorf("0x%x: %+v: want it to stay, because of %q", at, k, why)
		}
	}
	broken := func(t *testing.T, name, function string) (p *testprog.Proc, at uint64) {
		t.Helper()
		p = testprog.Start(t, testprog.Copy(t, testprog.Build(t, name)))
		return p, breakAt(t, p, function)
	}
	t.Run("nobody's", func(t *testing.T) {
		p, at := broken(t, "work", "f_six")
		drop(t, p, at, "")
		right(t, p, "go 10")
	})
	t.Run("handler", func(t *testing.T) {
		p, at := broken(t, "trapuser", "narrow")
		drop(t, p, at, "SIGTRAP")
	})
	t.Run("debugger", func(t *testing.T) {
		p, at := broken(t, "work", "f_six")
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.PtraceSeize(p.PID); err != nil {
			t.Fatal(err)
		}
		drop(t, p, at, "traces it")
		if err := unix.PtraceInterrupt(p.PID); err != nil {
			t.Fatal(err)
		}
		var st unix.WaitStatus
		if _, err := unix.Wait4(p.PID, &st, unix.WALL, nil); err != nil || !st.Stopped() {
			t.Fatal(err, st)
		}
		if err := unix.PtraceDetach(p.PID); err != nil {
			t.Fatal(err)
		}
		drop(t, p, at, "")
	})
	t.Run("its own", func(t *testing.T) {
		p := testprog.Start(t, testprog.Copy(t, testprog.Build(t, "ownbreak")))
		drop(t, p, (&session{t: t, pid: p.PID}).place("cold"), "was writable")
	})
}

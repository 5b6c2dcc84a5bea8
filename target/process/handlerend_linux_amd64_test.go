package process

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/testprog"
)

// When EndCall has returned the handler does not run, and its descriptor serves another.
func TestEndCall(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	h.want("run 4", "ok")
	for range 30 {
		var ended atomic.Bool
		var runs atomic.Uint64
		c := h.handle("add", func(r *amd64.Regs) arch.Action {
			if ended.Load() {
				t.Error("the handler runs after EndCall")
			}
			runs.Add(1)
			r.DI += 0
			return arch.ActionGo
		})
		eventually(t, "run of the handler", func() bool { return runs.Load() > 20 })
		h.disarm()
		h.tg.EndCall(c)
		ended.Store(true)
		h.tg.EndCall(c)
	}
	if n := h.tg.mail.Used(); n > 20 {
		t.Errorf("%d descriptors were used by 30 calls, one after the other", n)
	}
	a := h.Ask("stop")
	if !strings.HasSuffix(a, " 0") {
		t.Errorf("stop: %s", a)
	}
}

// Everything is taken out under load, again and again, and the program computes right.
func TestHandlerDetach(t *testing.T) {
	r := handledProgram(t)
	r.Ask("run 8")
	for i := range 6 {
		h := handle(t, r, never)
		var runs atomic.Uint64
		h.handle("add", func(*amd64.Regs) arch.Action {
			if runs.Add(1); i%2 == 1 {
				time.Sleep(time.Millisecond)
			}
			return arch.ActionGo
		})
		eventually(t, "run of the handler", func() bool { return runs.Load() > 50 })
		h.end()
	}
	if a := r.Ask("stop"); !strings.HasSuffix(a, " 0") {
		t.Errorf("stop: %s", a)
	}
}

// Close lets threads go whose handler was not ended before.
func TestCloseLetsWaitersGo(t *testing.T) {
	r := handledProgram(t)
	r.Ask("run 3")
	h := handle(t, r, never)
	hold := make(chan struct{})
	var runs atomic.Uint64
	h.handle("add", func(r *amd64.Regs) arch.Action {
		runs.Add(1)
		<-hold
		return arch.ActionGo
	})
	eventually(t, "3 threads in the handler", func() bool { return runs.Load() == 3 })
	go func() {
		time.Sleep(50 * time.Millisecond)
		close(hold)
	}()
	h.end()
	if a := r.Ask("stop"); !strings.HasSuffix(a, " 0") {
		t.Errorf("stop: %s", a)
	}
}

// tracerPID tells TestHandlerTracer what to do.
const tracerPID = "KPROBES_HANDLER_PID"

// TestHandlerTracer is no test: it is a tracer in a process of its own, whose handler adds
// 1000 to the first argument, and never returns if that is 13.
func TestHandlerTracer(t *testing.T) {
	pid, err := strconv.Atoi(os.Getenv(tracerPID))
	if err != nil {
		return
	}
	if step, err := strconv.Atoi(os.Getenv(faultStep)); err == nil {
		dieAt(t, pid, step)
		return
	}
	h := handle(t, &running{&testprog.Talker{PID: pid}, t}, 50*time.Millisecond)
	h.handle("add", func(r *amd64.Regs) arch.Action {
		if r.DI == 13 {
			select {}
		}
		r.DI += 1000
		return arch.ActionGo
	})
	fmt.Println("armed")
	select {}
}

// handlerTracer starts a tracer that is to be killed.
func handlerTracer(t *testing.T, r *running) *exec.Cmd {
	t.Helper()
	cmd := reexec("TestHandlerTracer", tracerPID+"="+strconv.Itoa(r.PID))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if l, err := bufio.NewReader(out).ReadString('\n'); l != "armed\n" {
		t.Fatalf("tracer: %q, %v", l, err)
	}
	return cmd
}

// A tracer that stands still lets the program go on, and serves it again when it moves. One
// that is killed, with threads in the wait and on their way to it, leaves a program that
// goes on, and what it left can be taken out.
func TestHandlerTracerKilled(t *testing.T) {
	r := handledProgram(t)
	for i := range 5 {
		cmd := handlerTracer(t, r)
		if a := r.Ask("add 1 2"); a != "ok 1003" && a != "ok 3" {
			t.Fatal(a)
		}
		eventually(t, "handled call", func() bool { return r.Ask("add 1 2") == "ok 1003" })
		cmd.Process.Signal(unix.SIGSTOP)
		waitState(t, cmd.Process.Pid, "T")
		for range 10 {
			if a := r.Ask("add 1 2"); a != "ok 3" {
				t.Errorf("the tracer stands still: %s", a)
			}
		}
		if off := mailOff(t, r.PID); off != arch.MailMuted {
			t.Errorf("the tracer stands still, and threads wait for it again and again: %d", off)
		}
		cmd.Process.Signal(unix.SIGCONT)
		eventually(t, "handled call", func() bool { return r.Ask("add 1 2") == "ok 1003" })
		r.Ask("run 4")
		if i%2 == 1 {
			time.Sleep(10 * time.Millisecond)
		}
		cmd.Process.Kill()
		cmd.Wait()
		p := r.open()
		var u *Undone
		retry(t, func() error {
			l, err := FindLeftover(p)
			if err == nil && l == nil {
				err = errors.New("nothing is left")
			}
			if err == nil {
				u, err = l.Undo()
			}
			return err
		})
		if u.Restored != 1 || u.Pages < 4 {
			t.Errorf("undone: %+v", u)
		}
		if l, err := FindLeftover(p); l != nil || err != nil {
			t.Errorf("left: %+v, %v", l, err)
		}
		p.Close()
		r.Ask("stop") // what threads computed while the tracer was there is not their own
		if a := r.Ask("go 4 1000"); a != "ok 4000 0" {
			t.Error(a)
		}
	}
}

// mailOff reads the word that says whether threads of a process wait.
func mailOff(t *testing.T, pid int) uint32 {
	t.Helper()
	p, err := OpenUnwaited(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, m := range mapsOf(t, p) {
		if isMail(m) {
			var b [4]byte
			if err := p.ReadMem(m.Start+arch.MailOffOff, b[:]); err != nil {
				t.Fatal(err)
			}
			return le.Uint32(b[:])
		}
	}
	t.Fatal("no mailbox is mapped")
	return 0
}

// A thread that waits for a killed tracer for a minute is let go when what is left is taken
// out.
func TestUndoLetsWaitersGo(t *testing.T) {
	r := handledProgram(t)
	h := handle(t, r, never)
	hold := make(chan struct{})
	defer close(hold)
	var runs atomic.Uint64
	h.handle("add", func(*amd64.Regs) arch.Action {
		runs.Add(1)
		<-hold
		return arch.ActionGo
	})
	r.Ask("run 3")
	eventually(t, "3 threads in the handler", func() bool { return runs.Load() == 3 })
	l, err := findLeftover(h.tg.p) // as one sees it that comes after us
	if err != nil || l == nil {
		t.Fatal(l, err)
	}
	retry(t, func() error { _, err := l.Undo(); return err })
	h.clean()
	if a := r.Ask("stop"); !strings.HasSuffix(a, " 0") {
		t.Errorf("stop: %s", a)
	}
	h.tg.control = nil // nothing of it is there any more
}

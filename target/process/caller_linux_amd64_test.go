package process

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/mailbox"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
)

func handledProgram(t testing.TB, flags ...string) *running {
	t.Helper()
	return run(t, build(t, "handled", flags...))
}

// leafHash is what the program's leaf computes of a if nothing changes its registers.
func leafHash(a uint64) uint64 {
	sum := a + a + 1 + a + 2 + a + 3
	for i, f := range []uint64{3, 5, 7, 11, 13, 17, 19, 23} {
		sum += (a + uint64(i)) * f
	}
	return sum
}

// A handler is given the very arguments, and what it changes is what the program computes
// with; what it does not change stays as it was: all registers and flags.
func TestHandlerRegisters(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	var seen amd64.Regs
	var tid uint64
	change := func(*amd64.Regs) {}
	h.handle("add", func(r *amd64.Regs) arch.Action {
		seen = *r
		tid = h.tg.Task(r)
		change(r)
		return arch.ActionGo
	})
	h.want("add 40 2", "ok 42")
	_, at := h.function("add")
	if seen.DI != 40 || seen.SI != 2 || seen.IP != at.Addr {
		t.Errorf("registers seen: %+v", seen)
	}
	if tid != uint64(h.PID) {
		t.Errorf("thread %d, want %d", tid, h.PID)
	}
	h.want("leaf 1000", fmt.Sprintf("ok %d", leafHash(1000)))
	if seen.R8 != 1004 || seen.R11 != 1007 || seen.X[7][0] != 1002 || seen.X[15][0] != 1003 || seen.Flags&1 != 1 {
		t.Errorf("registers seen: %+v", seen)
	}
	for _, f := range []uint64{0, 0x8d5, 0x801, 0x44} {
		h.want(fmt.Sprint("flags ", f), fmt.Sprint("ok ", f))
		if seen.Flags&0x8d5 != f {
			t.Errorf("flags %#x are seen as %#x", f, seen.Flags)
		}
	}
	change = func(r *amd64.Regs) { r.Flags ^= 0x8d5 }
	h.want("flags 2049", fmt.Sprint("ok ", 0x8d5^0x801))
	h.want("flags 0", fmt.Sprint("ok ", 0x8d5))
	change = func(r *amd64.Regs) { r.DI, r.SP = 1000, 0 } // the stack pointer is not for ActionGo
	h.want("add 40 2", "ok 1002")
	change = func(r *amd64.Regs) {
		for _, p := range []*uint64{&r.DX, &r.CX, &r.R8, &r.R9, &r.R10, &r.R11} {
			*p++
		}
		r.X[7][0] += 100
		r.X[15][0] += 1000
	}
	h.want("leaf 1000", fmt.Sprintf("ok %d", leafHash(1000)+7+11+13+17+19+23+1100))
	h.disarm()
	h.want("leaf 1000", fmt.Sprintf("ok %d", leafHash(1000)))
}

func TestHandlerVectorsAndMemory(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	h.handle("scale", func(r *amd64.Regs) arch.Action {
		if x := math.Float64frombits(r.X[0][0]); x != 1.5 {
			t.Errorf("x is %v", x)
		}
		r.X[1][0] = math.Float64bits(4)
		return arch.ActionGo
	})
	h.want("scale 1.5 3", "ok 6")
	var failed, wrote, bad error
	th := &target.Handler{}
	th.Run = plain(func(r *amd64.Regs) arch.Action {
		var b [8]byte
		failed = th.Point.Mem.Read(r.DI, b[:])
		n := binary.LittleEndian.Uint64(b[:])
		wrote = th.Point.Mem.Write(r.DI, binary.LittleEndian.AppendUint64(nil, n+1))
		bad = errors.Join(th.Point.Mem.Read(16, b[:]), th.Point.Mem.Write(16, b[:]))
		return arch.ActionGo
	})
	h.arm("get", &arch.ProbeOp{Role: arch.RoleCall, Call: h.callOf(th)}, nil)
	h.want("get 41", "ok 42")
	if failed != nil || wrote != nil || !errors.Is(bad, ErrFault) {
		t.Errorf("memory: read %v, write %v, bad address %v", failed, wrote, bad)
	}
}

// order tells the race detector what it can not see: that a handler runs after the command
// that the program was given, and before its answer.
var order atomic.Uint64

// plain makes a handler's function of one that asks for no instance.
func plain(f func(*amd64.Regs) arch.Action) func(*amd64.Regs, uint64) arch.Action {
	return func(r *amd64.Regs, _ uint64) arch.Action {
		order.Add(1)
		defer order.Add(1)
		return f(r)
	}
}

// A handler may let the function return at once, or go on elsewhere: with its stack pointer,
// flags and all registers.
func TestHandlerLeaves(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	_, add := h.function("add")
	th := &target.Handler{}
	th.Run = plain(func(r *amd64.Regs) arch.Action {
		var b [8]byte
		if err := th.Point.Mem.Read(r.SP, b[:]); err != nil {
			t.Error(err)
		}
		r.AX, r.IP, r.SP = 77, binary.LittleEndian.Uint64(b[:]), r.SP+8
		return arch.ActionLeave
	})
	h.arm("parity", &arch.ProbeOp{Role: arch.RoleCall, Call: h.callOf(th)}, nil)
	for range 100 {
		h.want("parity 4", "ok 77")
	}
	h.handle("get", func(r *amd64.Regs) arch.Action { // get(&record) becomes add(5, 6)
		r.DI, r.SI, r.IP = 5, 6, add.Addr
		return arch.ActionLeave
	})
	h.want("get 1", "ok 11")
	bad := 0
	h.handle("scale", func(r *amd64.Regs) arch.Action {
		if bad++; bad == 1 {
			r.SP = 4096
		} else {
			r.IP = 16
		}
		return arch.ActionLeave
	})
	for range 3 {
		h.want("scale 2 3", "ok 6")
	}
	if bad != 1 {
		t.Errorf("a handler that leaves for nowhere has run %d times, want once", bad)
	}
}

// Each hit is a run of the handler, from many threads at once.
func TestHandlerCounts(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	var runs atomic.Uint64
	c := h.handle("add", func(r *amd64.Regs) arch.Action {
		runs.Add(1)
		return arch.ActionGo
	})
	const n = 8 * 1000
	h.want("go 8 1000", fmt.Sprintf("ok %d 0", n))
	m := h.tg.Missed(c)
	if runs.Load() != n || m != (target.Missed{}) {
		t.Errorf("%d runs, %+v missed, the program counts %d", runs.Load(), m, n)
	}
}

// Handlers of several threads run at once.
func TestHandlersOverlap(t *testing.T) {
	const n = 4
	h := handle(t, handledProgram(t), never)
	var met sync.WaitGroup
	met.Add(n)
	h.handle("add", func(*amd64.Regs) arch.Action {
		met.Done()
		met.Wait() // for ever, if they run one after the other
		return arch.ActionGo
	})
	h.want(fmt.Sprintf("go %d 1", n), fmt.Sprintf("ok %d 0", n))
}

// eventually waits until f holds.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s within %v", what, patience)
		}
	}
}

// A handler that takes too long is missed, its changes are dropped, and later ones are not
// kept from running.
func TestHandlerIsSlow(t *testing.T) {
	for _, sleepable := range []bool{false, true} {
		h := handle(t, handledProgram(t), 20*time.Millisecond)
		hold := make(chan struct{})
		var runs atomic.Int32
		th := &target.Handler{Sleepable: sleepable}
		th.Run = plain(func(r *amd64.Regs) arch.Action {
			runs.Add(1)
			<-hold
			r.DI += 1000
			return arch.ActionGo
		})
		c := h.callOf(th)
		h.arm("add", &arch.ProbeOp{Role: arch.RoleCall, Call: c}, nil)
		hits := uint64(0)
		for int(runs.Load()) < 2 {
			h.want("add 1 2", "ok 3")
			hits++
		}
		if m := h.tg.Missed(c); m.System != hits {
			t.Errorf("%+v missed, want %d", m, hits)
		}
		for range 4 * maxWorkers { // more than there are workers
			h.want("add 1 2", "ok 3")
		}
		close(hold)
		eventually(t, "handler in time", func() bool { return h.Ask("add 1 2") == "ok 1003" })
		h.end()
	}
}

// A handler that panics, or ends its goroutine, is told to its owner, and is switched off if
// that does not deal with it.
func TestHandlerPanics(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	var none *amd64.Regs
	zero := 0
	for _, k := range []struct {
		do   func(r *amd64.Regs)
		trap int
		why  string
	}{
		{func(*amd64.Regs) { panic("on purpose") }, target.TrapPanic, "on purpose"},
		{func(r *amd64.Regs) { r.AX = none.AX }, mailbox.TrapPage, "nil pointer"},
		{func(r *amd64.Regs) { r.AX = *(*uint64)(unsafe.Add(nil, uintptr(r.SP))) }, mailbox.TrapPage, "invalid memory address"},
		{func(r *amd64.Regs) { r.AX = 1 / uint64(zero) }, mailbox.TrapDivide, "divide"},
		{func(*amd64.Regs) { runtime.Goexit() }, target.TrapPanic, "goroutine"},
	} {
		for _, dealt := range []bool{true, false} {
			runs, told := 0, []string{}
			th := &target.Handler{
				Run: plain(func(r *amd64.Regs) arch.Action {
					runs++
					r.DI = 1000
					k.do(r)
					return arch.ActionGo
				}),
				Fault: func(_ *amd64.Regs, trap int, why fmt.Stringer) bool {
					order.Add(1)
					defer order.Add(1)
					told = append(told, fmt.Sprint(trap, " ", why))
					return dealt
				},
			}
			c := h.callOf(th)
			h.arm("add", &arch.ProbeOp{Role: arch.RoleCall, Call: c}, nil)
			answer, want := "ok 3", 1
			if dealt {
				answer, want = "ok 1002", 3
			}
			for range 3 {
				h.want("add 1 2", answer)
			}
			if runs != want || len(told) != want || !strings.HasPrefix(told[0], fmt.Sprint(k.trap, " ")) || !strings.Contains(told[0], k.why) {
				t.Errorf("%s, dealt with: %v: %d runs, told %q", k.why, dealt, runs, told)
			}
			if m := h.tg.Missed(c); m.Stopped != uint64(3-want) {
				t.Errorf("%s, dealt with: %v: %+v missed", k.why, dealt, m)
			}
			h.disarm()
			h.tg.EndCall(c)
		}
	}
}

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
	for i := range 20 {
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

// A signal handler interrupts the wait and hits itself; one that jumps out of it leaves its
// slot behind, which the next stop frees.
func TestHandlerAndSignals(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	var runs, deep atomic.Uint64
	var in atomic.Int64
	c := h.handle("add", func(r *amd64.Regs) arch.Action {
		if in.Add(1) > 1 {
			deep.Add(1)
		}
		runs.Add(1)
		time.Sleep(3 * time.Millisecond) // longer than the timer's interval
		in.Add(-1)
		return arch.ActionGo
	})
	var calls, wrong, signals uint64
	a := h.Ask("sigs 5")
	if _, err := fmt.Sscanf(a, "ok %d %d %d", &calls, &wrong, &signals); err != nil || wrong != 0 {
		t.Fatal(a)
	}
	m := h.tg.Missed(c)
	if runs.Load()+m.System != calls || deep.Load() == 0 {
		t.Errorf("%d runs, %d of them in another one's wait, %+v missed, the program counts %d", runs.Load(), deep.Load(), m, calls)
	}
	h.want("leap 20", "ok 20")
	eventually(t, "end of the handlers", func() bool { return in.Load() == 0 })
	eventually(t, "free mailbox", func() bool {
		retry(t, func() error { return h.tg.Commit(&target.Change{}) })
		return !h.tg.mail.InUse()
	})
	h.want("add 1 2", "ok 3")
}

// Hits of fork children are missed, also of one that a signal handler forks in the middle of
// a wait.
func TestHandlerAndForks(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	var runs atomic.Uint64
	c := h.handle("add", func(r *amd64.Regs) arch.Action {
		runs.Add(1)
		time.Sleep(3 * time.Millisecond)
		return arch.ActionGo
	})
	h.want("forks 20", "ok")
	if m := h.tg.Missed(c); runs.Load() != 0 || m.System != 20 {
		t.Errorf("20 children have hit: %d runs, %+v missed", runs.Load(), m)
	}
	for range 10 {
		h.want("sigfork", "ok")
	}
	if runs.Load() == 0 {
		t.Error("the parent's hits are missed too")
	}
}

// Callers walks the frame pointers.
func TestHandlerCallers(t *testing.T) {
	h := handle(t, handledProgram(t, "-fno-omit-frame-pointer"), never)
	_, add := h.function("add")
	pcs := make([]uint64, 16)
	n := 0
	th := &target.Handler{Point: amd64.Point{Addr: add.Addr}}
	th.Run = plain(func(r *amd64.Regs) arch.Action {
		n = th.Point.Callers(r, pcs)
		return arch.ActionGo
	})
	h.arm("add", &arch.ProbeOp{Role: arch.RoleCall, Call: h.callOf(th)}, nil)
	h.want("add 1 2", "ok 3")
	if n < 2 {
		t.Fatalf("%d callers", n)
	}
	for i, name := range []string{"call", "main"} {
		_, at := h.function(name)
		if pcs[i]-at.Addr >= at.Func.Size {
			t.Errorf("caller %d is 0x%x, want one in %s at 0x%x", i, pcs[i], name, at.Addr)
		}
	}
}

// The handlers of a return probe are given the call's instance, the same at its entry and
// its return, and what the one at the return changes is the result.
func TestHandlerOfReturn(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	var mu sync.Mutex
	open := map[uint64]uint64{}
	entries, returns := 0, 0
	drop, change, fail := false, false, false
	entry := h.callOf(&target.Handler{Run: func(r *amd64.Regs, instance uint64) arch.Action {
		mu.Lock()
		defer mu.Unlock()
		if fail {
			panic("on purpose")
		}
		if drop {
			return arch.ActionDrop
		}
		if _, ok := open[instance]; ok || instance == 0 {
			t.Errorf("instance 0x%x is given twice", instance)
		}
		open[instance] = r.DI
		entries++
		return arch.ActionGo
	}})
	exit := h.callOf(&target.Handler{Run: func(r *amd64.Regs, instance uint64) arch.Action {
		mu.Lock()
		defer mu.Unlock()
		if _, ok := open[instance]; !ok {
			t.Errorf("instance 0x%x has no entry", instance)
		}
		if change {
			r.AX = 10 * open[instance]
		}
		delete(open, instance)
		returns++
		return arch.ActionGo
	}})
	pool, err := h.tg.Pool(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	prog := &fetch.Program{}
	h.arm("add", &arch.ProbeOp{Role: arch.RoleEntry, Pool: pool, Prog: prog, Call: entry}, &arch.ProbeOp{Role: arch.RoleExit, Pool: pool, Prog: prog, Call: exit})
	h.want("go 4 200", "ok 800 0")
	mu.Lock()
	if entries != 800 || returns != 800 || len(open) != 0 {
		t.Errorf("%d entries, %d returns, %d open", entries, returns, len(open))
	}
	change = true
	mu.Unlock()
	h.want("add 4 2", "ok 40")
	mu.Lock()
	drop = true
	mu.Unlock()
	h.want("add 4 2", "ok 6")
	mu.Lock()
	if returns != 801 {
		t.Errorf("%d returns: that of a call that was let go is one", returns)
	}
	drop, fail = false, true
	mu.Unlock()
	h.want("go 1 3", "ok 3 0") // the handler panics, and is switched off
	mu.Lock()
	if m := h.tg.Missed(entry); m.Stopped != 2 || returns != 801 {
		t.Errorf("%+v missed, %d returns: that of a call whose entry was missed is one", m, returns)
	}
	mu.Unlock()
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
		if off := mailOff(t, r.PID); off != amd64.MailMuted {
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
			if err := p.ReadMem(m.Start+amd64.MailOffOff, b[:]); err != nil {
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

// Handlers in a Go program: on goroutine stacks, under the garbage collector.
func TestHandlerInGo(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "gowork"), "4")
	h := handle(t, &running{&testprog.Talker{PID: prog.PID}, t}, never)
	var runs, odd atomic.Uint64
	c := h.handle("main.Ints", func(r *amd64.Regs) arch.Action {
		runs.Add(1)
		if r.BX != r.AX+1 {
			odd.Add(1)
		}
		return arch.ActionGo
	})
	before := prog.Counts("count")
	after := prog.Counts("go 300")
	prog.Counts("gc")
	n := after["main.Ints"] - before["main.Ints"]
	if m := h.tg.Missed(c); n == 0 || runs.Load() != n || odd.Load() != 0 || m.System != 0 || after["bad"] != 0 {
		t.Errorf("%d runs, %d with other arguments, %+v missed, the program counts %d: %v", runs.Load(), odd.Load(), m, n, after)
	}
	h.disarm()
	h.handle("main.Ints", func(r *amd64.Regs) arch.Action {
		r.AX, r.BX = r.BX-1, r.AX+1 // the sum stays
		r.CX++                      // now it does not
		return arch.ActionGo
	})
	if after = prog.Counts("go 10"); after["bad"] != 40 {
		t.Errorf("40 changed calls have %d wrong results", after["bad"])
	}
	h.end()
	if again := prog.Counts("go 10"); again["bad"] != after["bad"] {
		t.Errorf("wrong results after all was taken out: %v", again)
	}
}

func TestHandlerIsRefused(t *testing.T) {
	r := handledProgram(t)
	tg, err := Attach(r.open(), &TargetOptions{HandlerWait: -1})
	if err != nil {
		t.Fatal(err)
	}
	ok := &target.Handler{Run: plain(func(*amd64.Regs) arch.Action { return arch.ActionGo })}
	if _, err := tg.NewCall(ok); !errors.Is(err, unix.EINVAL) || !strings.Contains(fmt.Sprint(err), "prepared") {
		t.Errorf("before Prepare: %v", err)
	}
	retry(t, tg.Prepare)
	defer tg.Close()
	entry := &target.Handler{Run: ok.Run, Entry: unsafe.Pointer(&struct{}{})}
	for _, c := range []struct {
		h     *target.Handler
		errno error
		text  string
	}{
		{nil, unix.EINVAL, "no handler"},
		{&target.Handler{}, unix.EINVAL, "no function"},
		{entry, unix.EOPNOTSUPP, "registers"},
		{ok, unix.EINVAL, "up to 1m"},
	} {
		if _, err := tg.NewCall(c.h); !errors.Is(err, c.errno) || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%+v: %v, want %v with %q", c.h, err, c.errno, c.text)
		}
	}
	tg.o.HandlerWait = 0
	if a := r.Ask("seccomp"); a != "ok" {
		t.Fatal(a)
	}
	if _, err := tg.NewCall(ok); !errors.Is(err, ErrSeccomp) || !strings.Contains(fmt.Sprint(err), "call handlers") {
		t.Errorf("a program that forbids clock_gettime: %v", err)
	}
	if tg.Missed(&arch.Call{}) != (target.Missed{}) {
		t.Error("an unknown call has missed something")
	}
	tg.EndCall(&arch.Call{})
}

package process

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/mailbox"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
)

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

package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// TestSignalledCalls has a signal come to threads that wait in a system call while a jump is put in its place, and while it is taken out: the kernel
// has not decided yet whether the call is made again or ends with EINTR, behind the instruction.
func TestSignalledCalls(t *testing.T) {
	w := newWaiters(t)
	arm := func() {
		w.h.armAll("waits", map[uint64][]arch.ProbeOp{w.call: {{Event: 1, Prog: &fetch.Program{}}}})
	}
	const jump, syscall = 0xe9, 0x0f
	for end := time.Now().Add(patience); slices.Min(w.armed[:]) < 3 || slices.Min(w.disarmed[:]) < 3; {
		w.signalWhile(&w.armed, jump, arm)
		w.signalWhile(&w.disarmed, syscall, w.h.disarm)
		if time.Now().After(end) {
			t.Fatalf("signals while armed: %d, disarmed: %d", w.armed, w.disarmed)
		}
	}
}

// TestTrapComesInCall has a thread with a SIGTRAP to take wait in a system call where a jump is to be put: it is not moved then, and so is in the way.
func TestTrapComesInCall(t *testing.T) {
	w := newWaiters(t)
	fn, _ := w.h.function("waits")
	regions, refused := fn.Plan([]uint64{w.call}, arch.Policy{})
	if len(refused) > 0 {
		t.Fatal(refused)
	}
	site := w.h.site("waits", fn, regions[0], map[uint64][]arch.ProbeOp{w.call: {{Event: 1, Prog: &fetch.Program{}}}})
	w.h.tg.faults.traps = true // as after a breakpoint
	asleep := func() bool { st, err := w.h.tg.p.TaskStatus(w.tids[0]); return err == nil && st.State == "S" }
	for end := time.Now().Add(patience); !asleep(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the thread does not wait")
		}
	}
	err := w.h.tg.stopped(func(s *ptrace.Stopped) error {
		if err := unix.Tgkill(w.h.PID, w.tids[0], unix.SIGTRAP); err != nil {
			return err
		}
		if err := w.h.tg.commitStopped(s, &target.Change{Add: []*target.Site{site}}); !errors.Is(err, ErrBlocked) {
			t.Errorf("%v, want that it is blocked", err)
		}
		return unix.Kill(w.h.PID, unix.SIGKILL) // the signal is not of our making
	})
	if err != nil && !errors.Is(err, ErrNoProcess) && !errors.Is(err, unix.ESRCH) {
		t.Error(err)
	}
	if err := w.h.tg.Close(); err != nil {
		t.Error(err)
	}
}

// waitKinds is how many threads internal/testprog/process/paused.c has that wait.
const waitKinds = 5

// waiters is that program, with the address of its system call.
type waiters struct {
	t    *testing.T
	h    *handled
	call uint64
	tids [waitKinds]int
	mem  *os.File
	// How many signals each thread has got while the call was armed, and disarmed.
	armed, disarmed [waitKinds]int
}

func newWaiters(t *testing.T) *waiters {
	t.Helper()
	w := &waiters{t: t, h: handle(t, run(t, build(t, "paused")), never)}
	at, err := w.h.tg.Space().Resolve(symbol.Place{Sym: "waits", Offset: 15})
	if err != nil {
		t.Fatal(err)
	}
	w.call = at.Addr
	for end := time.Now().Add(patience); slices.Contains(w.tids[:], 0); time.Sleep(time.Millisecond) {
		w.scan("tids", &w.tids)
		if time.Now().After(end) {
			t.Fatal("the threads have not started")
		}
	}
	if w.mem, err = os.Open(fmt.Sprintf("/proc/%d/mem", w.h.PID)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.mem.Close() })
	return w
}

// scan asks the program for a number of each thread.
func (w *waiters) scan(ask string, to *[waitKinds]int) {
	w.t.Helper()
	a := w.h.Ask(ask)
	if _, err := fmt.Sscan(a, &to[0], &to[1], &to[2], &to[3], &to[4]); err != nil {
		w.t.Fatalf("%s: %s", ask, a)
	}
}

// signalWhile makes a change, and sends a signal to each thread that is in its call once the byte there is another: the process
// is stopped then. Each of these calls has to end by that. got counts them.
func (w *waiters) signalWhile(got *[waitKinds]int, first byte, change func()) {
	w.t.Helper()
	var sent bool
	defer func() { ptrace.OnStep = nil }()
	ptrace.OnStep = func(string) {
		var b [1]byte
		if _, err := w.mem.ReadAt(b[:], int64(w.call)); sent || err != nil || b[0] != first {
			return
		}
		sent = true
		for i, tid := range w.tids {
			var r unix.PtraceRegs
			if err := unix.PtraceGetRegs(tid, &r); err != nil {
				w.t.Error(err)
			}
			const ends, begins = -512, -516 // ERESTARTSYS, ERESTART_RESTARTBLOCK
			if res := int64(r.Rax); int64(r.Orig_rax) < 0 || res > ends || res < begins {
				continue // it has not begun its call again since the last stop
			}
			got[i]++
			if err := unix.Tgkill(w.h.PID, tid, unix.SIGUSR1); err != nil {
				w.t.Error(err)
			}
		}
	}
	change()
	ptrace.OnStep = nil
	if !sent {
		w.t.Fatal("the change was not seen")
	}
	var have, want [waitKinds]int
	for i := range want {
		want[i] = w.armed[i] + w.disarmed[i]
	}
	for end := time.Now().Add(patience); have != want; time.Sleep(time.Millisecond) {
		if w.scan("count", &have); time.Now().After(end) {
			w.t.Fatalf("%d calls have ended, want %d", have, want)
		}
	}
}

package process

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/symbol"
)

// TestSignalledCalls has a signal come to threads that wait in a system call while a jump is put in its place, and while it is taken out: the kernel
// has not decided yet whether the call is made again or ends with EINTR, behind the instruction.
func TestSignalledCalls(t *testing.T) {
	w := newWaiters(t)
	for round := int64(0); round < 6; round += 2 {
		w.signalWhile(0xe9, round, func() {
			w.h.armAll("waits", map[uint64][]arch.ProbeOp{w.call: {{Event: 1, Prog: &fetch.Program{}}}})
		})
		w.signalWhile(0x0f, round+1, w.h.disarm)
	}
}

// waiters is testprog/process/paused.c, with the address of its system call.
type waiters struct {
	t    *testing.T
	h    *handled
	call uint64
	tids [3]int
	mem  *os.File
}

func newWaiters(t *testing.T) *waiters {
	t.Helper()
	w := &waiters{t: t, h: handle(t, run(t, build(t, "paused")), never)}
	at, err := w.h.tg.Space().Resolve(symbol.Place{Sym: "waits", Offset: 12})
	if err != nil {
		t.Fatal(err)
	}
	w.call = at.Addr
	for end := time.Now().Add(patience); slices.Contains(w.tids[:], 0); time.Sleep(time.Millisecond) {
		if _, err := fmt.Sscan(w.h.Ask("tids"), &w.tids[0], &w.tids[1], &w.tids[2]); err != nil {
			t.Fatal(err)
		}
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

// signalWhile makes a change, and sends each thread a signal once the byte at the call is another: the process is stopped
// then. Each call has to end by that.
func (w *waiters) signalWhile(first byte, before int64, change func()) {
	w.t.Helper()
	for _, tid := range w.tids {
		w.asleep(tid)
	}
	var sent bool
	ptrace.OnStep = func(string) {
		var b [1]byte
		if _, err := w.mem.ReadAt(b[:], int64(w.call)); sent || err != nil || b[0] != first {
			return
		}
		sent = true
		for _, tid := range w.tids {
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
	want := fmt.Sprint(before+1, before+1, before+1)
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		got := w.h.Ask("count")
		if got == want {
			return
		}
		if strings.HasPrefix(got, "bad") || time.Now().After(end) {
			w.t.Fatalf("%s, want %s", got, want)
		}
	}
}

// asleep waits until a thread waits in a system call.
func (w *waiters) asleep(tid int) {
	w.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		st, err := w.h.tg.p.TaskStatus(tid)
		if err != nil {
			w.t.Fatal(err)
		}
		if st.State == "S" {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("thread %d stays in state %s", tid, st.State)
		}
	}
}

package ptrace

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waitKinds is how many kinds of calls testprog/process/paused.c waits in.
const waitKinds = 5

// TestSignalledAtEveryStep has a signal come before each single request of the tracer to threads that wait in system calls: the
// handler runs, and the call ends with EINTR, as it would without a tracer.
func TestSignalledAtEveryStep(t *testing.T) {
	path := build(t, "paused")
	for kind := range waitKinds {
		t.Run(fmt.Sprint("alone_", kind), func(t *testing.T) {
			r := run(t, path, strconv.Itoa(kind))
			signalled(t, r, func() []int { return []int{r.PID} }, func(int) {
				if l := r.Line(); l != "-4" {
					t.Fatalf("the call has ended with %s", l)
				}
			})
		})
	}
	t.Run("threads", func(t *testing.T) {
		r := run(t, path)
		signalled(t, r, func() []int { return waiterIDs(t, r) }, func(n int) {
			want := strings.Repeat(fmt.Sprint(" ", n), waitKinds)[1:]
			for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				got := r.Ask("count")
				if got == want {
					return
				}
				if strings.HasPrefix(got, "bad") || time.Now().After(end) {
					t.Fatalf("%s, want %s", got, want)
				}
			}
		})
	})
}

// signalled stops a process over and over, each time with a signal to threads of its own before another step until they are let go.
// A signal that comes right after that may find a thread in front of the call that it makes again, as after SIGCONT: a stop that
// was tried again does not count. ended waits until their calls have ended for the nth time.
func signalled(t *testing.T, r *running, threads func() []int, ended func(n int)) {
	t.Helper()
	p, n := r.open(), 0
	for over := false; !over; {
		tids := threads()
		asleep(t, p)
		step, sent, released, again := 0, false, false, false
		OnStep = func(what string) {
			step++
			again = again || released && what == "seize"
			if step == n+1 && !released {
				sent = true
				for _, tid := range tids {
					if err := unix.Tgkill(r.PID, tid, unix.SIGUSR1); err != nil {
						t.Error(err)
					}
				}
			}
			released = released || what == "detach"
		}
		err := whole(p)
		OnStep = nil
		switch {
		case err != nil:
			t.Fatal(err)
		case sent:
			n++
			ended(n)
		default:
			over = !again
		}
	}
	if n < 30 {
		t.Errorf("only %d signals: requests are not counted", n)
	}
	untouched(t, p)
}

func waiterIDs(t *testing.T, r *running) []int {
	t.Helper()
	tids := make([]int, waitKinds)
	for end := time.Now().Add(patience); slices.Contains(tids, 0); time.Sleep(time.Millisecond) {
		if _, err := fmt.Sscan(r.Ask("tids"), &tids[0], &tids[1], &tids[2], &tids[3], &tids[4]); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatal("the threads have not started")
		}
	}
	return tids
}

package ptrace

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waitKinds is how many threads testprog/process/paused.c has that wait in calls, and the kind of its only thread in sigsuspend.
const waitKinds = 5

// TestSignalledAtEveryStep has a signal come before each single request of the tracer to threads that wait in system calls: the
// handler runs, and the call ends with EINTR, as it would without a tracer.
func TestSignalledAtEveryStep(t *testing.T) {
	path := build(t, "paused")
	for kind := range waitKinds {
		t.Run(fmt.Sprint("alone_", kind), func(t *testing.T) {
			signalled(t, unix.SIGUSR1, func() ([]int, *running) {
				r := run(t, path, strconv.Itoa(kind))
				return []int{r.PID}, r
			}, func(r *running, _ int) { says(t, r, "-4") })
		})
	}
	t.Run("threads", func(t *testing.T) {
		signalled(t, unix.SIGUSR1, func() ([]int, *running) {
			r := run(t, path)
			return waiterIDs(t, r), r
		}, func(r *running, n int) {
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
	// A signal comes that the call blocks and the thread else does not: the call goes on, and ends by the one that it waits for.
	t.Run("suspended", func(t *testing.T) {
		signalled(t, unix.SIGUSR2, func() ([]int, *running) {
			r := run(t, path, strconv.Itoa(waitKinds))
			return []int{r.PID}, r
		}, func(r *running, _ int) {
			if err := unix.Tgkill(r.PID, r.PID, unix.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			says(t, r, "-4")
		})
	})
}

func says(t *testing.T, r *running, want string) {
	t.Helper()
	if l := r.Line(); l != want {
		t.Fatalf("the call has ended with %s, want %s", l, want)
	}
}

// signalled stops a process over and over, each time with a signal to threads of its own before another step until they are let go.
// A signal that comes right after that may find a thread in front of the call that it makes again, as after SIGCONT: a stop that
// was tried again does not count. start starts the process, anew where the machine was so busy that a stop was given up; then looks
// at its threads after their nth signal.
func signalled(t *testing.T, sig unix.Signal, start func() ([]int, *running), then func(r *running, n int)) {
	t.Helper()
	defer func() { OnStep = nil }()
	tids, r := start()
	p, n, at := r.open(), 0, 1 // signals to this process, and the step
	end := time.Now().Add(patience)
	for over := false; !over; {
		if time.Now().After(end) {
			t.Fatalf("at step %d: the machine is too busy", at)
		}
		asleep(t, p)
		step, sent, released, again := 0, false, false, false
		OnStep = func(what string) {
			step++
			again = again || released && what == "seize"
			if step == at && !released {
				sent = true
				for _, tid := range tids {
					if err := unix.Tgkill(r.PID, tid, sig); err != nil {
						t.Error(err)
					}
				}
			}
			released = released || what == "detach"
		}
		err := whole(p)
		OnStep = nil
		switch {
		case errors.Is(err, ErrStuck):
			tids, r = start()
			p, n = r.open(), 0
		case err != nil:
			t.Fatal(err)
		case sent:
			n, at = n+1, at+1
			then(r, n)
		default:
			over = !again
		}
	}
	if at < 30 {
		t.Errorf("only %d signals: requests are not counted", at)
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

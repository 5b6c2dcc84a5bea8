package ptrace

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestStopHoldsThreadsThatComeAndGo(t *testing.T) {
	r := run(t, build(t, "live"), "4", "46")
	p := r.open()
	var longest time.Duration
	for range 60 {
		s := stop(t, p)
		longest = max(longest, time.Since(s.Since()))
		held(t, p, s)
		release(t, s)
	}
	r.Fine()
	untouched(t, p)
	t.Logf("longest time to stop all threads: %v", longest)
}

// held checks that every thread that the kernel knows is one of s, and stopped.
func held(t *testing.T, p *Process, s *Stopped) {
	t.Helper()
	known := make(map[int]bool)
	for _, th := range s.Threads() {
		known[th.TID] = true
	}
	tids, err := p.Tasks()
	if err != nil {
		t.Fatal(err)
	}
	for _, tid := range tids {
		st, err := p.TaskStatus(tid)
		if err == nil && (st.State != "t" && st.State != "Z" && st.State != "X" || !known[tid] && st.State == "t") {
			t.Fatalf("thread %d of a stopped process is in state %s, known: %v", tid, st.State, known[tid])
		}
	}
}

// Calls that the kernel takes up again keep their time through any number of stops; those
// that it does not are made again, and the program sees no EINTR.
func TestStopIsInvisibleToSystemCalls(t *testing.T) {
	r := run(t, build(t, "calls", "-Wno-misleading-indentation"))
	p := r.open()
	if a := r.Ask("begin"); !strings.HasPrefix(a, "ok") {
		t.Fatal(a)
	}
	stops := 0
	for end := time.Now().Add(patience); r.Ask("timeouts") != "1"; stops++ {
		if time.Now().After(end) {
			t.Fatal("a call with a timeout does not end while it is stopped over and over")
		}
		s := stop(t, p)
		if stops%2 == 1 { // every other time with a thread that has to make a call of ours
			injectEach(t, s)
		}
		release(t, s)
		time.Sleep(5 * time.Millisecond)
	}
	asleep(t, p)
	if a := r.Ask("events"); !strings.HasPrefix(a, "ok ") || a == "ok 0" {
		t.Fatal(a)
	}
	t.Logf("%d stops", stops)
	untouched(t, p)
}

// A stop that is given up in the middle has interrupted system calls all the same.
func TestFailedStopIsInvisibleToSystemCalls(t *testing.T) {
	r := run(t, build(t, "calls", "-Wno-misleading-indentation"))
	p := r.open()
	failed := 0
	for range 200 {
		switch s, err := p.Stop(&StopOptions{Deadline: 1, Attempts: 1}); {
		case err == nil:
			release(t, s)
		case errors.As(err, new(*StuckError)):
			failed++
		default:
			t.Fatal(err)
		}
	}
	if failed == 0 {
		t.Fatal("no stop failed in a nanosecond")
	}
	asleep(t, p)
	if a := r.Ask("events"); !strings.HasPrefix(a, "ok ") || a == "ok 0" {
		t.Fatalf("after %d failed stops: %s", failed, a)
	}
	untouched(t, p)
}

// asleep waits until every thread is back in its call: an event that came before would be
// seen by the call as it begins, which for a futex is another result.
func asleep(t *testing.T, p *Process) {
	t.Helper()
	tids, err := p.Tasks()
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(patience)
	for _, tid := range tids {
		for {
			st, err := p.TaskStatus(tid)
			if err != nil || st.State == "S" {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("thread %d is in state %s and not back in its call", tid, st.State)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// injectEach makes every single thread call the system once.
func injectEach(t *testing.T, s *Stopped) {
	t.Helper()
	all := s.threads
	for _, th := range all {
		s.threads = []*Thread{th}
		got, err := s.Call(sysGettid)
		if err != nil {
			nr, in := th.InSyscall()
			t.Fatalf("thread %d in system call %d %v: %v", th.TID, nr, in, err)
		}
		if int(got) != th.TID {
			t.Fatalf("gettid of thread %d gave %d", th.TID, got)
		}
	}
	s.threads = all
}

const sysGettid = 186

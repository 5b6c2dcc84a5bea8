package kprobes_test

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// TestCrowd attaches to a program with a thousand threads, in long runs also five and ten thousand, counts
// one and all of its ten thousand functions, and leaves. The largest gap that a spinning thread of it
// saw is told beside that of bare stops. In long runs each is the median of three.
func TestCrowd(t *testing.T) {
	threads, rounds := []int{1000}, 1
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		threads, rounds = []int{1000, 5000, 10000}, 3
	}
	for _, n := range threads {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			prog := testprog.Start(t, testprog.Build(t, "crowd"), strconv.Itoa(n))
			p, err := process.OpenUnwaited(prog.PID)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			gaps := map[string][]float64{}
			note := func(what string, ms float64) { gaps[what] = append(gaps[what], ms) }
			for range rounds {
				crowd(t, prog, p, "p f_0000", 1, note)
				crowd(t, prog, p, "p f_*", 10000, note)
			}
			for range rounds { // last: they disturb epoll_wait
				for what, ordered := range map[string]bool{"a bare stop, running threads last": true, "a bare stop, threads as they are listed": false} {
					prog.Counts("gap")
					bareStop(t, p, ordered)
					note(what, gap(prog))
				}
			}
			for _, what := range slices.Sorted(maps.Keys(gaps)) {
				slices.Sort(gaps[what])
				t.Logf("the largest gap, %s: %.1f ms", what, gaps[what][len(gaps[what])/2])
			}
		})
	}
}

// crowd counts some functions of a program with many threads, and notes how long the spinning one stood.
func crowd(t *testing.T, prog *testprog.Proc, p *process.Proc, def string, want int, note func(what string, ms float64)) {
	t.Helper()
	tg, err := process.Attach(p, &process.TargetOptions{Events: 1 << 14})
	if err != nil {
		t.Fatal(err)
	}
	c, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	prog.Counts("gap")
	evs, err := c.Add(parse(t, def), &kprobes.AddOptions{Count: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(evs) != want {
		t.Errorf("%d functions, want %d", len(evs), want)
	}
	note(fmt.Sprintf("probes: %d come", len(evs)), gap(prog))
	const rounds = 3
	prog.Counts(fmt.Sprint("all ", rounds))
	prog.Counts("gap")
	if err := c.Close(nil); err != nil {
		t.Fatal(err)
	}
	for _, e := range evs {
		if n := c.Counts(e).Hits; n != rounds {
			t.Fatalf("%s was counted %d times, not %d", e.Name, n, rounds)
		}
	}
	note(fmt.Sprintf("probes: %d go", len(evs)), gap(prog))
	if n := prog.Counts("count")["interrupted"]; n != 0 {
		t.Errorf("epoll_wait returned EINTR %d times", n)
	}
}

// gap is the largest gap that the program's spinning thread saw since it was asked last, in milliseconds.
func gap(prog *testprog.Proc) float64 { return float64(prog.Counts("gap")["gap"]) / 1e6 }

// bareStop attaches every thread of a process, stops it, waits for it, and lets it go, with one request each and
// nothing in between: in the order in which they are listed, or as the package stops them, those that run
// after all others, which go on first. Its thread comes before ordinary ones, as that of the package does.
func bareStop(t *testing.T, p *process.Proc, ordered bool) {
	tids, err := p.Tasks()
	if err != nil {
		t.Fatal(err)
	}
	groups := [][]int{tids}
	if ordered {
		groups = [][]int{nil, nil}
		for _, tid := range tids {
			st, err := p.TaskStatus(tid)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			if st.State == "R" {
				n = 1
			}
			groups[n] = append(groups[n], tid)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: with the goroutine it ends, and lets go what it has attached
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK}, 0); err != nil {
			t.Logf("the bare stop is made by an ordinary thread: %v", err)
		}
		request := func(what uintptr, tids []int) {
			for _, tid := range tids {
				if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, what, uintptr(tid), 0, 0, 0, 0); e != 0 {
					t.Errorf("ptrace %#x of thread %d: %v", what, tid, e)
				}
			}
		}
		request(unix.PTRACE_SEIZE, tids)
		for _, group := range groups {
			request(unix.PTRACE_INTERRUPT, group)
			for _, tid := range group {
				if _, err := unix.Wait4(tid, nil, unix.WALL, nil); err != nil {
					t.Errorf("wait for thread %d: %v", tid, err)
				}
			}
		}
		for _, group := range slices.Backward(groups) {
			request(unix.PTRACE_DETACH, group)
		}
	}()
	<-done
}

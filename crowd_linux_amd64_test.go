package kprobes_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// TestCrowd attaches to a program with a thousand threads, in long runs also five and ten thousand, counts
// one and all of its ten thousand functions, and leaves. The largest gap that a spinning thread of it
// saw is told beside that of a bare loop that attaches every thread, stops it and lets it go.
func TestCrowd(t *testing.T) {
	threads := []int{1000}
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		threads = []int{1000, 5000, 10000}
	}
	for _, n := range threads {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			prog := testprog.Start(t, testprog.Build(t, "crowd"), strconv.Itoa(n))
			p, err := process.OpenUnwaited(prog.PID)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			crowd(t, prog, p, "p f_0000", 1)
			crowd(t, prog, p, "p f_*", 10000)
			prog.Counts("gap")
			bareStop(t, p) // last: it disturbs epoll_wait
			t.Logf("the largest gap of a bare stop: %.1f ms", gap(prog))
		})
	}
}

// crowd counts some functions of a program with many threads, and says how long the threads stood.
func crowd(t *testing.T, prog *testprog.Proc, p *process.Proc, def string, want int) {
	t.Helper()
	tg, err := process.Attach(p, &process.TargetOptions{Ring: ring.Config{Events: 1 << 14}})
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
	came := gap(prog)
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
	out := prog.Counts("gap")
	if n := out["interrupted"]; n != 0 {
		t.Errorf("epoll_wait returned EINTR %d times", n)
	}
	t.Logf("%d probes: the largest gap while they came %.1f ms, while they went %.1f ms", len(evs), came, float64(out["gap"])/1e6)
}

// gap is the largest gap that the program's spinning thread saw since it was asked last, in milliseconds.
func gap(prog *testprog.Proc) float64 { return float64(prog.Counts("gap")["gap"]) / 1e6 }

// bareStop attaches every thread of a process, stops it, waits for it, and lets it go.
func bareStop(t *testing.T, p *process.Proc) {
	tids, err := p.Tasks()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: with the goroutine it ends, and lets go what it has attached
		for _, request := range []uintptr{unix.PTRACE_SEIZE, unix.PTRACE_INTERRUPT, 0, unix.PTRACE_DETACH} {
			for _, tid := range tids {
				if request == 0 {
					if _, err := unix.Wait4(tid, nil, unix.WALL, nil); err != nil {
						t.Errorf("wait for thread %d: %v", tid, err)
					}
				} else if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(tid), 0, 0, 0, 0); e != 0 {
					t.Errorf("ptrace %#x of thread %d: %v", request, tid, e)
				}
			}
		}
	}()
	<-done
}

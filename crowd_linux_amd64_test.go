package kprobes_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/ring"
	"kprobes.dev/kprobes/target/process"
)

// TestCrowd attaches to a program with a thousand threads, in a long run five thousand, counts all of its
// ten thousand functions, and leaves. The largest gap that a spinning thread of it saw is told
// beside that of a bare loop that attaches every thread, stops it and lets it go.
func TestCrowd(t *testing.T) {
	threads := 1000
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		threads = 5000
	}
	prog := testprog.Start(t, testprog.Build(t, "crowd"), strconv.Itoa(threads))
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tg, err := process.Attach(p, &process.TargetOptions{Ring: ring.Config{Events: 1 << 14}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	prog.Counts("gap")
	evs, err := c.Add(parse(t, "p f_*"), &kprobes.AddOptions{Count: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(evs) != 10000 {
		t.Errorf("%d functions, want 10000", len(evs))
	}
	armed := prog.Counts("gap")["gap"]
	const rounds = 3
	if n := prog.Counts(fmt.Sprint("all ", rounds))["calls"]; n != uint64(rounds*len(evs)) {
		t.Errorf("%d calls, want %d", n, rounds*len(evs))
	}
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
	if out["interrupted"] != 0 {
		t.Errorf("epoll_wait returned EINTR %d times", out["interrupted"])
	}
	bareStop(t, p)
	t.Logf("%d threads: the largest gap while %d probes came %.1f ms, while they went %.1f ms; of a bare stop %.1f ms",
		threads, len(evs), float64(armed)/1e6, float64(out["gap"])/1e6, float64(prog.Counts("gap")["gap"])/1e6)
}

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

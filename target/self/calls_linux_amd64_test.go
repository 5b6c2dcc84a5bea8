//go:build !race

// Atomic handlers are not to be had under the race detector.

package self_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/testprog"
)

func init() { children["calls"] = callsChild }

//go:noinline
func hitOften(a, b int) int { return a*3 + b }

const oftenHit = own + "hitOften"

// hitRuns is what is asked of the child: what is armed, and the system calls of each hit.
var hitRuns = []struct {
	what string
	arm  func(c *kprobes.Core) (func() error, error)
	per  map[uint64]int
}{
	{"no probe", func(*kprobes.Core) (func() error, error) { return func() error { return nil }, nil }, nil},
	{"counter", armEvent("p:a "+oftenHit, true), nil},
	{"record", armEvent("p:b "+oftenHit+" a=$arg1 fl=%flags", false), nil},
	{"return counter", armEvent("r:c "+oftenHit, true), nil},
	{"return record", armEvent("r:d "+oftenHit+" v=$retval a=$arg1", false), nil},
	{"memory", armEvent("p:e "+oftenHit+" m=+0(+0(%sp)):u64", false), map[uint64]int{unix.SYS_RT_SIGPROCMASK: 1, unix.SYS_RT_SIGACTION: 1}},
	{"handler", armKprobe(false, ""), nil},
	{"handlers before and after", armKprobe(true, ""), nil},
	{"handlers at a breakpoint", armKprobe(true, arch.TacticBoost), map[uint64]int{unix.SYS_RT_SIGRETURN: 1}},
	{"return handlers", armKretprobe, nil},
}

func armEvent(def string, count bool) func(c *kprobes.Core) (func() error, error) {
	return func(c *kprobes.Core) (func() error, error) {
		d, err := event.Parse(def)
		if err != nil {
			return nil, err
		}
		evs, err := c.Add([]*event.Def{d}, &kprobes.AddOptions{Count: count})
		return func() error { return c.Remove(evs) }, err
	}
}

var hitsHandled, hitsResult int

func armKprobe(post bool, tactic arch.Tactic) func(c *kprobes.Core) (func() error, error) {
	return func(c *kprobes.Core) (func() error, error) {
		k := &kprobes.Kprobe{SymbolName: oftenHit, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { hitsHandled++; return 0 }}
		if post {
			k.PostHandler = func(*kprobes.Kprobe, *kprobes.Regs, uint64) { hitsHandled++ }
		}
		return func() error { c.UnregisterKprobe(k); return nil }, forced(c, tactic, k)
	}
}

// forced registers probes with a tactic that is asked for by name.
func forced(c *kprobes.Core, tactic arch.Tactic, ks ...*kprobes.Kprobe) error {
	return errors.Join(engine.Of(c).ForceTactic(tactic), c.RegisterKprobes(ks), engine.Of(c).ForceTactic(""))
}

func armKretprobe(c *kprobes.Core) (func() error, error) {
	run := func(*kprobes.KretprobeInstance, *kprobes.Regs) int { hitsHandled++; return 0 }
	r := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: oftenHit}, EntryHandler: run, Handler: run, DataSize: 16}
	return func() error { c.UnregisterKretprobe(r); return nil }, c.RegisterKretprobe(r)
}

const (
	hitCalls  = 300
	hitRounds = 5 // of which one, at least, is not disturbed by the runtime's own needs
)

// callsChild hits what is armed, a round each time it is given a byte.
func callsChild(c *kprobes.Core) error {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	for _, run := range hitRuns {
		disarm, err := run.arm(c)
		if err != nil {
			return err
		}
		allocated := testing.AllocsPerRun(100, func() { hitsResult = hitOften(1, 2) })
		fmt.Println(unix.Gettid(), allocated)
		var b [1]byte
		for range hitRounds {
			readByte(&b)
			for i := range hitCalls {
				hitsResult = hitOften(i, 1)
			}
		}
		readByte(&b)
		if err := disarm(); err != nil {
			return fmt.Errorf("%s: %w", run.what, err)
		}
	}
	return nil
}

// readByte reads without telling the scheduler, which would make system calls of its own. It does
// not check its stack either: there the runtime has a goroutine give way that runs for long.
//
//go:nosplit
func readByte(b *[1]byte) {
	for {
		n, _, _ := unix.RawSyscall(unix.SYS_READ, 0, uintptr(unsafe.Pointer(b)), 1)
		if n == 1 {
			return
		}
		if n == 0 {
			os.Exit(3)
		}
	}
}

// TestSystemCallsOfHits: hits in the own process make no system call and allocate nothing. What
// is documented apart is the question for the signal mask before arguments are read from
// memory, and the return from the signal of a breakpoint.
func TestSystemCallsOfHits(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=calls", "GODEBUG=asyncpreemptoff=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	cmd.Stderr = &told
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(childWait, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	lines := bufio.NewScanner(out)
	push := func() { _, _ = in.Write([]byte{1}) }
	for _, run := range hitRuns {
		if !lines.Scan() {
			_ = cmd.Wait()
			t.Fatalf("%s: the child has ended: %s", run.what, head(told.String()))
		}
		var tid int
		var allocated float64
		if _, err := fmt.Sscan(lines.Text(), &tid, &allocated); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		if allocated != 0 {
			t.Errorf("%s: %v allocations each hit", run.what, allocated)
		}
		checkHitCalls(t, run.what, tid, push, run.per)
		push()
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, head(told.String()))
	}
}

// checkHitCalls counts the system calls of each round. The runtime may need one now and then,
// under load: what counts is the round with the fewest.
func checkHitCalls(t *testing.T, what string, tid int, push func(), per map[uint64]int) {
	t.Helper()
	want := map[uint64]int{}
	for nr, n := range per {
		want[nr] = n * hitCalls
	}
	var seen []string
	good := false
	for range hitRounds {
		got, err := testprog.SystemCalls(tid, push)
		if err != nil {
			t.Fatal(err)
		}
		good = good || maps.Equal(testprog.WithoutRuntime(got, hitCalls), want)
		seen = append(seen, fmt.Sprint(got))
	}
	if !good {
		t.Errorf("%s: system calls in rounds of %d hits %s, want %v", what, hitCalls, strings.Join(seen, " "), want)
	}
}

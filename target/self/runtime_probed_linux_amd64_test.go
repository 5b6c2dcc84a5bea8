package self_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
)

func init() {
	children["growth"] = growth
	children["fork"] = forks
}

// addCounts adds events that only count.
func addCounts(c *kprobes.Core, texts ...string) ([]*kprobes.Event, error) {
	var ds []*event.Def
	for _, text := range texts {
		d, err := event.Parse(text)
		if err != nil {
			return nil, err
		}
		ds = append(ds, d)
	}
	return c.Add(ds, &kprobes.AddOptions{Count: true})
}

// grow has frames that need new stack again and again.
//
//go:noinline
func grow(n int) int {
	var pad [120]byte
	pad[n%len(pad)] = 1
	if n == 0 {
		return 0
	}
	return grow(n-1) + int(pad[n%len(pad)])
}

// TestGrowth: a call is one hit, also where it begins by growing the stack or by letting
// another goroutine run; with what the runtime does then probed too.
func TestGrowth(t *testing.T) { t.Log(child(t, "growth")) }

// busiest are functions of the runtime that run all the time, on system stacks too.
var busiest = []string{
	"newstack", "copystack", "morestack", "mallocgc", "memmove", "schedule", "gopanic", "casgstatus", "gcDrain", "scanstack",
}

func growth(c *kprobes.Core) error {
	texts := []string{"p:grow " + own + "grow"}
	for _, name := range busiest {
		texts = append(texts, "p:"+name+" runtime."+name)
	}
	es, err := addCounts(c, texts...)
	if err != nil {
		return err
	}
	runtime.SetCPUProfileRate(1000)
	defer runtime.SetCPUProfileRate(0)
	const routines, rounds, depth = 4, 600, 3000
	var wrong atomic.Uint64
	var work, noise sync.WaitGroup
	var stop atomic.Bool
	noise.Go(func() {
		for !stop.Load() {
			runtime.GC()
		}
	})
	for range routines {
		work.Go(func() {
			for range rounds {
				done := make(chan int)
				go func() { done <- grow(depth) }() // a fresh stack
				if <-done != depth || recovered(grow) != depth {
					wrong.Add(1)
				}
			}
		})
	}
	work.Wait()
	stop.Store(true)
	noise.Wait()
	if err := c.Remove(es); err != nil {
		return err
	}
	hits := map[string]uint64{}
	for _, e := range es {
		hits[e.Name] = c.Counts(e).Hits
	}
	fmt.Println(hits)
	calls := uint64(2 * routines * rounds * (depth + 1))
	if hits["grow"] != calls || wrong.Load() != 0 {
		return fmt.Errorf("%d hits in %d calls, %d results wrong", hits["grow"], calls, wrong.Load())
	}
	for _, name := range busiest {
		if hits[name] == 0 {
			return fmt.Errorf("no hit at runtime.%s", name)
		}
	}
	if hits["gopanic"] != routines*rounds || hits["copystack"] > hits["newstack"] {
		return fmt.Errorf("%d panics; %v", routines*rounds, hits)
	}
	return nil
}

// recovered calls f and panics with what it returns.
func recovered(f func(int) int) (n int) {
	defer func() { n, _ = recover().(int) }()
	panic(f(3000))
}

// TestFork: children are made while what they run through, in the memory that they share, is
// armed and disarmed; none takes a breakpoint or half a jump.
func TestFork(t *testing.T) { child(t, "fork") }

// throughForks are functions that the parent or the child of a fork runs.
var throughForks = []string{
	"internal/runtime/syscall/linux.Syscall6", "syscall.RawSyscall6", "syscall.forkAndExecInChild1", "runtime.entersyscall", "syscall.Close",
}

func forks(c *kprobes.Core) error {
	d, err := event.Parse("p syscall.forkAndExecInChild1")
	if err != nil {
		return err
	}
	if _, err := c.Add([]*event.Def{d}, &kprobes.AddOptions{Count: true, Tactic: arch.TacticBoost}); err == nil {
		return errors.New("a breakpoint was armed where the child of a fork runs, which has no handler")
	}
	var texts []string
	for _, name := range throughForks {
		texts = append(texts, "p "+name)
	}
	var stop, ended atomic.Bool
	var arming sync.WaitGroup
	var cycles atomic.Int64
	var failed error
	arming.Go(func() {
		defer ended.Store(true)
		for ; !stop.Load() && failed == nil; cycles.Add(1) {
			es, err := addCounts(c, texts...)
			if err != nil {
				failed = err
				return
			}
			time.Sleep(time.Millisecond)
			_, _ = os.Stat("/") // a system call at least, whatever the others wait for
			hits := c.Counts(es[0]).Hits
			if failed = c.Remove(es); failed == nil && hits == 0 {
				failed = errors.New("system calls were not counted")
			}
		}
	})
	var forked sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		forked.Go(func() {
			for n := 0; n < 50 || cycles.Load() < 10 && !ended.Load(); n++ {
				if err := exec.Command("/bin/true").Run(); err != nil {
					errs[i] = fmt.Errorf("child: %w", err)
					return
				}
				if _, err := os.Stat("/"); err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	forked.Wait()
	stop.Store(true)
	arming.Wait()
	return errors.Join(append(errs, failed)...)
}

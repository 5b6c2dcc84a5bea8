package self_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
)

func init() {
	children["signals"] = signals
	children["collect"] = collect
	children["trap"] = func(c *kprobes.Core) error { return trap(c, false) }
	children["trap probed"] = func(c *kprobes.Core) error { return trap(c, true) }
}

// breakpoint arms a probe that takes a breakpoint at every call of bump.
func breakpoint(c *kprobes.Core) (*kprobes.Kprobe, error) {
	k := &kprobes.Kprobe{SymbolName: own + "bump", PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) {}}
	err := forced(c, arch.TacticBoost, k)
	if err == nil && k.State().Tactic != arch.TacticBoost {
		err = errors.New("the probe is no breakpoint")
	}
	return k, err
}

// TestSignals: the program may do with signals what it likes while probes are armed, taken
// out and hit, also with those that we use; profiles can be made.
func TestSignals(t *testing.T) { child(t, "signals") }

func signals(c *kprobes.Core) error {
	k, err := breakpoint(c)
	if err != nil {
		return err
	}
	o := &kprobes.Kprobe{SymbolName: own + "other"}
	if err := c.RegisterKprobe(o); err != nil {
		return err
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	var calls, wrong atomic.Uint64
	before := k.State().Hits
	for range 2 {
		wg.Go(func() {
			for i := uint64(0); !stop.Load(); i++ {
				if bump(i, 7) != 5*i+7 || other(i, 1) != 3*i+1 {
					wrong.Add(1)
				}
				calls.Add(1)
				runtime.Gosched() // while SIGURG is ignored the runtime can not preempt
			}
		})
	}
	var armed atomic.Int64
	errs := make([]error, 2)
	wg.Go(func() {
		for !stop.Load() && errs[0] == nil {
			if errs[0] = errors.Join(c.DisableKprobe(o), c.EnableKprobe(o)); errors.Is(errs[0], unix.EBUSY) {
				errs[0] = nil // SIGURG was ignored just when threads were to be stopped
			}
			armed.Add(1)
		}
	})
	wg.Go(func() {
		for !stop.Load() && errs[1] == nil {
			if errs[1] = pprof.StartCPUProfile(io.Discard); errs[1] == nil {
				time.Sleep(20 * time.Millisecond)
				pprof.StopCPUProfile()
			}
		}
	})
	err = signalRounds(30)
	for n := 0; err == nil && armed.Load() < 10 && n < 100; n++ { // each of them may have to wait while SIGURG is ignored
		err = signalRounds(30)
	}
	stop.Store(true)
	wg.Wait()
	s := k.State()
	c.UnregisterKprobes([]*kprobes.Kprobe{k, o})
	if n := s.Hits + s.Misses.Total() - before; n != calls.Load() || wrong.Load() != 0 || armed.Load() < 10 {
		err = errors.Join(err, fmt.Errorf("%d calls, %d hits, %d results wrong, armed %d times, %+v", calls.Load(), n, wrong.Load(), armed.Load(), s))
	}
	return errors.Join(append(errs, err)...)
}

// signalRounds notifies, ignores and resets signals, and sends them.
func signalRounds(n int) error {
	sigs := []os.Signal{unix.SIGURG, unix.SIGPROF, unix.SIGTRAP, unix.SIGUSR1}
	for range n {
		ch := make(chan os.Signal, 100)
		signal.Notify(ch, sigs...)
		if err := unix.Kill(unix.Getpid(), unix.SIGUSR1); err != nil {
			return err
		}
		for got := os.Signal(nil); got != unix.SIGUSR1; {
			select {
			case got = <-ch:
			case <-time.After(time.Minute):
				return errors.New("SIGUSR1 is not notified")
			}
		}
		time.Sleep(2 * time.Millisecond)
		signal.Ignore(sigs...)
		if err := unix.Kill(unix.Getpid(), unix.SIGUSR1); err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond)
		signal.Reset(sigs...)
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

// TestCollect: goroutines that take a breakpoint again and again, and do nothing else, are
// preempted.
func TestCollect(t *testing.T) { child(t, "collect") }

func collect(c *kprobes.Core) error {
	if _, err := breakpoint(c); err != nil {
		return err
	}
	runtime.GOMAXPROCS(2)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := uint64(0); !stop.Load(); i++ {
				_ = bump(bump(bump(bump(i, 1), 2), 3), 4)
			}
		})
	}
	for range 10 {
		runtime.GC()
	}
	stop.Store(true)
	wg.Wait()
	return nil
}

// TestTrapSignal: a SIGTRAP that somebody sends does what it does without probes.
func TestTrapSignal(t *testing.T) {
	for _, how := range []string{"notify", "ignore", "nothing"} {
		plain, probed := trapChild(t, "trap", how), trapChild(t, "trap probed", how)
		if plain != probed || plain == "" {
			t.Errorf("%s: without probes %q, with %q", how, plain, probed)
		}
	}
}

// trapChild runs a child of trap and says how it ended, and its first words.
func trapChild(t *testing.T, name, how string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+name, "KPROBES_TRAP="+how)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return fmt.Sprint(cmd.ProcessState, ": ", first)
}

func trap(c *kprobes.Core, probe bool) error {
	if probe {
		if _, err := breakpoint(c); err != nil {
			return err
		}
		_ = bump(1, 2)
	}
	ch, wait := make(chan os.Signal, 1), time.Minute // for what comes, or ends the process
	switch os.Getenv("KPROBES_TRAP") {
	case "notify":
		signal.Notify(ch, unix.SIGTRAP)
	case "ignore":
		signal.Ignore(unix.SIGTRAP)
		wait = 500 * time.Millisecond // for what should not come
	}
	if err := unix.Kill(unix.Getpid(), unix.SIGTRAP); err != nil {
		return err
	}
	select {
	case s := <-ch:
		fmt.Println("got", s)
	case <-time.After(wait):
		fmt.Println("got nothing")
	}
	return nil
}

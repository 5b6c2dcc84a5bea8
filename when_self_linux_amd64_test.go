//go:build !race

package kprobes_test

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
)

// What the package's documentation says of what may be called when.

//go:noinline
func calledWhen(a, b uint64) uint64 { return a<<1 ^ b }

// TestSelfSameProbe: of many goroutines that register one Kprobe one does, the others get
// EINVAL; of those that unregister it one does too, and the rest leave Addr 0.
func TestSelfSameProbe(t *testing.T) {
	const routines = 16
	k := &kprobes.Kprobe{SymbolName: selfPrefix + "calledWhen", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
	together := func(f func()) {
		start := make(chan bool)
		var wg sync.WaitGroup
		for range routines {
			wg.Go(func() {
				<-start
				f()
			})
		}
		close(start)
		wg.Wait()
	}
	for range 20 {
		k.Addr = 0
		var done, refused atomic.Int64
		together(func() {
			switch err := kprobes.RegisterKprobe(k); {
			case err == nil:
				done.Add(1)
			case errors.Is(err, unix.EINVAL):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
		if done.Load() != 1 || refused.Load() != routines-1 {
			t.Fatalf("%d registered, %d refused with EINVAL", done.Load(), refused.Load())
		}
		_ = calledWhen(1, 2)
		together(func() { kprobes.UnregisterKprobe(k) })
		_ = calledWhen(1, 2)
		if s := k.State(); s.Registered || s.Hits != 1 || k.Addr != 0 {
			t.Fatalf("unregistered %d times: %+v, Addr 0x%x", routines, s, k.Addr)
		}
	}
}

// exitsNow is set in the environment of a process that is to end with probes armed.
const exitsNow = "KPROBES_TEST_EXITS"

// TestSelfExit: a program ends as it says while probes are hit, registered and taken out.
func TestSelfExit(t *testing.T) {
	if os.Getenv(exitsNow) != "" {
		exitArmed(t)
	}
	exe, err := os.Executable()
	must(t, err)
	for range 10 {
		cmd := exec.Command(exe, "-test.run=^TestSelfExit$")
		cmd.Env = append(os.Environ(), exitsNow+"=1")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != exitStatus || len(out) > 0 {
			t.Fatalf("%v, want status %d and no output\n%s", err, exitStatus, out)
		}
	}
}

const exitStatus = 77

// exitArmed ends the process in the middle of everything.
func exitArmed(t *testing.T) {
	var hits atomic.Int64
	pre := func(*kprobes.Kprobe, *kprobes.Regs) int { hits.Add(1); return 0 }
	must(t, kprobes.RegisterKprobe(&kprobes.Kprobe{SymbolName: selfPrefix + "calledWhen", PreHandler: pre}))
	for range 4 {
		go func() {
			for i := uint64(0); ; i++ {
				_ = calledWhen(i, i)
			}
		}()
		go func() {
			for {
				k := &kprobes.Kprobe{SymbolName: selfPrefix + "calledWhen", PreHandler: pre}
				_ = kprobes.RegisterKprobe(k) // the process may be ending
				kprobes.UnregisterKprobe(k)
			}
		}()
	}
	for hits.Load() < 1000 {
		_ = calledWhen(1, 1)
	}
	os.Exit(exitStatus)
}

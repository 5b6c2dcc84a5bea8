package kprobes_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
)

// sleeper checks its stack, for it calls a function that can not be inlined.
//
//go:noinline
func sleeper(s []string, n int) string {
	if n > 0 {
		return sleeper(s, n-1)
	}
	return s[len(s)-1]
}

func TestSelfSleepable(t *testing.T) {
	var runs atomic.Int64
	var mu sync.Mutex
	seen := map[string]int{}
	k := &kprobes.Kprobe{
		SymbolName: "kprobes.dev/kprobes_test.sleeper", Flags: kprobes.FlagSleepable,
		PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
			n := runs.Add(1)
			mu.Lock()
			seen[fmt.Sprintf("%d", r.Arg(3))]++
			mu.Unlock()
			if n%16 == 0 {
				time.Sleep(time.Millisecond)
			}
			if n%128 == 0 {
				runtime.GC()
			}
			return 0
		},
	}
	if err := kprobes.RegisterKprobe(k); err != nil {
		t.Fatal(err)
	}
	defer kprobes.UnregisterKprobe(k)
	const routines, rounds, depth = 8, 50, 20
	var wg sync.WaitGroup
	for i := range routines {
		wg.Go(func() {
			for j := range rounds {
				want := fmt.Sprintf("goroutine %d round %d", i, j)
				if got := sleeper([]string{"", want}, depth); got != want {
					t.Errorf("%q, want %q", got, want)
				}
			}
		})
	}
	wg.Wait()
	want := int64(routines * rounds * (depth + 1))
	if got := runs.Load() + int64(k.NMissed()); got != want {
		t.Errorf("%d runs and %d missed, want %d in all", runs.Load(), k.NMissed(), want)
	}
	if k.NMissed() > 0 {
		t.Errorf("%d missed", k.NMissed())
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != depth+1 {
		t.Errorf("arguments seen: %v", seen)
	}
}

func TestSelfSleepablePanic(t *testing.T) {
	k := &kprobes.Kprobe{
		SymbolName: "kprobes.dev/kprobes_test.sleeper", Flags: kprobes.FlagSleepable,
		PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { panic("on purpose") },
	}
	if err := kprobes.RegisterKprobe(k); err != nil {
		t.Fatal(err)
	}
	defer kprobes.UnregisterKprobe(k)
	if got := sleeper([]string{"x"}, 3); got != "x" {
		t.Errorf("%q", got)
	}
	if err := k.Fault(); err == nil {
		t.Error("no fault is told")
	} else {
		t.Log(err)
	}
}

// A return handler that sleeps finds room on fresh goroutines too.
func TestSelfSleepableReturn(t *testing.T) {
	var runs, wrong atomic.Int64
	k := &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: "kprobes.dev/kprobes_test.sleeper", Flags: kprobes.FlagSleepable},
		Handler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
			if runs.Add(1)%16 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
			if r.AX == 0 || r.BX != 5 { // a string of five bytes
				wrong.Add(1)
			}
			return 0
		},
	}
	if err := kprobes.RegisterKretprobe(k); err != nil {
		t.Fatal(err)
	}
	defer kprobes.UnregisterKretprobe(k)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range 4 {
				if got := sleeper([]string{"", "value"}, 3); got != "value" {
					t.Errorf("%q", got)
				}
			}
		})
	}
	wg.Wait()
	if got := runs.Load() + int64(k.NMissed()); got != 100*4*4 || runs.Load() < 100 || wrong.Load() != 0 {
		t.Errorf("%d runs, %d missed, %d of them wrong; want %d", runs.Load(), k.NMissed(), wrong.Load(), 100*4*4)
	}
	t.Logf("%d missed: %+v", k.NMissed(), k.State().Misses)
}

// A handler that sleeps can not unregister its own probe, which would wait for it.
func TestSelfSleepableUnregisters(t *testing.T) {
	var k *kprobes.Kprobe
	said := make(chan error, 1)
	k = &kprobes.Kprobe{
		SymbolName: "kprobes.dev/kprobes_test.sleeper", Flags: kprobes.FlagSleepable,
		PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
			select {
			case said <- kprobes.DisableKprobe(k):
			default:
			}
			return 0
		},
	}
	if err := kprobes.RegisterKprobe(k); err != nil {
		t.Fatal(err)
	}
	defer kprobes.UnregisterKprobe(k)
	sleeper([]string{"x"}, 1)
	if err := <-said; !errors.Is(err, unix.EDEADLK) {
		t.Errorf("%v, want EDEADLK", err)
	}
}

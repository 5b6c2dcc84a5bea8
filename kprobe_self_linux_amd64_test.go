//go:build !race

// Handlers in the own process run on the system stack, where the race detector can not.

package kprobes_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/conformance"
)

// ownCore is the registry of the test program itself.
func ownCore(t *testing.T) *kprobes.Core {
	t.Helper()
	c, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestConformanceSelf puts the own process to the cases of the kernel's unit tests. A
// handler is not preemptible when it runs on the thread's system stack: no goroutine is the
// running one then that the scheduler could put aside.
func TestConformanceSelf(t *testing.T) {
	c := ownCore(t)
	on := c.Target().Capabilities().InHandler
	if on == nil {
		t.Fatal("the own process can not tell whether a handler runs")
	}
	conformance.Run(t, &conformance.Env{
		Core: c, Symbol: conformance.OwnSymbol, Call: conformance.CallOwn, Inside: conformance.CallOwn,
		Preemptible: func() bool { return !on() },
	})
}

// What is probed below. Calls go through variables: what the compiler sees it may leave out.
var (
	mixed    = selfMixed
	deep     func(uint64) uint64 // selfDeep
	leaves   = selfLeaves
	plainFn  = selfPlain
	nilDeref = func(p *int) int { return *p }
)

type triple struct {
	A int8
	F float32
	S string
}

//go:noinline
func selfMixed(s string, b []byte, e error, f float64, t triple, n ...int) string {
	return fmt.Sprint(s, len(b), e, f, t, n)
}

func init() { deep = selfDeep }

//go:noinline
func selfDeep(n uint64) uint64 {
	var pad [64]byte
	pad[n%64] = 1
	if n == 0 {
		return uint64(pad[0]) - 1
	}
	return deep(n-1) + uint64(pad[n%64])
}

//go:noinline
func selfLeaves(how int) int {
	switch how {
	case 1:
		panic("left")
	case 2:
		runtime.Goexit()
	}
	return how
}

//go:noinline
func selfPlain(a, b uint64) uint64 { return a*3 + b }

const selfPrefix = "kprobes.dev/kprobes_test."

// TestJprobeArguments: Entry is called with the very arguments, of all classes and also on
// the stack, and the function has its own afterwards.
func TestJprobeArguments(t *testing.T) {
	var runs, same atomic.Int64
	why := errors.New("why")
	bs := []byte("bytes")
	j := &kprobes.Jprobe{
		Kp: kprobes.Kprobe{SymbolName: selfPrefix + "selfMixed"},
		Entry: func(s string, b []byte, e error, f float64, tr triple, n ...int) string {
			runs.Add(1)
			if s == "text" && len(b) == 5 && &b[0] == &bs[0] && e == why && f == 1.5 && tr == (triple{-1, 2.5, "three"}) && len(n) == 2 && n[1] == 9 {
				same.Add(1)
			}
			s, b, e, f, tr, n = "", nil, nil, 0, triple{}, nil
			return s + string(b) + tr.S
		},
	}
	want := mixed("text", bs, why, 1.5, triple{-1, 2.5, "three"}, 8, 9)
	must(t, kprobes.RegisterJprobe(j))
	got := mixed("text", bs, why, 1.5, triple{-1, 2.5, "three"}, 8, 9)
	second := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: selfPrefix + "selfMixed"}, Entry: j.Entry}
	if err := kprobes.RegisterJprobe(second); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a second jprobe: %v, want EEXIST", err)
	}
	other := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain"}, Entry: func(a, b uint32, c string) {}}
	if err := kprobes.RegisterJprobe(other); !errors.Is(err, unix.EINVAL) {
		t.Errorf("another signature: %v, want EINVAL", err)
	}
	hits := j.State().Hits
	kprobes.UnregisterJprobe(j)
	if got != want || runs.Load() != 1 || same.Load() != 1 || hits != 1 || j.NMissed() != 0 {
		t.Errorf("%d runs, %d with the right arguments, %d hits; the function returned %q, want %q", runs.Load(), same.Load(), hits, got, want)
	}
	must(t, kprobes.RegisterJprobe(second))
	kprobes.UnregisterJprobe(second)
}

// TestOwnRegisters: arguments as registers, changed and loaded back, on a Go function; the
// path changed where the probe is not optimised.
func TestOwnRegisters(t *testing.T) {
	var args [2]uint64
	k := &kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain", PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
		args = [2]uint64{r.Arg(0), r.Arg(1)}
		r.AX = 100
		return 0
	}}
	must(t, kprobes.RegisterKprobe(k))
	if got := plainFn(7, 8); got != 308 || args != [2]uint64{7, 8} {
		t.Errorf("%d with arguments %v, want 308 with 7 and 8", got, args)
	}
	var done atomic.Int64
	leave := &kprobes.Kprobe{
		SymbolName: selfPrefix + "selfPlain",
		PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
			done.Add(1)
			r.SetReturnValue(55)
			if r.Return() != nil {
				return 0
			}
			return 1
		},
		PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) { done.Add(100) },
	}
	must(t, kprobes.RegisterKprobe(leave))
	if got := plainFn(7, 8); got != 55 || done.Load() != 1 {
		t.Errorf("left at its entry with 55: %d, handlers %d", got, done.Load())
	}
	kprobes.UnregisterKprobes([]*kprobes.Kprobe{k, leave})
	if got := plainFn(7, 8); got != 29 {
		t.Errorf("afterwards %d, want 29", got)
	}
}

// TestOwnReturns: every call in progress has its data, through stacks that grow and move;
// what never returns is counted, and the sum is that of the calls.
func TestOwnReturns(t *testing.T) {
	var bad, back atomic.Int64
	rp := &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: selfPrefix + "selfDeep"}, DataSize: 16,
		EntryHandler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
			ri.Data[0], ri.Data[1] = byte(r.Arg(0)), byte(ri.Task.ID)
			return 0
		},
		Handler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
			if back.Add(1); ri.Data[0] != byte(r.ReturnValue()) || ri.Data[1] != byte(ri.Task.ID) || ri.Task.ID == 0 || ri.RetAddr == 0 {
				bad.Add(1)
			}
			return 0
		},
	}
	must(t, kprobes.RegisterKretprobe(rp))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if n := deep(2000); n != 2000 {
				t.Errorf("deep(2000) = %d", n)
			}
		})
	}
	wg.Wait()
	kprobes.UnregisterKretprobe(rp)
	if back.Load() != 8*2001 || bad.Load() != 0 || rp.NMissed() != 0 || rp.Unwound() != 0 {
		t.Errorf("%d returns, %d with another call's data, %+v", back.Load(), bad.Load(), rp.State())
	}
}

// TestOwnUnwound: calls left by panic and Goexit have no return handler and are told.
func TestOwnUnwound(t *testing.T) {
	var back atomic.Int64
	rp := &kprobes.Kretprobe{
		Kp:      kprobes.Kprobe{SymbolName: selfPrefix + "selfLeaves"},
		Handler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { back.Add(1); return 0 },
	}
	must(t, kprobes.RegisterKretprobe(rp))
	const rounds = 30
	panicking := func() {
		defer func() { _ = recover() }()
		leaves(1)
	}
	for range rounds {
		panicking() // from one depth: each finds what the last has left
	}
	leaves(0)
	kprobes.UnregisterKretprobe(rp)
	if back.Load() != 1 || rp.Unwound() < rounds-1 || rp.NMissed() != 0 {
		t.Errorf("%d returns, %+v", back.Load(), rp.State())
	}
	rp.Kp.Addr = 0 // to be used again
	must(t, kprobes.RegisterKretprobe(rp))
	done := make(chan bool)
	go func() {
		defer close(done)
		leaves(2)
	}()
	<-done
	kprobes.UnregisterKretprobe(rp)
	if back.Load() != 1 {
		t.Error("a return handler ran for Goexit")
	}
}

// TestOwnFaults: a nil dereference and a panic in an atomic handler are survived, told, and
// the probe is disabled.
func TestOwnFaults(t *testing.T) {
	for name, bad := range map[string]func(){
		"panic": func() { panic("no tea") },
		"nil":   func() { nilDeref(nil) },
	} {
		var runs atomic.Int64
		k := &kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
			runs.Add(1)
			bad()
			return 0
		}}
		must(t, kprobes.RegisterKprobe(k))
		for range 3 {
			if got := plainFn(1, 1); got != 4 {
				t.Errorf("%s: selfPlain(1, 1) = %d", name, got)
			}
		}
		for end := time.Now().Add(time.Minute); !k.State().Disabled && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		var l strings.Builder
		must(t, ownCore(t).List(&l))
		if k.Fault() == nil || runs.Load() != 1 || !strings.Contains(l.String(), "[DISABLED] the probe was disabled") {
			t.Errorf("%s: %d runs, fault %v, listing\n%s", name, runs.Load(), k.Fault(), l.String())
		}
		kprobes.UnregisterKprobe(k)
	}
}

// TestOwnHandlerAsks: within a handler nothing can be registered or taken out, and what was
// counted can be asked for.
func TestOwnHandlerAsks(t *testing.T) {
	var first, second error
	var missed uint64
	spare := &kprobes.Kprobe{SymbolName: selfPrefix + "selfDeep"}
	var k *kprobes.Kprobe
	k = &kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain", PreHandler: func(p *kprobes.Kprobe, _ *kprobes.Regs) int {
		first, second = kprobes.RegisterKprobe(spare), kprobes.DisableKprobe(k)
		kprobes.UnregisterKprobe(k)
		missed = p.NMissed()
		return 0
	}}
	must(t, kprobes.RegisterKprobe(k))
	plainFn(1, 2)
	plainFn(1, 2)
	hits := k.State().Hits
	kprobes.UnregisterKprobe(k)
	if !errors.Is(first, unix.EDEADLK) || !errors.Is(second, unix.EDEADLK) || hits != 2 || missed != 0 {
		t.Errorf("%v, %v, %d hits, %d missed", first, second, hits, missed)
	}
}

// TestOwnBlacklist: NoKprobe takes funcs of the program.
func TestOwnBlacklist(t *testing.T) {
	must(t, kprobes.NoKprobe(notToBeProbed))
	if err := kprobes.RegisterKprobe(&kprobes.Kprobe{SymbolName: selfPrefix + "notToBeProbed"}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a function that NoKprobe has named: %v", err)
	}
	if notToBeProbed(1) != 2 {
		t.Error("arithmetic")
	}
}

//go:noinline
func notToBeProbed(a int) int { return a * 2 }

// TestOwnHammer: goroutines register, enable, disable and unregister probes of all kinds on
// functions that others run all the time; results stay right and counts add up.
func TestOwnHammer(t *testing.T) {
	const probers = 8
	runners, rounds := 4, 2
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		runners, rounds = 16, 50
	}
	stop := make(chan bool)
	var run, reg sync.WaitGroup
	var calls atomic.Uint64
	always := &kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
	must(t, kprobes.RegisterKprobe(always))
	for range runners {
		run.Go(func() {
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if got := plainFn(i, 1); got != 3*i+1 {
					t.Errorf("selfPlain(%d, 1) = %d", i, got)
					return
				}
				calls.Add(1)
				if got := leaves(3); got != 3 {
					t.Errorf("selfLeaves(3) = %d", got)
					return
				}
			}
		})
	}
	for g := range probers {
		reg.Go(func() {
			for i := range rounds {
				var n, wrong atomic.Int64
				var data, result atomic.Uint64 // of the last call with another's data
				k := &kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { n.Add(1); return 0 }}
				if g%2 == 1 {
					k.PostHandler = func(*kprobes.Kprobe, *kprobes.Regs, uint64) {}
				}
				r := &kprobes.Kretprobe{
					Kp: kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain"}, DataSize: 8 * (g % 3), MaxActive: 64 * (g % 4),
					EntryHandler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
						if len(ri.Data) > 0 {
							binary.NativeEndian.PutUint64(ri.Data, 3*r.Arg(0)+r.Arg(1))
						}
						return 0
					},
					Handler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
						if len(ri.Data) > 0 && binary.NativeEndian.Uint64(ri.Data) != r.AX {
							data.Store(binary.NativeEndian.Uint64(ri.Data))
							result.Store(r.AX)
							wrong.Add(1)
						}
						return 0
					},
				}
				j := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain"}, Entry: func(a, b uint64) uint64 { return 0 }}
				jerr := kprobes.RegisterJprobe(j)
				if jerr != nil && !errors.Is(jerr, unix.EEXIST) {
					t.Errorf("jprobe: %v", jerr)
				}
				for step, err := range []error{
					kprobes.RegisterKprobe(k), kprobes.RegisterKretprobe(r), kprobes.DisableKprobe(k),
					kprobes.EnableKprobe(k), kprobes.DisableKretprobe(r), kprobes.EnableKretprobe(r),
				} {
					if err != nil {
						t.Errorf("goroutine %d, round %d, step %d: %v", g, i, step, err)
					}
				}
				kprobes.UnregisterKretprobe(r)
				kprobes.UnregisterKprobe(k)
				kprobes.UnregisterJprobe(j)
				if s := k.State(); s.Hits != uint64(n.Load()) || wrong.Load() != 0 {
					t.Errorf("goroutine %d: %d runs, %d with another call's data (the last 0x%x, its result 0x%x), %+v", g, n.Load(), wrong.Load(), data.Load(), result.Load(), s)
				}
			}
		})
	}
	reg.Wait()
	close(stop)
	run.Wait()
	s := always.State()
	kprobes.UnregisterKprobe(always)
	if s.Hits+s.Misses.Total() != calls.Load() {
		t.Errorf("%d calls, %+v", calls.Load(), s)
	}
}

// TestOwnAllocations: no hit allocates, nor does the look that is taken ten times a second while there are probes.
func TestOwnAllocations(t *testing.T) {
	k := &kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
	r := &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain"}, DataSize: 8,
		EntryHandler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 },
		Handler:      func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 },
	}
	j := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain"}, Entry: func(a, b uint64) uint64 { return 0 }}
	must(t, kprobes.RegisterKprobe(k))
	must(t, kprobes.RegisterKretprobe(r))
	must(t, kprobes.RegisterJprobe(j))
	n := testing.AllocsPerRun(1000, func() { plainFn(1, 2) })
	hits := r.State().Hits
	if n != 0 || hits != 1001 {
		t.Errorf("%v allocations a hit, %d returns", n, hits)
	}
	// What was postponed while the probes went in, here or in a test before, allocates once. What
	// the probes do without a hit would allocate in each of these.
	for try := 1; ; try++ {
		idle := testing.AllocsPerRun(4, func() { time.Sleep(300 * time.Millisecond) })
		if idle == 0 {
			break
		}
		if try == 10 {
			t.Errorf("%v allocations in 300 ms without a hit", idle)
			break
		}
	}
	kprobes.UnregisterJprobe(j)
	kprobes.UnregisterKretprobe(r)
	kprobes.UnregisterKprobe(k)
}

// TestOwnInlined: a function that exists only inlined is not found, and its callers are
// named.
func TestOwnInlined(t *testing.T) {
	if got := callsInlined(3, 4); got != 25 {
		t.Errorf("%d, want 25", got)
	}
	err := kprobes.RegisterKprobe(&kprobes.Kprobe{SymbolName: selfPrefix + "onlyInlined"})
	if !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "callsInlined") {
		t.Errorf("a function that is inlined everywhere: %v, want ENOENT and where it went", err)
	}
}

func onlyInlined(a, b uint64) uint64 { return a*a + b*b }

//go:noinline
func callsInlined(a, b uint64) uint64 { return onlyInlined(a, b) }

// TestOwnSleepable: handlers of a probe with FlagSleepable may block, allocate and panic.
func TestOwnSleepable(t *testing.T) {
	var mu sync.Mutex
	var said []string
	k := &kprobes.Kprobe{
		SymbolName: selfPrefix + "selfLeaves", Flags: kprobes.FlagSleepable,
		PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
			time.Sleep(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			said = append(said, fmt.Sprint("how ", r.Arg(0)))
			return 0
		},
	}
	must(t, kprobes.RegisterKprobe(k))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if got := leaves(3); got != 3 {
				t.Errorf("selfLeaves(3) = %d", got)
			}
		})
	}
	wg.Wait()
	s := k.State()
	kprobes.UnregisterKprobe(k)
	if len(said) != 4 || said[0] != "how 3" || s.Hits != 4 || k.Flags != kprobes.FlagSleepable {
		t.Errorf("handlers said %q, %+v, flags %d", said, s, k.Flags)
	}
}

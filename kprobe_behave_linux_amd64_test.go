package kprobes_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
)

// value has the program call one of its functions.
func value(p *testprog.Proc, fn string, v uint64) uint64 {
	return p.Counts(fmt.Sprint(fn, " ", v))["value"]
}

// calling has a program call target all the time, until it is told to end: then it tells how many
// calls there were.
func calling(t *testing.T, prog *testprog.Proc) (end func() uint64) {
	stop := make(chan bool)
	var called uint64
	var caller sync.WaitGroup
	caller.Go(func() {
		for ; ; called++ {
			select {
			case <-stop:
				return
			default:
			}
			if v := value(prog, "target", 99); v != 33 {
				t.Errorf("target(99) = %d", v)
				return
			}
		}
	})
	return func() uint64 {
		close(stop)
		caller.Wait()
		return called
	}
}

func listing(t *testing.T, c *kprobes.Core) string {
	t.Helper()
	var b strings.Builder
	if err := c.List(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// counting gives a pre handler that counts its runs.
func counting(n *atomic.Int64) func(*kprobes.Kprobe, *kprobes.Regs) int {
	return func(*kprobes.Kprobe, *kprobes.Regs) int { n.Add(1); return 0 }
}

// TestRefusals: what can not be probed is refused with its errno and the reason, and
// nothing is registered.
func TestRefusals(t *testing.T) {
	_, c := attach(t, "conform")
	var n atomic.Int64
	pre := counting(&n)
	good := &kprobes.Kprobe{SymbolName: "target", PreHandler: pre}
	must(t, c.RegisterKprobe(good))
	must(t, c.NoKprobe("recursed"))
	entry := func(uint64) uint64 { return 0 }
	other := &kprobes.Kprobe{SymbolName: "target2", PreHandler: pre}
	for name, try := range map[string]struct {
		err  error
		want unix.Errno
		says string
	}{
		"unknown":          {c.RegisterKprobe(&kprobes.Kprobe{SymbolName: "no_such_function", PreHandler: pre}), unix.ENOENT, "no_such_function"},
		"unknown in libc":  {c.RegisterKprobe(&kprobes.Kprobe{SymbolName: "libc.so.6:no_such_function"}), unix.ENOENT, "no_such_function"},
		"inside":           {c.RegisterKprobe(&kprobes.Kprobe{SymbolName: "deep", Offset: 2, PreHandler: pre}), unix.EILSEQ, "deep"},
		"behind":           {c.RegisterKprobe(&kprobes.Kprobe{SymbolName: "deep", Offset: 1 << 20}), unix.EINVAL, "behind the end"},
		"no code":          {c.RegisterKprobe(&kprobes.Kprobe{Addr: 8, PreHandler: pre}), unix.EINVAL, "0x8"},
		"blacklisted":      {c.RegisterKprobe(&kprobes.Kprobe{SymbolName: "recursed", PreHandler: pre}), unix.EINVAL, "NoKprobe"},
		"registered":       {c.RegisterKprobe(good), unix.EINVAL, "registered already"},
		"return, offset":   {c.RegisterKretprobe(&kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "deep", Offset: 1}}), unix.EINVAL, "entry"},
		"return, unknown":  {c.RegisterKretprobe(&kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "nowhere"}}), unix.ENOENT, "nowhere"},
		"jprobe, offset":   {c.RegisterJprobe(&kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: "deep", Offset: 1}, Entry: entry}), unix.EINVAL, "entry"},
		"second of batch":  {c.RegisterKprobes([]*kprobes.Kprobe{other, {SymbolName: "nowhere"}}), unix.ENOENT, "probe 2 of 2"},
		"blacklist":        {c.NoKprobe("nowhere"), unix.ENOENT, "nowhere"},
		"two in one batch": {c.RegisterKprobes([]*kprobes.Kprobe{other, good}), unix.EINVAL, "registered already"},
	} {
		if !errors.Is(try.err, try.want) || !strings.Contains(try.err.Error(), try.says) {
			t.Errorf("%s: %v, want %v and %q", name, try.err, try.want, try.says)
		}
		if try.err != nil && strings.Contains(try.err.Error(), "column") {
			t.Errorf("%s: %v: there are no columns", name, try.err)
		}
	}
	if other.Addr != 0 || strings.Count(listing(t, c), "\n") != 1 {
		t.Errorf("after refusals only, %+v and the listing\n%s", other, listing(t, c))
	}
	must(t, c.RegisterKprobe(other))
	var b strings.Builder
	must(t, c.Blacklist(&b))
	if !strings.Contains(b.String(), "\trecursed\n") {
		t.Errorf("the blacklist has no line of recursed:\n%s", b.String())
	}
}

// TestStates: disabled probes, the global switch and the optimisation knob, as the handlers
// and the listing show them.
func TestStates(t *testing.T) {
	prog, c := attach(t, "conform")
	var a, b atomic.Int64
	ka := &kprobes.Kprobe{SymbolName: "target", PreHandler: counting(&a)}
	kb := &kprobes.Kprobe{SymbolName: "target2", PreHandler: counting(&b), Flags: kprobes.FlagDisabled | 1<<30}
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "recursed"}}
	must(t, c.RegisterKprobes([]*kprobes.Kprobe{ka, kb}))
	must(t, c.RegisterKretprobe(rp))
	step := func(what string, wantA, wantB int64, tags ...string) {
		t.Helper()
		for _, fn := range []string{"target", "target2", "recursed"} {
			value(prog, fn, 9)
		}
		if x, y := a.Swap(0), b.Swap(0); x != wantA || y != wantB {
			t.Errorf("%s: handlers ran %d and %d times, want %d and %d", what, x, y, wantA, wantB)
		}
		want := fmt.Sprintf("%x  k  target+0x0    %s\n%x  k  target2+0x0    %s\n%x  r  recursed+0x0    %s\n",
			ka.Addr, tags[0], kb.Addr, tags[1], rp.Kp.Addr, tags[2])
		if got := listing(t, c); got != want {
			t.Errorf("%s: the listing is\n%swant\n%s", what, got, want)
		}
	}
	const off, opt = "[DISABLED]", "[OPTIMIZED]"
	step("registered", 1, 0, opt, off, opt)
	if kb.Flags != kprobes.FlagDisabled {
		t.Errorf("flags %x after registration, want only FlagDisabled", kb.Flags)
	}
	must(t, c.EnableKprobe(kb))
	must(t, c.EnableKprobe(kb))
	step("enabled", 1, 1, opt, opt, opt)
	must(t, c.DisableKprobe(ka))
	must(t, c.DisableKprobe(ka))
	must(t, c.DisableKretprobe(rp))
	step("disabled", 0, 1, off, opt, off)
	must(t, c.EnableKretprobe(rp))
	must(t, c.SetEnabled(false))
	const unarmed, slow = "unarmed: kprobes/enabled is 0", "boost: kprobes-optimization is off"
	step("all off", 0, 0, off, unarmed, unarmed)
	must(t, c.EnableKprobe(ka))
	must(t, c.DisableKprobe(kb))
	step("enabled while all is off", 0, 0, unarmed, off, unarmed)
	must(t, c.SetEnabled(true))
	step("all on", 1, 0, opt, off, opt)
	must(t, c.SetOptimization(false))
	step("not optimised", 1, 0, slow, off, slow)
	if c.Optimization() || !c.Enabled() || ka.State().Optimized || ka.State().Tactic == "" {
		t.Errorf("with the knob at 0: %+v", ka.State())
	}
	must(t, c.SetOptimization(true))
	step("optimised again", 1, 0, opt, off, opt)
	if hits := ka.State().Hits; hits != 5 {
		t.Errorf("%d hits of the first probe, want 5", hits)
	}
	if hits := rp.State().Hits; hits != 5 {
		t.Errorf("%d returns, want 5", hits)
	}
	c.UnregisterKprobe(kb)
	c.UnregisterKprobe(kb)
	if kb.Addr != 0 {
		t.Error("unregistered twice, and the address is not cleared")
	}
	if err := c.EnableKprobe(kb); !errors.Is(err, unix.EINVAL) {
		t.Errorf("enabling what is not registered: %v", err)
	}
}

// TestChain: handlers at one address run in the order of registration; one that changes the
// path ends the chain, if the probe is not optimised.
func TestChain(t *testing.T) {
	prog, c := attach(t, "conform")
	var mu sync.Mutex
	var order []string
	note := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, s)
	}
	var leave atomic.Bool
	probe := func(name string, leaves bool) *kprobes.Kprobe {
		return &kprobes.Kprobe{
			SymbolName: "target",
			PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
				note(name)
				if !leaves || !leave.Load() {
					return 0
				}
				r.SetReturnValue(77)
				if err := r.Return(); err != nil {
					note(err.Error())
				}
				return 1
			},
		}
	}
	ks := []*kprobes.Kprobe{probe("a", false), probe("b", true), probe("c", false)}
	for _, k := range ks {
		must(t, c.RegisterKprobe(k))
	}
	run := func(what string, wantValue uint64, want string) {
		t.Helper()
		mu.Lock()
		order = nil
		mu.Unlock()
		got := value(prog, "target", 30)
		mu.Lock()
		defer mu.Unlock()
		if s := strings.Join(order, ""); s != want || got != wantValue {
			t.Errorf("%s: the handlers ran as %q and the function returned %d, want %q and %d", what, s, got, want, wantValue)
		}
	}
	run("nobody leaves", 10, "abc")
	leave.Store(true)
	run("optimised", 10, "abc")
	must(t, c.SetOptimization(false))
	run("by breakpoint", 77, "ab")
	must(t, c.SetOptimization(true))
	post := &kprobes.Kprobe{SymbolName: "target", PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) { note("p") }}
	must(t, c.RegisterKprobe(post))
	run("with a post handler", 77, "ab")
	leave.Store(false)
	run("nobody leaves, with a post handler", 10, "abcp")
	if s := listing(t, c); strings.Contains(s, "[OPTIMIZED]") || strings.Count(s, " jump: ") != 4 {
		t.Errorf("a post handler does not keep the probes from being optimised, or they are no jumps:\n%s", s)
	}
	c.UnregisterKprobes(append(ks[1:2:2], post))
	run("two are gone", 10, "ac")
	must(t, c.DisableKprobe(ks[0]))
	run("one is disabled", 10, "c")
	must(t, c.EnableKprobe(ks[0]))
	run("and enabled", 10, "ac")
}

// TestRegistersAreLoadedBack: what a handler changes is what the function works with.
func TestRegistersAreLoadedBack(t *testing.T) {
	prog, c := attach(t, "conform")
	k := &kprobes.Kprobe{SymbolName: "target", PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int { r.DI = 300; return 0 }}
	r := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "target2"}, Handler: func(_ *kprobes.KretprobeInstance, r *kprobes.Regs) int {
		r.SetReturnValue(r.ReturnValue() + 1000)
		return 1
	}}
	must(t, c.RegisterKprobe(k))
	must(t, c.RegisterKretprobe(r))
	if v := value(prog, "target", 3); v != 100 {
		t.Errorf("target(3) with its argument made 300: %d", v)
	}
	if v := value(prog, "target2", 3); v != 1002 {
		t.Errorf("target2(3) with 1000 added: %d", v)
	}
}

// TestInstances: each call in progress has its own data, an entry handler lets calls go
// without counting them as missed, and calls beyond MaxActive are counted.
func TestInstances(t *testing.T) {
	prog, c := attach(t, "conform")
	var wrong, back atomic.Int64
	ri := func(data int, maxActive int) *kprobes.Kretprobe {
		return &kprobes.Kretprobe{
			Kp: kprobes.Kprobe{SymbolName: "deep"}, MaxActive: maxActive, DataSize: data,
			EntryHandler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
				if len(ri.Data) != data || ri.RetAddr == 0 || ri.Task.ID == 0 {
					wrong.Add(1)
					return 0
				}
				ri.Data[0] = byte(r.DI)
				return int(r.DI % 2) // odd ones are let go
			},
			Handler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
				if ri.Data[0] != byte(r.AX) || ri.Tail {
					wrong.Add(1)
				}
				back.Add(1)
				return 0
			},
		}
	}
	for _, x := range []struct {
		data, maxActive int
		returns, missed uint64
	}{{1, 0, 51, 0}, {4096, 64, 51, 0}, {7, 10, 10, 82}} {
		rp := ri(x.data, x.maxActive)
		must(t, c.RegisterKretprobe(rp))
		if v := value(prog, "deep", 100); v != 100 {
			t.Errorf("deep(100) = %d", v)
		}
		st := rp.State()
		c.UnregisterKretprobe(rp)
		if st.Hits != x.returns || uint64(back.Swap(0)) != x.returns || st.Misses != (kprobes.Misses{Pool: x.missed}) || rp.NMissed() != x.missed {
			t.Errorf("MaxActive %d: %+v, want %d returns and %d missed", x.maxActive, st, x.returns, x.missed)
		}
	}
	if wrong.Load() > 0 {
		t.Errorf("%d handlers saw another call's instance", wrong.Load())
	}
}

// TestUnwound: calls that longjmp leaves are told, and the sums are the program's.
func TestUnwound(t *testing.T) {
	prog, c := attach(t, "jmp")
	var in, out atomic.Uint64
	rp := &kprobes.Kretprobe{
		Kp:           kprobes.Kprobe{SymbolName: "descend"},
		EntryHandler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { in.Add(1); return 0 },
		Handler:      func(*kprobes.KretprobeInstance, *kprobes.Regs) int { out.Add(1); return 0 },
	}
	must(t, c.RegisterKretprobe(rp))
	n := prog.Counts("go 40")
	if rp.Unwound() == 0 || rp.NMissed() != 0 || in.Load() != n["descend"] || out.Load() != n["returned"] || rp.State().Hits != n["returned"] {
		t.Errorf("entries %d, returns %d, %+v; the program counts %v", in.Load(), out.Load(), rp.State(), n)
	}
}

// TestWithoutHandlers: a probe without handlers counts its hits.
func TestWithoutHandlers(t *testing.T) {
	prog, c := attach(t, "conform")
	k := &kprobes.Kprobe{SymbolName: "target"}
	must(t, c.RegisterKprobe(k))
	for range 7 {
		value(prog, "target", 1)
	}
	if s := k.State(); s.Hits != 7 || !s.Registered || !s.Optimized {
		t.Errorf("after 7 calls: %+v", s)
	}
	if len(c.Events()) != 0 {
		t.Error("a probe is among the events")
	}
}

// TestHandlerFaults: a fault handler's 1 lets the probe live; else it is disabled with the
// reason, and can be enabled again.
func TestHandlerFaults(t *testing.T) {
	prog, c := attach(t, "conform")
	var traps, runs atomic.Int64
	var deal atomic.Int64
	deal.Store(1)
	k := &kprobes.Kprobe{
		SymbolName: "target",
		PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { runs.Add(1); panic("no tea") },
		FaultHandler: func(_ *kprobes.Kprobe, _ *kprobes.Regs, trapnr int) int {
			traps.Add(int64(trapnr))
			return int(deal.Load())
		},
	}
	must(t, c.RegisterKprobe(k))
	call := func() {
		t.Helper()
		if v := value(prog, "target", 9); v != 3 {
			t.Errorf("target(9) = %d", v)
		}
	}
	call()
	call()
	if traps.Load() != -2 || runs.Load() != 2 || k.Fault() != nil {
		t.Errorf("%d runs, the fault handler's traps add up to %d, %v", runs.Load(), traps.Load(), k.Fault())
	}
	deal.Store(0)
	call()
	call()
	disabled := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); !k.State().Disabled; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the probe was not disabled within a minute")
			}
		}
	}
	disabled()
	call()
	if err := k.Fault(); runs.Load() != 3 || !errors.Is(err, unix.EFAULT) || !strings.Contains(err.Error(), "no tea") {
		t.Errorf("%d runs, fault %v", runs.Load(), err)
	}
	if l := listing(t, c); !strings.Contains(l, "[DISABLED] the probe was disabled") || !strings.Contains(l, "no tea") {
		t.Errorf("the listing does not tell: %s", l)
	}
	must(t, c.EnableKprobe(k))
	call()
	if runs.Load() != 4 {
		t.Errorf("%d runs after it was enabled again, want 4", runs.Load())
	}
	disabled()
}

// TestUnregisterWaits: no handler runs any more when the probe has been unregistered.
func TestUnregisterWaits(t *testing.T) {
	prog, c := attach(t, "conform")
	in, out := make(chan bool), make(chan bool)
	var done atomic.Bool
	k := &kprobes.Kprobe{SymbolName: "target", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		in <- true
		<-out
		done.Store(true)
		return 0
	}}
	must(t, c.RegisterKprobe(k))
	prog.Send("target 3")
	<-in
	gone := make(chan bool)
	go func() {
		c.UnregisterKprobe(k)
		gone <- done.Load()
	}()
	close(out)
	if !<-gone {
		t.Error("unregistered while the handler was running")
	}
	prog.Line()
}

// TestManyRegistrations: numbers in the ring serve again, however many probes come and go,
// and counts begin at 0 each time.
func TestManyRegistrations(t *testing.T) {
	prog, c := attach(t, "conform")
	var n atomic.Int64
	rounds := c.Target().CodegenEnv().Layout.Events/4 + 40
	for i := range rounds {
		ks := []*kprobes.Kprobe{{SymbolName: "target", PreHandler: counting(&n)}, {SymbolName: "target"}, {SymbolName: "target2"}}
		rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "target"}}
		must(t, c.RegisterKprobes(ks))
		must(t, c.RegisterKretprobe(rp))
		if i > rounds-50 {
			value(prog, "target", 4)
			if a, b, r := ks[0].State(), ks[1].State(), rp.State(); a.Hits != 1 || b.Hits != 1 || r.Hits != 1 {
				t.Fatalf("round %d: one call has counted %+v, %+v, %+v", i, a, b, r)
			}
		}
		c.UnregisterKretprobe(rp)
		c.UnregisterKprobes(ks)
	}
}

// TestBesideEvents: handlers and events at one function count the same calls, and closing
// the registry ends all of them.
func TestBesideEvents(t *testing.T) {
	prog, c := attach(t, "conform")
	d, err := event.Parse("p target v=%di")
	must(t, err)
	evs, err := c.Add([]*event.Def{d}, &kprobes.AddOptions{Count: true})
	must(t, err)
	var n atomic.Int64
	k := &kprobes.Kprobe{SymbolName: "target", PreHandler: counting(&n)}
	must(t, c.RegisterKprobe(k))
	for range 5 {
		value(prog, "target", 1)
	}
	if l := listing(t, c); strings.Count(l, "  k  target+0x0    [OPTIMIZED]\n") != 2 {
		t.Errorf("the listing is\n%s", l)
	}
	must(t, c.SetEnabled(false))
	value(prog, "target", 1)
	must(t, c.SetEnabled(true))
	if hits := c.Counts(evs[0]).Hits; hits != 5 || n.Load() != 5 {
		t.Errorf("the event has %d hits, the handler %d, want 5", hits, n.Load())
	}
	must(t, c.Close(nil))
	if s := k.State(); s.Registered || s.Hits != 5 {
		t.Errorf("after closing: %+v", s)
	}
	c.UnregisterKprobe(k)
	if value(prog, "target", 6) != 2 || n.Load() != 5 || k.Addr != 0 {
		t.Error("a probe outlives its registry")
	}
}

// TestHammer: many goroutines register, enable, disable and unregister probes of all kinds
// on functions that run, and the counts add up.
func TestHammer(t *testing.T) {
	prog, c := attach(t, "conform")
	var all atomic.Int64
	always := &kprobes.Kprobe{SymbolName: "target", PreHandler: counting(&all)}
	must(t, c.RegisterKprobe(always))
	end := calling(t, prog)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 12 {
				var n atomic.Int64
				k := &kprobes.Kprobe{SymbolName: "target", PreHandler: counting(&n)}
				if g%2 == 1 {
					k.PostHandler = func(*kprobes.Kprobe, *kprobes.Regs, uint64) {}
				}
				r := &kprobes.Kretprobe{
					Kp: kprobes.Kprobe{SymbolName: "target"}, DataSize: 8 * (g % 3), MaxActive: g % 4,
					Handler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 },
				}
				for _, err := range []error{c.RegisterKprobe(k), c.RegisterKretprobe(r), c.DisableKprobe(k), c.EnableKprobe(k), c.DisableKretprobe(r)} {
					if err != nil {
						t.Errorf("goroutine %d, round %d: %v", g, i, err)
					}
				}
				if i%2 == 0 {
					c.UnregisterKretprobe(r)
				}
				c.UnregisterKprobe(k)
				c.UnregisterKretprobe(r)
				if s := k.State(); s.Hits != uint64(n.Load()) || s.Registered {
					t.Errorf("goroutine %d: %d runs, %+v", g, n.Load(), s)
				}
			}
		})
	}
	wg.Wait()
	called := end()
	if got := always.State(); got.Hits+got.Misses.Total() != called || got.Hits != uint64(all.Load()) {
		t.Errorf("%d calls, %d runs of the handler, %+v", called, all.Load(), got)
	}
}

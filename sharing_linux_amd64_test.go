package kprobes_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"kprobes.dev/kprobes/internal/hit"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/target/process"
)

// home is a target that the tests of sharing are put to.
type home struct {
	core *kprobes.Core
	name func(fn string) string
	call func(v uint64) uint64 // target, which returns v/3

	places map[string][2]uint64 // where functions are: address, size
}

func (h *home) at() kprobes.Kprobe { return kprobes.Kprobe{SymbolName: h.name("target")} }

// code is what stands in the target's memory where a function is.
func (h *home) code(t *testing.T, fn string) []byte {
	t.Helper()
	if h.places == nil {
		h.places = map[string][2]uint64{}
	}
	at, ok := h.places[fn]
	if !ok {
		k := &kprobes.Kprobe{SymbolName: h.name(fn), Flags: kprobes.FlagDisabled}
		must(t, h.core.RegisterKprobe(k))
		s, ok := h.core.Symbol(k.Addr)
		if !ok {
			t.Fatalf("no function at 0x%x", k.Addr)
		}
		at = [2]uint64{k.Addr - s.Off, s.Size}
		h.places[fn] = at
		h.core.UnregisterKprobe(k)
	}
	b := make([]byte, at[1])
	must(t, h.core.Target().Read(at[0], b))
	return b
}

func (h *home) add(t *testing.T, o *kprobes.AddOptions, texts ...string) []*kprobes.Event {
	t.Helper()
	return addEvents(t, h.core, o, texts...)
}

// addEvents adds events by their definitions.
func addEvents(t *testing.T, c *kprobes.Core, o *kprobes.AddOptions, texts ...string) []*kprobes.Event {
	t.Helper()
	var defs []*event.Def
	for _, text := range texts {
		d, err := event.Parse(text)
		must(t, err)
		defs = append(defs, d)
	}
	var evs []*kprobes.Event
	eventually(t, "a stop of all threads", func() bool { // on a busy machine one may not get to run in time
		var err error
		evs, err = c.Add(defs, o)
		if errors.Is(err, unix.ETIMEDOUT) {
			return false
		}
		must(t, err)
		return true
	})
	return evs
}

func conformHome(t *testing.T) *home {
	prog, c := attach(t, "conform")
	return &home{core: c, name: func(fn string) string { return fn }, call: func(v uint64) uint64 { return value(prog, "target", v) }}
}

// ranOrder notes which handlers ran, in their order.
type ranOrder struct {
	mu  sync.Mutex
	ran []byte
}

func (o *ranOrder) note(name byte) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ran = append(o.ran, name)
	return 0
}

func (o *ranOrder) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := string(o.ran)
	o.ran = nil
	return s
}

func (o *ranOrder) kprobe(h *home, pre, post byte) *kprobes.Kprobe {
	k := h.at()
	if pre != 0 {
		k.PreHandler = func(*kprobes.Kprobe, *kprobes.Regs) int { return o.note(pre) }
	}
	if post != 0 {
		k.PostHandler = func(*kprobes.Kprobe, *kprobes.Regs, uint64) { o.note(post) }
	}
	return &k
}

func (o *ranOrder) kretprobe(h *home, entry, ret byte) *kprobes.Kretprobe {
	return &kprobes.Kretprobe{
		Kp:           h.at(),
		EntryHandler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return o.note(entry) },
		Handler:      func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return o.note(ret) },
	}
}

// testOrder: probes of all kinds at one function, with events that count and record: handlers
// run in the order of registration, those of returns in the opposite one, post handlers all.
func testOrder(t *testing.T, h *home) {
	o := &ranOrder{}
	sym := h.name("target")
	counts := h.add(t, &kprobes.AddOptions{Count: true}, "p:c1 "+sym, "r:c2 "+sym)
	a, b, c := o.kprobe(h, 'a', 'A'), o.kretprobe(h, 'b', 'B'), o.kprobe(h, 'c', 0)
	must(t, h.core.RegisterKprobe(a))
	must(t, h.core.RegisterKretprobe(b))
	records := h.add(t, nil, "p:r1 "+sym+" v=%di", "r:r2 "+sym+" $retval")
	must(t, h.core.RegisterKprobe(c))
	d, e := o.kretprobe(h, 'd', 'D'), o.kprobe(h, 'e', 'E')
	must(t, h.core.RegisterKretprobe(d))
	must(t, h.core.RegisterKprobe(e))
	calls := uint64(0)
	run := func(what, want string) {
		t.Helper()
		calls++
		if v := h.call(30); v != 10 {
			t.Errorf("%s: target(30) = %d", what, v)
		}
		if got := o.take(); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	run("all", "abcdeAEDB")
	must(t, h.core.DisableKprobe(a))
	must(t, h.core.DisableKretprobe(d))
	run("two disabled", "bceEB")
	must(t, h.core.EnableKretprobe(d))
	must(t, h.core.EnableKprobe(a))
	run("enabled again", "abcdeAEDB")
	h.core.UnregisterKprobe(a)
	a.Addr = 0
	must(t, h.core.RegisterKprobe(a)) // is the last one now
	run("the first one anew", "bcdeaEADB")
	for _, ev := range append(counts, records...) {
		eventually(t, ev.Name+" has all calls", func() bool {
			h.core.Poll(func(*hit.Hit) {})
			return h.core.Counts(ev).Hits == calls
		})
	}
	h.core.UnregisterKprobes([]*kprobes.Kprobe{a, c, e})
	h.core.UnregisterKretprobes([]*kprobes.Kretprobe{b, d})
	must(t, h.core.Remove(append(counts, records...)))
}

// testThousand: a thousand probes at one address, of all sorts, each with all hits.
func testThousand(t *testing.T, h *home) {
	clean := h.code(t, "target")
	var runs [1000]atomic.Int64
	ks := make([]*kprobes.Kprobe, len(runs))
	for i := range ks {
		k := h.at()
		switch i % 4 {
		case 1:
			k.PostHandler = func(*kprobes.Kprobe, *kprobes.Regs, uint64) { runs[i].Add(1) }
		case 2, 3:
			k.PreHandler = counting(&runs[i])
		}
		ks[i] = &k
	}
	must(t, h.core.RegisterKprobes(ks))
	var want [1000]uint64
	call := func(disabled func(i int) bool) {
		t.Helper()
		if v := h.call(99); v != 33 {
			t.Errorf("target(99) = %d", v)
		}
		wrong := 0
		for i, k := range ks {
			if !disabled(i) {
				want[i]++
			}
			if s := k.State(); s.Hits != want[i] || s.Misses.Total() != 0 || i%4 != 0 && uint64(runs[i].Load()) != want[i] {
				if wrong++; wrong < 5 {
					t.Errorf("probe %d: %d runs, %+v, want %d", i, runs[i].Load(), s, want[i])
				}
			}
		}
	}
	none := func(int) bool { return false }
	call(none)
	for i := 0; i < len(ks); i += 250 {
		must(t, h.core.DisableKprobe(ks[i+3]))
	}
	call(func(i int) bool { return i%250 == 3 })
	for i := 0; i < len(ks); i += 250 {
		must(t, h.core.EnableKprobe(ks[i+3]))
	}
	call(none)
	h.core.UnregisterKprobes(ks[:len(ks)-1])
	call(func(i int) bool { return i < len(ks)-1 })
	h.core.UnregisterKprobes(ks)
	if got := h.code(t, "target"); !bytes.Equal(got, clean) {
		t.Errorf("the code is % x, was % x", got, clean)
	}
}

// testGlobal: with everything switched off the code is the file's, whatever is registered or
// unregistered meanwhile; switched on, disabled probes stay disabled.
func testGlobal(t *testing.T, h *home) {
	clean := h.code(t, "target")
	var n [4]atomic.Int64
	probe := func(i int, flags kprobes.Flags) *kprobes.Kprobe {
		k := h.at()
		k.PreHandler, k.Flags = counting(&n[i]), flags
		return &k
	}
	before, disabled, during, gone := probe(0, 0), probe(1, kprobes.FlagDisabled), probe(2, 0), probe(3, 0)
	ret := &kprobes.Kretprobe{Kp: h.at()}
	must(t, h.core.RegisterKprobes([]*kprobes.Kprobe{before, disabled, gone}))
	h.call(3)
	if !h.core.Enabled() {
		t.Error("not enabled from the start")
	}
	off := func(what string) {
		t.Helper()
		h.call(3)
		if got := h.code(t, "target"); !bytes.Equal(got, clean) || h.core.Enabled() {
			t.Errorf("%s: switched off, the code is % x, want % x", what, got, clean)
		}
	}
	must(t, h.core.SetEnabled(false))
	must(t, h.core.SetEnabled(false))
	off("at first")
	must(t, h.core.RegisterKprobe(during))
	must(t, h.core.RegisterKretprobe(ret))
	evs := h.add(t, &kprobes.AddOptions{Count: true}, "p "+h.name("target"))
	off("after registrations")
	if s := during.State(); s.Tactic != "" || s.Optimized || !s.Registered || s.Disabled {
		t.Errorf("registered while all is off: %+v", s)
	}
	h.core.UnregisterKprobe(gone)
	must(t, h.core.EnableKprobe(disabled))
	must(t, h.core.DisableKprobe(disabled))
	off("after changes")
	must(t, h.core.SetEnabled(true))
	h.call(3)
	if c := h.core.Counts(evs[0]).Hits; n[0].Load() != 2 || n[1].Load() != 0 || n[2].Load() != 1 || n[3].Load() != 1 || ret.State().Hits != 1 || c != 1 {
		t.Errorf("runs %d %d %d %d, %d returns, event %d; want 2 0 1 1, 1, 1", n[0].Load(), n[1].Load(), n[2].Load(), n[3].Load(), ret.State().Hits, c)
	}
	must(t, h.core.Remove(evs))
	h.core.UnregisterKretprobe(ret)
	h.core.UnregisterKprobes([]*kprobes.Kprobe{before, disabled, during})
	if got := h.code(t, "target"); !bytes.Equal(got, clean) {
		t.Errorf("in the end the code is % x, was % x", got, clean)
	}
}

// testRollBack: a batch with one bad probe, whichever it is, registers nothing and changes
// nothing; unregistering a batch clears the addresses of the bad ones and takes out the others.
func testRollBack(t *testing.T, h *home) {
	clean := map[string][]byte{}
	fns := []string{"target", "target2", "recursed", "inner", "outer"}
	for _, fn := range fns {
		clean[fn] = h.code(t, fn)
	}
	var n atomic.Int64
	standing := h.at()
	standing.PreHandler = counting(&n)
	for _, x := range []struct {
		what string
		bad  func() *kprobes.Kprobe
	}{
		{"nil", func() *kprobes.Kprobe { return nil }},
		{"no code", func() *kprobes.Kprobe { return &kprobes.Kprobe{Addr: 8} }},
		{"inside", func() *kprobes.Kprobe { return &kprobes.Kprobe{SymbolName: h.name("target2"), Offset: 1} }},
		{"registered", func() *kprobes.Kprobe { return &standing }},
	} {
		what, bad := x.what, x.bad
		if what == "registered" {
			must(t, h.core.RegisterKprobe(&standing))
			for fn := range clean {
				clean[fn] = h.code(t, fn)
			}
		}
		for at := range len(fns) + 1 {
			var ks []*kprobes.Kprobe
			for _, fn := range fns {
				ks = append(ks, &kprobes.Kprobe{SymbolName: h.name(fn), PreHandler: counting(&n)})
			}
			ks = slices.Insert(ks, at, bad())
			list := listing(t, h.core)
			err := h.core.RegisterKprobes(ks)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("probe %d of %d", at+1, len(ks))) {
				t.Fatalf("%s at %d: %v", what, at, err)
			}
			for i, k := range ks {
				if i != at && (k.Addr != 0 || k.State() != (kprobes.State{})) {
					t.Errorf("%s at %d: probe %d is %+v", what, at, i, k.State())
				}
			}
			if got := listing(t, h.core); got != list {
				t.Errorf("%s at %d: the listing was\n%sand is\n%s", what, at, list, got)
			}
			for fn, want := range clean {
				if got := h.code(t, fn); !bytes.Equal(got, want) {
					t.Errorf("%s at %d: the code of %s is % x, was % x", what, at, fn, got, want)
				}
			}
		}
		h.core.UnregisterKprobe(&standing)
		standing.Addr = 0
	}
	one, never, two := h.at(), kprobes.Kprobe{Addr: 0x1234}, h.at()
	must(t, h.core.RegisterKprobes([]*kprobes.Kprobe{&one, &two}))
	h.core.UnregisterKprobes([]*kprobes.Kprobe{&one, nil, &never, &two, &one})
	if never.Addr != 0 || one.State().Registered || two.State().Registered || listing(t, h.core) != "" {
		t.Errorf("after a batch with bad ones among it: 0x%x, %+v, %+v\n%s", never.Addr, one.State(), two.State(), listing(t, h.core))
	}
}

// testEveryInstruction: probes at all instructions of a function, each in the others' regions:
// each has all hits, whichever of them is switched off and on meanwhile.
func testEveryInstruction(t *testing.T, c *kprobes.Core, sym string, run func() uint64) {
	var ks []*kprobes.Kprobe
	for off := uint64(0); ; off++ {
		k := &kprobes.Kprobe{SymbolName: sym, Offset: off}
		err := c.RegisterKprobe(k)
		if errors.Is(err, unix.EILSEQ) {
			continue
		}
		if err != nil {
			t.Logf("%s+0x%x: %v", sym, off, err)
			break
		}
		ks = append(ks, k)
	}
	if len(ks) < 3 {
		t.Fatalf("%d instructions", len(ks))
	}
	stop := make(chan bool)
	var wg sync.WaitGroup
	toggled := ks[len(ks)/2]
	var toggles, blocked atomic.Int64
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			off, on := c.DisableKprobe(toggled), c.EnableKprobe(toggled)
			if err := errors.Join(off, on); err == nil {
				toggles.Add(1)
			} else if !errors.Is(err, target.ErrBlocked) && !errors.Is(err, unix.EBUSY) {
				t.Error(err)
				return
			} else {
				blocked.Add(1)
			}
		}
	})
	var calls uint64
	for calls == 0 || toggles.Load() < 40 && !t.Failed() {
		calls += run()
	}
	close(stop)
	wg.Wait()
	t.Logf("%d probes, %d calls, one toggled %d times, %d times not", len(ks), calls, toggles.Load(), blocked.Load())
	for i, k := range ks {
		s := k.State()
		if k == toggled && s.Hits > calls || k != toggled && s.Hits != calls || s.Misses.Total() != 0 {
			t.Errorf("instruction %d at +0x%x: %+v, want %d hits", i, k.Offset, s, calls)
		}
	}
	c.UnregisterKprobes(ks)
}

func TestSharing(t *testing.T) {
	t.Run("order", func(t *testing.T) { testOrder(t, conformHome(t)) })
	t.Run("thousand", func(t *testing.T) { testThousand(t, conformHome(t)) })
	t.Run("global", func(t *testing.T) { testGlobal(t, conformHome(t)) })
	t.Run("roll back", func(t *testing.T) { testRollBack(t, conformHome(t)) })
	t.Run("every instruction", func(t *testing.T) {
		prog, c := attach(t, "work", "4")
		was := prog.Counts("count")["f_six"]
		testEveryInstruction(t, c, "f_six", func() uint64 {
			n := prog.Counts("go 3000")
			if n["bad"] != 0 {
				t.Errorf("%d wrong results", n["bad"])
			}
			d := n["f_six"] - was
			was = n["f_six"]
			return d
		})
	})
}

// stopCount is a process of which changes are counted: each is one stop.
type stopCount struct {
	*process.Target
	commits int
}

func (c *stopCount) Commit(ch *target.Change) error {
	c.commits++
	return c.Target.Commit(ch)
}

// TestOneStop: a batch is registered in one change of the target and unregistered in one, and
// a batch that is refused makes none.
func TestOneStop(t *testing.T) {
	_, first := attach(t, "conform")
	tg, ok := first.Target().(*process.Target)
	if !ok {
		t.Fatal("not a process")
	}
	of := &stopCount{Target: tg}
	c, err := kprobes.Open(of, nil)
	must(t, err)
	var n atomic.Int64
	var ks []*kprobes.Kprobe
	var rs []*kprobes.Kretprobe
	for _, fn := range []string{"target", "target2", "recursed", "inner", "outer", "deep"} {
		ks = append(ks, &kprobes.Kprobe{SymbolName: fn, PreHandler: counting(&n)})
		rs = append(rs, &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: fn}})
	}
	step := func(what string, want int) {
		t.Helper()
		if of.commits != want {
			t.Errorf("%s: %d changes, want %d", what, of.commits, want)
		}
		of.commits = 0
	}
	if err := c.RegisterKprobes(append(slices.Clone(ks), &kprobes.Kprobe{SymbolName: "nowhere"})); !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
	step("refused", 0)
	must(t, c.RegisterKprobe(&kprobes.Kprobe{SymbolName: "sum6"}))
	of.commits = 0 // the engine's own probes came with the first
	must(t, c.RegisterKprobes(ks))
	step("kprobes", 1)
	must(t, c.RegisterKretprobes(rs))
	step("kretprobes", 1)
	must(t, c.SetEnabled(false))
	must(t, c.SetEnabled(true))
	step("off and on", 2)
	c.UnregisterKretprobes(rs)
	step("unregistered kretprobes", 1)
	c.UnregisterKprobes(ks)
	step("unregistered kprobes", 1)
	must(t, c.Close(nil))
}

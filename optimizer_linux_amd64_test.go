package kprobes_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/target/process"
)

// What stands in the first byte of a function.
const (
	byJump = 0xe9
	byTrap = 0xcc
)

// bytesAt reads what stands at a function's start in the target's memory.
func bytesAt(t *testing.T, c *kprobes.Core, addr uint64) []byte {
	t.Helper()
	b := make([]byte, 5)
	must(t, c.Target().Read(addr, b))
	return b
}

// stands checks the first bytes of a probe: a jump, a breakpoint with the other bytes as they
// were, or all as they were.
func stands(t *testing.T, c *kprobes.Core, what string, addr uint64, first byte, orig []byte) {
	t.Helper()
	have, want := bytesAt(t, c, addr), bytes.Clone(orig)
	switch first {
	case byJump:
		want = append([]byte{byJump}, have[1:]...)
	case byTrap:
		want[0] = byTrap
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s: % x stands at 0x%x, want % x", what, have, addr, want)
	}
}

// lineOf is the line of a function in the listing, from its name on.
func lineOf(t *testing.T, c *kprobes.Core, fn string) string {
	t.Helper()
	for l := range strings.Lines(listing(t, c)) {
		if _, s, ok := strings.Cut(l, "  "+fn+"+0x0    "); ok {
			return strings.TrimSuffix(s, "\n")
		}
	}
	t.Fatalf("the listing has no line of %s:\n%s", fn, listing(t, c))
	return ""
}

// optimised waits until nothing is queued any more.
func optimised(t *testing.T, c *kprobes.Core) {
	t.Helper()
	for end := time.Now().Add(patience); c.Stats().Queued > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v: %+v\n%s", patience, c.Stats(), listing(t, c))
		}
	}
}

// standers are the functions of program stand.
var standers = []string{"first", "stand", "second", "third"}

// counters are one Kprobe for each function, without handlers.
func counters(fns ...string) []*kprobes.Kprobe {
	ks := make([]*kprobes.Kprobe, len(fns))
	for i, fn := range fns {
		ks[i] = &kprobes.Kprobe{SymbolName: fn}
	}
	return ks
}

// originals finds functions and reads what they begin with.
func originals(t *testing.T, c *kprobes.Core, fns ...string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	ks := counters(fns...)
	for i, k := range ks {
		k.Flags = kprobes.FlagDisabled
		must(t, c.RegisterKprobe(k))
		out[fns[i]] = bytesAt(t, c, k.Addr)
	}
	c.UnregisterKprobes(ks)
	return out
}

// counted checks that probes have counted what the program has since before.
func counted(t *testing.T, what string, ks []*kprobes.Kprobe, before, now map[string]uint64) {
	t.Helper()
	for _, k := range ks {
		if got, want := k.State().Hits, now[k.SymbolName]-before[k.SymbolName]; got != want {
			t.Errorf("%s: %s has %d hits, the program counts %d", what, k.SymbolName, got, want)
		}
	}
	if now["bad"] > 0 {
		t.Errorf("%s: the program computes wrong: %v", what, now)
	}
}

// TestQueue: all are breakpoints, since the knob asks for them, and a thread stands inside the first
// bytes of one. When the knob is on again the others get their jumps at once; this one keeps its
// breakpoint, which takes none of the bytes that the thread goes on with. It is listed with the
// reason, hits take the detour, and once the thread has left a jump stands there.
func TestQueue(t *testing.T) {
	prog, c := attach(t, "stand")
	orig := originals(t, c, standers...)
	prog.Counts("in")
	ks := counters(standers...)
	before := prog.Counts("count")
	must(t, c.SetOptimization(false))
	must(t, c.RegisterKprobes(ks))
	for _, k := range ks {
		stands(t, c, k.SymbolName, k.Addr, byTrap, orig[k.SymbolName])
	}
	if o := c.Stats(); o.Queued != 0 {
		t.Errorf("breakpoints are asked for, and something waits: %+v", o)
	}
	must(t, c.SetOptimization(true))
	for _, k := range ks {
		first, line := byte(byJump), "[OPTIMIZED]"
		if k.SymbolName == "stand" {
			first, line = byTrap, "boost: queued: thread "
		}
		stands(t, c, k.SymbolName, k.Addr, first, orig[k.SymbolName])
		if l := lineOf(t, c, k.SymbolName); !strings.HasPrefix(l, line) {
			t.Errorf("%s is listed as %q, want %q", k.SymbolName, l, line)
		}
	}
	s := ks[1].State()
	if s.Tactic != "boost" || s.Optimized || s.Why == nil || !strings.Contains(s.Why.Error(), "thread") {
		t.Errorf("state of what waits: %+v", s)
	}
	if o := c.Stats(); o.Probes != 4 || o.Queued != 1 || o.Unarmed != 0 || o.Postponed != 1 || len(o.Why) != 1 || !strings.HasPrefix(o.Why[0], "stand: ") {
		t.Errorf("the optimiser: %+v", o)
	}
	counted(t, "queued", ks, before, prog.Counts("go 1000"))
	if o := c.Stats(); o.Queued != 1 {
		t.Errorf("the thread still stands there, and the optimiser tells %+v", o)
	}
	now := prog.Counts("out")
	before["stand"]++ // the thread went in before the probe
	optimised(t, c)
	stands(t, c, "the thread has left", ks[1].Addr, byJump, nil)
	if l := lineOf(t, c, "stand"); l != "[OPTIMIZED]" {
		t.Errorf("the thread has left: %q", l)
	}
	counted(t, "left", ks, before, now)
	counted(t, "optimised", ks, before, prog.Counts("go 1000"))
	if o := c.Stats(); o.Queued != 0 || o.Postponed != 1 {
		t.Errorf("in the end: %+v", o)
	}
	c.UnregisterKprobes(ks)
	for _, fn := range standers {
		if b := bytesAt(t, c, addrOf(t, c, fn)); !bytes.Equal(b, orig[fn]) {
			t.Errorf("%s: % x is left, want % x", fn, b, orig[fn])
		}
	}
}

// TestBehindThePatch: a thread stands at a ret that belongs to a region, but not to the five
// bytes that its jump takes. With a jump it would go on in the program's own code, and the probe at
// the ret would miss it.
func TestBehindThePatch(t *testing.T) {
	prog, c := attach(t, "stand")
	prog.Counts("behind")
	before := prog.Counts("count")
	k := &kprobes.Kprobe{SymbolName: "behind", Offset: 5}
	must(t, c.SetOptimization(false))
	must(t, c.RegisterKprobe(k))
	must(t, c.SetOptimization(true))
	if b := bytesAt(t, c, k.Addr); b[0] != byTrap {
		t.Errorf("% x stands at the ret that a thread stands at, want a breakpoint", b)
	}
	if o := c.Stats(); o.Queued != 1 {
		t.Errorf("the optimiser: %+v", o)
	}
	now := prog.Counts("out")
	optimised(t, c)
	counted(t, "left", []*kprobes.Kprobe{k}, before, now)
	stands(t, c, "left", k.Addr-5, byJump, nil)
	counted(t, "optimised", []*kprobes.Kprobe{k}, before, prog.Counts("go 1000"))
}

// addrOf finds a function's entry.
func addrOf(t *testing.T, c *kprobes.Core, fn string) uint64 {
	t.Helper()
	k := &kprobes.Kprobe{SymbolName: fn, Flags: kprobes.FlagDisabled}
	must(t, c.RegisterKprobe(k))
	defer c.UnregisterKprobe(k)
	return k.Addr
}

// TestPostponed: a function that a thread stands in is not armed, since no breakpoint stands that
// nobody has asked for: the registration succeeds, the others are armed, and it follows when the
// thread has left. Whoever unregisters it meanwhile takes it off the queue. Where the program blocks
// SIGTRAP the knob can not ask for breakpoints either.
func TestPostponed(t *testing.T) {
	for _, how := range []string{"waits", "unregistered", "disabled", "all off"} {
		t.Run(how, func(t *testing.T) { postponed(t, how) })
	}
	for _, how := range []string{"waits", "knob"} {
		t.Run("masked, "+how, func(t *testing.T) { postponed(t, how, "mask") })
	}
}

func postponed(t *testing.T, how string, args ...string) {
	prog, c := attach(t, "stand", args...)
	orig := originals(t, c, standers...)
	prog.Counts("in")
	ks := counters(standers...)
	stand := ks[1]
	must(t, c.RegisterKprobes(ks))
	stands(t, c, "postponed", stand.Addr, 0, orig["stand"])
	if l := lineOf(t, c, "stand"); !strings.HasPrefix(l, "postponed: thread ") || strings.Contains(l, "\n") {
		t.Errorf("it is listed as %q", l)
	}
	if s := stand.State(); s.Tactic != "" || s.Optimized || !s.Registered || s.Why == nil {
		t.Errorf("its state is %+v", s)
	}
	if o := c.Stats(); o.Probes != 4 || o.Queued != 1 || o.Unarmed != 1 {
		t.Errorf("the optimiser: %+v", o)
	}
	before := prog.Counts("count")
	now := prog.Counts("go 100")
	counted(t, "meanwhile", []*kprobes.Kprobe{ks[0], ks[2], ks[3]}, before, now)
	if h := stand.State().Hits; h != 0 {
		t.Errorf("%d hits of what is not armed", h)
	}
	switch how {
	case "unregistered":
		c.UnregisterKprobe(stand)
	case "disabled":
		must(t, c.DisableKprobe(stand))
	case "all off":
		must(t, c.SetEnabled(false))
	case "knob":
		if err := c.SetOptimization(false); err == nil {
			t.Error("probes are to be breakpoints where none may stand, and no error")
		}
	}
	queued := 0
	if how == "waits" || how == "knob" {
		queued = 1
	}
	if o := c.Stats(); o.Queued != queued {
		t.Errorf("%d are queued, want %d: %+v", o.Queued, queued, o)
	}
	prog.Counts("out")
	switch how {
	case "all off":
		must(t, c.SetEnabled(true))
	case "disabled":
		must(t, c.EnableKprobe(stand))
	}
	optimised(t, c)
	if how == "unregistered" {
		stands(t, c, how, addrOf(t, c, "stand"), 0, orig["stand"])
		return
	}
	stands(t, c, how, stand.Addr, byJump, nil)
	before = prog.Counts("count")
	now = prog.Counts("go 100")
	if h := stand.State().Hits; h != now["stand"]-before["stand"] {
		t.Errorf("%d hits in 100 calls", h)
	}
}

// TestOldStays: a probe comes to a function that a thread stands in and that has a probe
// already. Where no breakpoint may stand the old one's jump stays and counts on, and the new
// one waits.
func TestOldStays(t *testing.T) {
	prog, c := attach(t, "stand", "mask")
	var runs atomic.Int64
	old := &kprobes.Kprobe{SymbolName: "stand", Offset: 4, PreHandler: counting(&runs)}
	must(t, c.RegisterKprobe(old))
	site := bytesAt(t, c, old.Addr)
	prog.Counts("in")
	d, err := event.Parse("p:e stand p=%di")
	must(t, err)
	evs, err := c.Add([]*event.Def{d}, &kprobes.AddOptions{Count: true})
	must(t, err)
	if now := bytesAt(t, c, old.Addr); !bytes.Equal(now, site) {
		t.Errorf("the old probe's bytes have changed from % x to % x", site, now)
	}
	tactic, why := evs[0].Form()
	if tactic != "" || why == nil {
		t.Errorf("the new one has tactic %q: %v", tactic, why)
	}
	was := *evs[0]
	if !old.State().Optimized {
		t.Errorf("the old one: %+v", old.State())
	}
	before := prog.Counts("count")
	now := prog.Counts("go 50")
	if s := old.State(); s.Hits != now["stand"]-before["stand"] || runs.Load() != int64(s.Hits) {
		t.Errorf("the old one has %d hits, %d runs, of %v", s.Hits, runs.Load(), now)
	}
	prog.Counts("out")
	optimised(t, c)
	h := old.State().Hits
	n := c.Counts(evs[0])
	prog.Counts("go 50")
	if s, m := old.State(), c.Counts(evs[0]); s.Hits != h+50 || m.Hits != n.Hits+50 {
		t.Errorf("50 calls: the old one has %d hits, the new one %d", s.Hits-h, m.Hits-n.Hits)
	}
	tactic, why = evs[0].Form()
	if tactic != "jump" || why != nil {
		t.Errorf("the new one has tactic %q: %v", tactic, why)
	}
	if all := c.Events(); *evs[0] != was || len(all) != 1 || all[0] != evs[0] {
		t.Errorf("the optimiser has changed the event: %+v, which was %+v, or it is listed as another one: %+v", evs[0], was, all)
	}
	if at := evs[0].Place(); at.Symbol != "stand" || at.Offset != 0 || at.Module != "stand" || at.Addr != old.Addr-4 {
		t.Errorf("it stands at %+v", at)
	}
}

// lived is a function whose probe lives through all its states.
type lived struct {
	c     *kprobes.Core
	fn    string // its symbol
	short string // its name in the listing
	call  func() // calls it livedCalls times
}

const livedCalls = 20

// transitions takes a probe through what un-optimises it and what optimises it again, and
// watches the bytes, the listing and the hits.
func (l *lived) transitions(t *testing.T) {
	c := l.c
	orig := bytes.Clone(originals(t, c, l.fn)[l.fn])
	k := &kprobes.Kprobe{SymbolName: l.fn}
	post := &kprobes.Kprobe{SymbolName: l.fn, PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) {}}
	const jumps = "[OPTIMIZED]"
	is := func(what string, first byte, line string, tactic string) {
		t.Helper()
		optimised(t, c)
		stands(t, c, what, k.Addr, first, orig)
		if got := lineOf(t, c, l.short); got != line {
			t.Errorf("%s: it is listed as %q, want %q", what, got, line)
		}
		s := k.State()
		l.call()
		n := k.State()
		want := uint64(livedCalls)
		if first == 0 {
			want = 0
		}
		if string(s.Tactic) != tactic || s.Optimized != (line == jumps) || n.Hits-s.Hits != want || n.Misses.Total() > 0 {
			t.Errorf("%s: %+v, and after %d calls %+v", what, s, livedCalls, n)
		}
	}
	must(t, c.RegisterKprobe(k))
	is("registered", byJump, jumps, "jump")
	must(t, c.DisableKprobe(k))
	is("disabled", 0, "[DISABLED]", "")
	must(t, c.EnableKprobe(k))
	is("enabled", byJump, jumps, "jump")
	must(t, c.RegisterKprobe(post))
	is("beside a post handler", byJump, "jump: a probe at the same instruction has a post handler", "jump")
	if !strings.HasSuffix(listing(t, c), "jump: has a post handler\n") {
		t.Errorf("the probe with the post handler: %s", listing(t, c))
	}
	must(t, c.DisableKprobe(post))
	is("the post handler is disabled", byJump, jumps, "jump")
	must(t, c.EnableKprobe(post))
	is("and enabled", byJump, "jump: a probe at the same instruction has a post handler", "jump")
	must(t, c.DisableKprobe(k))
	stands(t, c, "only the post handler is left", k.Addr, byJump, orig)
	must(t, c.EnableKprobe(k))
	c.UnregisterKprobe(post)
	is("the post handler is gone", byJump, jumps, "jump")
	must(t, c.SetOptimization(false))
	is("the knob is off", byTrap, "boost: kprobes-optimization is off", "boost")
	must(t, c.DisableKprobe(k))
	is("disabled with the knob off", 0, "[DISABLED]", "")
	must(t, c.EnableKprobe(k))
	is("enabled with the knob off", byTrap, "boost: kprobes-optimization is off", "boost")
	must(t, c.SetOptimization(true))
	is("the knob is on", byJump, jumps, "jump")
	must(t, c.SetEnabled(false))
	is("all are off", 0, "unarmed: kprobes/enabled is 0", "")
	must(t, c.SetEnabled(true))
	is("all are on", byJump, jumps, "jump")
	l.inRegion(t, k, is)
	c.UnregisterKprobe(k)
	if have := bytesAt(t, c, addrOf(t, c, l.fn)); !bytes.Equal(have, orig) {
		t.Errorf("unregistered: % x stands there, want % x", have, orig)
	}
}

// inRegion puts a second probe on an instruction that the first one's jump covers: one detour
// serves both.
func (l *lived) inRegion(t *testing.T, k *kprobes.Kprobe, is func(what string, first byte, line, tactic string)) {
	t.Helper()
	second := &kprobes.Kprobe{SymbolName: l.fn}
	for second.Offset = 1; second.Offset < 5; second.Offset++ {
		if l.c.RegisterKprobe(second) == nil {
			break
		}
	}
	if second.Addr == 0 {
		t.Fatalf("no instruction begins in the first five bytes of %s", l.fn)
	}
	is("a second probe in the region", byJump, "[OPTIMIZED]", "jump")
	if s := second.State(); !s.Optimized || s.Hits != livedCalls {
		t.Errorf("the second probe: %+v", s)
	}
	if e := l.c.EnableKprobe(second); e != nil || l.c.DisableKprobe(k) != nil {
		t.Error("the first one can not be disabled beside the second")
	}
	optimised(t, l.c) // on a busy machine a thread may not have stopped in time
	l.call()
	if s := second.State(); !s.Optimized || s.Hits != 2*livedCalls {
		t.Errorf("the second probe while the first is disabled: %+v", s)
	}
	must(t, l.c.EnableKprobe(k))
	is("enabled beside the second", byJump, "[OPTIMIZED]", "jump")
	l.c.UnregisterKprobe(second)
	is("the second one is gone", byJump, "[OPTIMIZED]", "jump")
}

// TestTransitions: a process's probe.
func TestTransitions(t *testing.T) {
	prog, c := attach(t, "stand")
	(&lived{c: c, fn: "stand", short: "stand", call: func() { prog.Counts("go 20") }}).transitions(t)
	d, err := event.Parse("p:e stand")
	must(t, err)
	_, err = c.Add([]*event.Def{d}, &kprobes.AddOptions{Count: true, Tactic: "boost"})
	must(t, err)
	if l := lineOf(t, c, "stand"); l != "boost: this tactic was asked for" {
		t.Errorf("asked for a breakpoint: %q", l)
	}
}

// TestListedFromMemory: what a listing reads in a process's memory tells of breakpoints why
// they are no jumps, and of probes that wait; taking everything out passes these over.
func TestListedFromMemory(t *testing.T) {
	left := func(c *kprobes.Core) (out []string) {
		tg, ok := c.Target().(*process.Target)
		if !ok {
			t.Fatal("the target is no process")
		}
		l, err := process.FindLeftover(tg.Proc())
		must(t, err)
		for _, s := range l.Sites {
			if len(s.Points) == 0 {
				continue // the engine's own
			}
			out = append(out, fmt.Sprintf("%d %d %s", len(s.Patch), len(s.Points), s.Why()))
		}
		return out
	}
	const want = "0 1 queued: a thread is in the way of a jump"
	for _, arg := range []string{"", "mask"} {
		prog, c := attach(t, "stand", strings.Fields(arg)...)
		prog.Counts("in")
		k := &kprobes.Kprobe{SymbolName: "stand"}
		must(t, c.RegisterKprobe(k))
		if got := left(c); len(got) != 1 || got[0] != want {
			t.Errorf("stand %s, a thread stands there: %q, want %q", arg, got, want)
		}
		prog.Counts("out")
		optimised(t, c)
		if got := left(c); len(got) != 1 || got[0] != "5 1 " {
			t.Errorf("stand %s, optimised: %q", arg, got)
		}
		if arg != "" {
			continue
		}
		post := &kprobes.Kprobe{SymbolName: "first", PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) {}}
		must(t, c.RegisterKprobe(post))
		if got := left(c); !slices.Contains(got, "5 1 has a post handler") {
			t.Errorf("a post handler: %q", got)
		}
		must(t, c.SetOptimization(false))
		if got := left(c); !slices.Contains(got, "1 1 kprobes-optimization is off") {
			t.Errorf("the knob is off: %q", got)
		}
	}
}

// TestEndIsNotPostponed: a probe is unregistered while a thread stands in the bytes that a jump for the
// one beside it would take. It is out when Unregister returns; the other keeps the breakpoint that
// the knob had asked for, and has its jump when the thread has left.
func TestEndIsNotPostponed(t *testing.T) {
	prog, c := attach(t, "stand")
	orig := originals(t, c, "stand")["stand"]
	var runs, posts atomic.Int64
	k := &kprobes.Kprobe{SymbolName: "stand", PreHandler: counting(&runs)}
	post := &kprobes.Kprobe{SymbolName: "stand", PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) { posts.Add(1) }}
	prog.Counts("in")
	must(t, c.SetOptimization(false))
	must(t, c.RegisterKprobes([]*kprobes.Kprobe{k, post}))
	must(t, c.SetOptimization(true))
	if o := c.Stats(); o.Queued != 2 || o.Unarmed != 0 {
		t.Errorf("a thread stands there, both have breakpoints, and the optimiser tells %+v", o)
	}
	prog.Counts("go 10")
	c.UnregisterKprobe(post)
	if post.State().Registered || strings.Count(listing(t, c), "\n") != 1 {
		t.Errorf("it is still there: %+v\n%s", post.State(), listing(t, c))
	}
	stands(t, c, "a thread stands there", k.Addr, 0, orig)
	if l := lineOf(t, c, "stand"); !strings.HasPrefix(l, "postponed: thread ") {
		t.Errorf("the other one is listed as %q", l)
	}
	prog.Counts("go 10")
	if runs.Load() != 10 || posts.Load() != 10 {
		t.Errorf("%d and %d runs, want 10 of each", runs.Load(), posts.Load())
	}
	prog.Counts("out")
	optimised(t, c)
	stands(t, c, "the thread has left", k.Addr, byJump, nil)
	prog.Counts("go 10")
	if runs.Load() != 20 {
		t.Errorf("%d runs, want 20", runs.Load())
	}
}

// TestEndInSpiteOfAThread: a word on a stack that may be a return into the code of two probes is
// in the way of the jump that would serve one of them alone, and no breakpoint may stand. The
// other one ends all the same; the one that stays is taken out and waits.
func TestEndInSpiteOfAThread(t *testing.T) {
	prog, c := attach(t, "stand", "mask")
	orig := originals(t, c, "stand")["stand"]
	stays := &kprobes.Kprobe{SymbolName: "stand", Offset: 4}
	ends := &kprobes.Kprobe{SymbolName: "stand"}
	must(t, c.RegisterKprobes([]*kprobes.Kprobe{stays, ends}))
	stands(t, c, "both", ends.Addr, byJump, nil)
	detour := ends.Addr + 5 + uint64(int64(int32(binary.LittleEndian.Uint32(bytesAt(t, c, ends.Addr)[1:]))))

	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", prog.PID), os.O_RDWR, 0)
	must(t, err)
	defer mem.Close()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", prog.PID))
	must(t, err)
	env, err := strconv.ParseInt(strings.Fields(string(stat))[49], 10, 64) // env_start
	must(t, err)
	old, word := make([]byte, 8), (env+7)&^7
	_, err = mem.ReadAt(old, word)
	must(t, err)
	_, err = mem.WriteAt(binary.LittleEndian.AppendUint64(nil, detour+1), word)
	must(t, err)

	prog.Counts("go 10")
	c.UnregisterKprobe(ends)
	stands(t, c, "one of them has ended", stays.Addr-4, 0, orig)
	if s := ends.State(); s.Registered || s.Hits != 10 {
		t.Errorf("the one that ended: %+v", s)
	}
	if s := stays.State(); s.Hits != 10 || s.Tactic != "" || s.Why == nil || !strings.Contains(s.Why.Error(), "queued: ") {
		t.Errorf("the one that stays: %+v", s)
	}
	prog.Counts("go 10")
	_, err = mem.WriteAt(old, word)
	must(t, err)
	optimised(t, c)
	stands(t, c, "the word has gone", stays.Addr, byJump, nil)
	if n := prog.Counts("go 10"); stays.State().Hits != 20 || n["bad"] != 0 {
		t.Errorf("%+v, %v", stays.State(), n)
	}
}

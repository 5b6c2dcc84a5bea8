package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
	tracing "kprobes.dev/kprobes/trace"
)

// The program boundary goes through code with a pattern in everything that a thread has, and
// compares bit by bit what is there afterwards with what was there when nobody probed it.

// station is a piece of that code.
type station struct {
	name   string
	at, to uint64 // bytes from its start to the instruction inside of it, and to its return
	times  uint64 // that the first is run in a call
}

// stationsOf lists the stations that the program goes through on this CPU, and last that of
// its signal handler.
func stationsOf(t *testing.T, p *testprog.Proc, path string) (all []station, last station) {
	t.Helper()
	n := right(t, p, "go 1")
	at := symbolsOf(t, path)
	of := func(name string) station {
		start := at["st_"+name]
		return station{name: name, at: at["at_"+name] - start, to: at["ret_"+name] - start, times: n["at_"+name]}
	}
	for key := range n {
		if name, ok := strings.CutPrefix(key, "at_"); ok {
			all = append(all, of(name))
		}
	}
	if len(all) < 28 {
		t.Fatalf("only %d stations: %v", len(all), n)
	}
	return all, of("signal")
}

// bounds is the program with a Core for it.
type bounds struct {
	t    *testing.T
	p    *testprog.Proc
	core *kprobes.Core
	all  []station
	last station
	stub bool // returns are seen by trampoline
}

func newBounds(t *testing.T) *bounds {
	t.Helper()
	p := testprog.Start(t, testprog.Copy(t, testprog.Build(t, "boundary"))) // a kernel's uprobe belongs to a file
	core := openWith(t, p, &process.TargetOptions{HandlerWait: handlerWait})
	b := &bounds{t: t, p: p, core: core}
	b.all, b.last = stationsOf(t, p, p.Path)
	return b
}

// end takes the Core away: nothing of it is left, and the program has found nothing wrong.
func (b *bounds) end() {
	b.t.Helper()
	if err := b.core.Close(nil); err != nil {
		b.t.Error(err)
	}
	intact(b.t, b.p.PID)
	right(b.t, b.p, "go 128")
	b.p.Quit(nil)
}

// events defines, for each station, what is probed there: the definitions' arguments follow
// their places.
func (b *bounds) events(args, returns string) (out []string) {
	for _, s := range append(b.all[:len(b.all):len(b.all)], b.last) {
		out = append(out,
			fmt.Sprintf("p:in_%s st_%s %s", s.name, s.name, args),
			fmt.Sprintf("p:at_%s st_%s+%d %s", s.name, s.name, s.at, args),
			fmt.Sprintf("p:to_%s st_%s+%d %s", s.name, s.name, s.to, args))
		if returns != "" {
			out = append(out, fmt.Sprintf("r:re_%s st_%s %s", s.name, s.name, returns))
		}
	}
	return out
}

// refused checks that the kernel gets no probe on what it would not run as it is, and takes the
// stations of these instructions off the list; and that of a string instruction, where it
// counts each round.
func (b *bounds) refused() {
	b.t.Helper()
	for _, name := range []string{"pushf", "syscall", "upper"} {
		i := slices.IndexFunc(b.all, func(s station) bool { return s.name == name })
		if i < 0 {
			continue // the CPU has no such instruction
		}
		def := fmt.Sprintf("p:at_%s st_%s+%d", name, name, b.all[i].at)
		if _, err := tryAdd(b.core, arch.TacticUprobe, def); !errors.Is(err, unix.EOPNOTSUPP) {
			b.t.Errorf("uprobe at at_%s: %v", name, err)
		}
		b.all = slices.Delete(b.all, i, i+1)
	}
	b.all = slices.DeleteFunc(b.all, func(s station) bool { return s.name == "strings" })
}

// returns defines return probes alone.
func (b *bounds) returns(args string) (out []string) {
	for _, s := range append(b.all[:len(b.all):len(b.all)], b.last) {
		out = append(out, fmt.Sprintf("r:re_%s st_%s %s", s.name, s.name, args))
	}
	return out
}

// inside defines events at the stations' instructions inside alone.
func (b *bounds) inside(args string) (out []string) {
	for _, s := range b.all {
		out = append(out, fmt.Sprintf("p:at_%s st_%s+%d %s", s.name, s.name, s.at, args))
	}
	return out
}

// work lets the program go n times through all stations, with a timer signal every so many
// microseconds or without, and tells what it has counted meanwhile.
func (b *bounds) work(n, usec int) map[string]uint64 {
	b.t.Helper()
	before := b.p.Counts("count")
	b.p.Counts(fmt.Sprintf("signals %d", usec))
	b.p.Counts(fmt.Sprintf("go %d", n))
	after := b.p.Counts("signals 0")
	if after["bad"] != before["bad"] {
		b.t.Errorf("%d results in %d calls of each station are not those without probes:\n%s", after["bad"]-before["bad"], after["calls"]-before["calls"], b.p.Stderr())
	}
	if usec > 0 && after["signals"] == before["signals"] {
		b.t.Error("no signal came")
	}
	for k := range after {
		after[k] -= before[k]
	}
	return after
}

// hits is what the program counts for an event, or a probe, of this name.
func hits(n map[string]uint64, name string) uint64 {
	kind, station, _ := strings.Cut(name, "_")
	switch {
	case station == "signal":
		return n["signals"]
	case kind == "at":
		return n["at_"+station]
	}
	return n["calls"]
}

// record arms events, lets the program work, disarms them, and compares the counts.
func (b *bounds) record(tactic arch.Tactic, count bool, probes []string, n, usec int) {
	b.t.Helper()
	evs, err := b.core.Add(parsed(b.t, probes...), &kprobes.AddOptions{Tactic: tactic, Count: count, Trampoline: b.stub})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range evs {
		if t, why := e.Form(); t != or(tactic, arch.TacticJump) {
			b.t.Errorf("%s: %s, because of %v", e.Name, t, why)
		}
	}
	got := b.work(n, usec)
	if err := b.core.Remove(evs); err != nil {
		b.t.Fatal(err)
	}
	for _, e := range evs {
		want := hits(got, e.Name)
		within(b.t, fmt.Sprintf("%d hits of %s", want, e.Name), func() bool {
			b.core.Poll(func(*tracing.Hit) {})
			return b.core.Counts(e).Hits >= want
		})
		if c := b.core.Counts(e); c.Hits != want || c.Missed != 0 {
			b.t.Errorf("%s: %+v, want %d hits", e.Name, c, want)
		}
	}
}

// handle does the same with handlers: before the instruction inside of each station, after it
// too if post is set, at each entry and each return.
func (b *bounds) handle(post bool, n, usec int) {
	b.t.Helper()
	var ks []*kprobes.Kprobe
	var rs []*kprobes.Kretprobe
	var names []string
	for _, s := range b.all {
		k := &kprobes.Kprobe{SymbolName: "st_" + s.name, Offset: s.at, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
		if post {
			k.PostHandler = func(*kprobes.Kprobe, *kprobes.Regs, uint64) {}
		}
		ks, names = append(ks, k), append(names, s.name)
		run := func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 }
		rs = append(rs, &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "st_" + s.name}, EntryHandler: run, Handler: run})
	}
	if err := b.core.RegisterKprobes(ks); err != nil {
		b.t.Fatal(err)
	}
	if err := b.core.RegisterKretprobes(rs); err != nil {
		b.t.Fatal(err)
	}
	got := b.work(n, usec)
	b.core.UnregisterKretprobes(rs)
	b.core.UnregisterKprobes(ks)
	for i, name := range names {
		if s := ks[i].State(); s.Hits != hits(got, "at_"+name) || s.Misses.Total() != 0 {
			b.t.Errorf("handlers at at_%s: %+v, want %d hits", name, s, hits(got, "at_"+name))
		}
		if s := rs[i].State(); s.Hits != got["calls"] || s.Misses.Total() != 0 {
			b.t.Errorf("handlers of the returns of st_%s: %+v, want %d hits", name, s, got["calls"])
		}
	}
}

func or(a, b arch.Tactic) arch.Tactic {
	if a == "" {
		return b
	}
	return a
}

// manyArgs reads registers, flags, memory that is there and that is not, strings, and arrays.
const manyArgs = "ax=%ax bx=%bx sp=%sp di=%di r8=%r8 r11=%r11 fl=%flags top=$stack0 w=+0(%di):u16 far=+0(+8(%dx)):u64 s=+0(%di):string bad=+0(%r9):string arr=+0(%di):x8[16] comm=$comm"

// manyReturns does so at returns.
const manyReturns = "v=$retval a=$arg1 s=+0($arg1):string"

// TestBoundaries: everything that a thread has is intact around probed instructions of all
// kinds, whatever a probe does there, and by whatever tactic it gets control.
func TestBoundaries(t *testing.T) {
	for _, tactic := range []arch.Tactic{"", arch.TacticBoost, arch.TacticStep} {
		t.Run(string(or(tactic, arch.TacticJump)), func(t *testing.T) {
			b := newBounds(t)
			b.record(tactic, true, b.events("", " "), 128, 0)
			b.record(tactic, false, b.events("", "v=$retval"), 128, 0)
			b.record(tactic, false, b.events(manyArgs, manyReturns), 128, 0)
			b.record(tactic, false, b.events(manyArgs, manyReturns), 512, 2000)
			b.p.Counts("block") // loads ask the kernel first
			b.record(tactic, false, b.events(manyArgs, manyReturns), 128, 2000)
			b.end()
		})
	}
	t.Run("trampoline", func(t *testing.T) {
		b := newBounds(t)
		b.stub = true
		b.p.Counts("returned")
		b.record("", true, b.returns(""), 128, 0)
		b.record("", false, b.returns(manyReturns), 128, 0)
		b.record("", false, b.returns(manyReturns), 256, 2000)
		b.end()
	})
	t.Run("uprobe", func(t *testing.T) {
		b := newBounds(t)
		b.refused()
		b.record(arch.TacticUprobe, false, b.inside("ax=%ax w=+0(%di):u16 far=+0(+8(%dx)):u64 top=$stack0"), 128, 2000)
		b.end()
	})
}

// TestBoundariesOfHandlers: the same where handlers are called, by a jump, and by a breakpoint
// where there is one after the instruction too.
func TestBoundariesOfHandlers(t *testing.T) {
	for _, post := range []bool{false, true} {
		t.Run(fmt.Sprintf("post=%t", post), func(t *testing.T) {
			b := newBounds(t)
			b.handle(post, 128, 0)
			b.handle(post, 128, 2000)
			b.end()
		})
	}
}

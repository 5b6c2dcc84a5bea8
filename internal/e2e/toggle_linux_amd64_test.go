package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/internal/toggle"
	"kprobes.dev/kprobes/target/process"
)

// millionToggles is how often a long run arms or disarms a probe.
const millionToggles = 1_000_000

// toggling is a program in whose functions probes come and go while eight threads run them.
type toggling struct {
	t      *testing.T
	p      *testprog.Proc
	proc   *process.Proc
	core   *kprobes.Core
	before *state
	code   []insn
	at     uint64 // of the program's tallies
	least  uint64 // bytes of generated code that are there without probes: of the engine's own
	names  []string
	whole  []*kprobes.Event  // counters that are armed all the time
	parked map[string]uint64 // calls when the whole ones were looked at last
	seen   []uint64          // what these had counted then
	kps    []*kprobes.Kprobe
	n      toggleCounts
	over   func() bool
}

// toggleCounts is what was done.
type toggleCounts struct {
	toggles, forms, changes, postponed, waited, checked int
	hits                                                uint64
}

// Of the tallies of toggle.c.
const (
	toggleThreads = 8
	toggleFuncs   = 16
	tallySize     = 8 * (2*toggleFuncs + 8)
)

// A million times a probe is armed or disarmed in functions that eight threads are in, in a
// short run for a few seconds: as a jump that becomes a breakpoint and a jump again, and as
// a breakpoint that becomes a jump and a breakpoint again, a third of all instructions in one stop,
// and one by one. Counters that are armed all the time, in the same functions, count every
// call; one that comes and goes counts every call that begins and ends while it is armed, and
// none that does not touch that time. Then the text is the file's, and no code is left.
func TestToggles(t *testing.T) {
	r := startToggling(t)
	start := time.Now()
	r.over = ending()
	for k := 0; !r.done(start, k); k++ {
		r.cycle(k)
		r.single(k)
		if k%4 == 2 {
			r.all(k)
		}
		if t.Failed() {
			return // what follows would only say so again
		}
	}
	r.check()
	d := time.Since(start)
	r.core.UnregisterKprobes(r.kps)
	r.must(r.core.Remove(r.whole))
	r.settled()
	for range 100 { // detours that a thread was in are given back by later stops
		if r.used() == r.least {
			break
		}
		r.must(r.core.Remove(r.add("p:last t_0")))
		r.settled()
	}
	if got := r.used(); got != r.least {
		t.Errorf("%d bytes of generated code are left, %d before the first probe", got, r.least)
	}
	r.must(errors.Join(r.core.Close(nil), r.proc.Close()))
	r.before.same(t)
	if right(t, r.p, "stop")["t_0"] == 0 {
		t.Error("the program has not worked")
	}
	r.before.same(t)
	t.Logf("%d probes at %d instructions: %d toggles, %d changes of form, in %d changes (%d tried again by us, %d probes had to wait, %d times until the threads did) and %.1f s: %.0f toggles a second; %d hits, compared %d times",
		len(r.whole)+len(r.kps), len(r.code), r.n.toggles, r.n.forms, r.n.changes, r.n.postponed, r.core.Stats().Postponed, r.n.waited, d.Seconds(), float64(r.n.toggles)/d.Seconds(), r.n.hits, r.n.checked)
}

// done says whether enough was done.
func (r *toggling) done(start time.Time, cycles int) bool {
	if long {
		return r.n.toggles >= millionToggles || r.over()
	}
	return cycles >= 4 && time.Since(start) > 2*time.Second
}

// startToggling starts the program and arms what stays.
func startToggling(t *testing.T) *toggling {
	r := &toggling{t: t, p: program(t, "toggle")}
	t.Cleanup(func() {
		if !r.p.Alive() {
			t.Errorf("the program has ended: %v; %s", r.p.Wait(), r.p.Stderr())
		}
	})
	r.before = stateOf(t, r.p.PID)
	r.at = r.p.Counts("where")["tallies"]
	function := regexp.MustCompile(`^t_\d+$`)
	own := &inside{path: fmt.Sprintf("/proc/%d/exe", r.p.PID), starts: true}
	for _, a := range own.instructions(t) {
		if function.MatchString(a.fn) && a.text != "xchg   %ax,%ax" {
			r.code = append(r.code, a)
		}
	}
	if len(r.code) < 16*12 {
		t.Fatalf("only %d instructions", len(r.code))
	}
	var err error
	if r.proc, err = process.OpenUnwaited(r.p.PID); err != nil {
		t.Fatal(err)
	}
	target, err := process.Attach(r.proc, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.core, err = kprobes.Open(target, nil); err != nil {
		t.Fatal(err)
	}
	r.first()
	r.least = r.used()
	r.arm()
	r.p.Ask("run", nil)
	return r
}

// first makes what is made once and stays until Close: the engine's own probes. Those that watch for
// seccomp filters come with the first probe that has a handler, not with one that counts.
func (r *toggling) first() {
	r.t.Helper()
	kp := &kprobes.Kprobe{SymbolName: "t_0"}
	r.must(r.core.RegisterKprobe(kp))
	r.core.UnregisterKprobe(kp)
	evs, err := r.core.Add(parsed(r.t, "p:first t_0"), &kprobes.AddOptions{Count: true, Tactic: arch.TacticBoost})
	r.must(errors.Join(err, r.core.Remove(evs)))
}

// arm arms what stays, while the threads wait: a counter at each function's entry or returns, and
// Kprobes that are to be enabled and disabled.
func (r *toggling) arm() {
	var defs []string
	for i := range toggleFuncs {
		fn := fmt.Sprintf("t_%d", i)
		r.names = append(r.names, fn)
		defs = append(defs, fmt.Sprintf("%c:whole_%s %s", "pr"[i%2], fn, fn))
	}
	r.whole = r.add(defs...)
	for i := 0; i < len(r.code); i += 11 {
		a := r.code[i]
		r.kps = append(r.kps, &kprobes.Kprobe{SymbolName: a.fn, Offset: a.off, Flags: kprobes.FlagDisabled})
	}
	r.must(r.core.RegisterKprobes(r.kps))
	r.n.toggles += len(r.whole)
	r.parked, r.seen = r.p.Counts("stop"), r.hits()
}

// hits is what the counters that stay have counted.
func (r *toggling) hits() (out []uint64) {
	for _, e := range r.whole {
		out = append(out, r.core.Counts(e).Hits)
	}
	return out
}

func (r *toggling) used() uint64 {
	return r.core.Target().Capabilities().CodeUsed()
}

// must counts a change. One that a thread was in the way of is made again.
func (r *toggling) must(err error) {
	r.t.Helper()
	r.n.changes++
	if err != nil {
		r.t.Fatal(err)
	}
}

// again makes a change, and tries once more for as long as a thread is in its way.
func (r *toggling) again(f func() error) {
	r.t.Helper()
	for end := time.Now().Add(patience); ; r.n.postponed++ {
		err := f()
		if !errors.Is(err, process.ErrBlocked) || time.Now().After(end) {
			r.must(err)
			return
		}
	}
}

// settled waits until nothing of a change is queued: what a thread was in the way of. Where the
// machine is so busy that one always is, the threads wait for it.
func (r *toggling) settled() {
	r.t.Helper()
	ready := func() bool { return r.core.Stats().Queued == 0 }
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ready() {
			return
		}
	}
	r.n.waited++
	r.p.Ask("stop", nil)
	for end := time.Now().Add(patience); !ready(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("while nothing runs the optimiser waits for %q", r.core.Stats().Why)
		}
	}
	r.p.Ask("run", nil)
}

// add arms counters in one stop.
func (r *toggling) add(defs ...string) (evs []*kprobes.Event) {
	r.t.Helper()
	ds := parsed(r.t, defs...)
	r.again(func() (err error) {
		evs, err = r.core.Add(ds, &kprobes.AddOptions{Count: true})
		return err
	})
	return evs
}

func parsed(t *testing.T, defs ...string) (out []*event.Def) {
	t.Helper()
	for _, s := range defs {
		d, err := event.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, d)
	}
	return out
}

// calls are how often each function was called, and how many of these have returned, as the
// program's memory tells.
func (r *toggling) calls() (begun, ended map[string]uint64) {
	r.t.Helper()
	b := make([]byte, toggleThreads*tallySize)
	if err := r.proc.ReadMem(r.at, b); err != nil {
		r.t.Fatal(err)
	}
	begun, ended = map[string]uint64{}, map[string]uint64{}
	for i, fn := range r.names {
		for t := range toggleThreads {
			at := b[t*tallySize+8*i:]
			begun[fn] += binary.LittleEndian.Uint64(at)
			ended[fn] += binary.LittleEndian.Uint64(at[8*toggleFuncs:])
		}
	}
	return begun, ended
}

// within checks what a probe has counted in a window.
func (r *toggling) within(w *toggle.Window, what, fn string, hits uint64) {
	r.t.Helper()
	if err := w.Check(fn, hits); err != nil {
		r.t.Errorf("%s in %s: %v", what, fn, err)
	}
}

// third is every third instruction, with the definition of a probe on it.
func (r *toggling) third(k int) (at []insn, defs []string) {
	for i := k % 3; i < len(r.code); i += 3 {
		at = append(at, r.code[i])
		defs = append(defs, fmt.Sprintf("p:%s_%d %s+%d", r.code[i].fn, r.code[i].off, r.code[i].fn, r.code[i].off))
	}
	return at, defs
}

// cycle arms a third of the instructions, changes the form of all probes and back, and disarms
// them, while the threads run.
func (r *toggling) cycle(k int) {
	r.t.Helper()
	var w toggle.Window
	at, defs := r.third(k)
	_, w.EndedBefore = r.calls()
	evs := r.add(defs...)
	r.settled()
	w.BegunArmed, _ = r.calls()
	on := r.core.Optimization()
	for _, form := range []bool{!on, on, !on} {
		r.again(func() error { return r.core.SetOptimization(form) })
		r.n.forms += len(evs) + len(r.whole)
	}
	_, w.EndedArmed = r.calls()
	r.again(func() error { return r.core.Remove(evs) })
	r.settled()
	w.BegunAfter, _ = r.calls()
	r.n.toggles += 2 * len(evs)
	for i, e := range evs {
		c := r.core.Counts(e)
		if c.Missed != 0 || c.Lost != 0 {
			r.t.Errorf("%s+%d: %+v", at[i].fn, at[i].off, c)
		}
		r.within(&w, fmt.Sprintf("+%d %s, %s", at[i].off, at[i].text, tacticOf(e)), at[i].fn, c.Hits)
		r.n.hits += c.Hits
	}
	r.n.checked += len(evs)
}

// single enables a Kprobe and disables it.
func (r *toggling) single(k int) {
	r.t.Helper()
	kp := r.kps[k%len(r.kps)]
	had := kp.State().Hits
	var w toggle.Window
	_, w.EndedBefore = r.calls()
	r.again(func() error { return r.core.EnableKprobe(kp) })
	r.settled()
	w.BegunArmed, _ = r.calls()
	time.Sleep(time.Millisecond)
	_, w.EndedArmed = r.calls()
	r.again(func() error { return r.core.DisableKprobe(kp) })
	r.settled()
	w.BegunAfter, _ = r.calls()
	r.n.toggles += 2
	hits := kp.State().Hits - had
	r.within(&w, fmt.Sprintf("Kprobe +%d", kp.Offset), kp.SymbolName, hits)
	r.n.hits += hits
	r.n.checked++
}

// all compares what the counters that stay have counted, and disarms and arms them and a third of
// all instructions again and again, all at once, while the threads run: as breakpoints every
// other time.
func (r *toggling) all(k int) {
	r.t.Helper()
	r.check()
	rounds := 3
	if long {
		rounds = 50
	}
	if k%8 == 6 {
		r.again(func() error { return r.core.SetOptimization(!r.core.Optimization()) })
	}
	at, defs := r.third(k)
	_, before := r.calls()
	evs := r.add(defs...)
	for range rounds {
		for _, on := range []bool{false, true} {
			r.again(func() error { return r.core.SetEnabled(on) })
			r.n.toggles += len(r.whole) + len(evs)
		}
	}
	r.settled()
	r.again(func() error { return r.core.Remove(evs) })
	r.settled()
	after, _ := r.calls()
	r.n.toggles += 2 * len(evs)
	for i, e := range evs {
		w := toggle.Window{EndedBefore: before, BegunAfter: after}
		r.within(&w, fmt.Sprintf("+%d, again and again", at[i].off), at[i].fn, r.core.Counts(e).Hits)
	}
	r.parked, r.seen = right(r.t, r.p, "stop"), r.hits()
	r.p.Ask("run", nil)
}

// check has the threads wait and compares what the counters that stay have counted since they did
// the last time.
func (r *toggling) check() {
	r.t.Helper()
	calls, hits := right(r.t, r.p, "stop"), r.hits()
	for i, fn := range r.names {
		if got, want := hits[i]-r.seen[i], calls[fn]-r.parked[fn]; got != want {
			r.t.Errorf("%s: %d hits, the program counted %d", r.whole[i].Name, got, want)
		}
		r.n.hits += hits[i] - r.seen[i]
	}
	r.n.checked += len(r.whole)
	r.parked, r.seen = calls, hits
	r.p.Ask("run", nil)
}

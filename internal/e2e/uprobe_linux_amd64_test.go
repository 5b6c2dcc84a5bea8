package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
	tracing "kprobes.dev/kprobes/trace"
)

// Probes on the program tight: its entry has no room for a jump and its threads block
// SIGTRAP, but its loop has room.
const (
	tightEntry = "p:entry tight n=$arg1 low=%si:u8 self=+0(%dx) seven=+8(+0(%dx)):u32 nine=+12(%dx):u16 none=+0(%cx) sp=%sp at=%ip:u8 back=$stack0 same=+0(%sp)"
	tightLoop  = "p:loop tight+2 left=%di"
)

// startTight starts a copy of the program, for uprobes belong to a file.
func startTight(t *testing.T) *testprog.Proc {
	return testprog.Start(t, testprog.Copy(t, testprog.Build(t, "tight")))
}

// Where neither a jump nor a breakpoint may stand the kernel holds the probe: it is hit by
// every thread, with the right values, beside a jump in the same function.
func TestUprobe(t *testing.T) {
	p := startTight(t)
	s := trace(t, p.PID, tightEntry, tightLoop)
	right(t, p, "go 300")
	n := right(t, p, "go 300")
	r := s.end()
	r.counted(t, "entry", n["tight"], "uprobe")
	r.counted(t, "loop", n["loops"], "jump")
	r.whole(t)
	calls := map[uint64]int{}
	for _, l := range r.of("entry") {
		v := l.number(t, "n")
		calls[v]++
		for arg, want := range map[string]uint64{"low": v & 0xff, "seven": 7 * v, "nine": 9 * v & 0xffff, "none": 0} {
			if got := l.number(t, arg); got != want {
				t.Fatalf("%s: %d, want %d: %v", arg, got, want, l)
			}
		}
		if l.args["back"] != l.args["same"] || l.number(t, "self") <= l.number(t, "sp") {
			t.Fatalf("stack: %v", l)
		}
	}
	for v := uint64(1); v <= 300; v++ {
		if calls[v] != 4 {
			t.Errorf("call with %d: %d times, want 4", v, calls[v])
		}
	}
}

// The hits of a Poll come in the order of time, whoever holds the probe.
func TestUprobeOrder(t *testing.T) {
	p := aside(t, "tight")
	core := open(t, p)
	add(t, core, "", tightEntry, tightLoop)
	right(t, p, "go 50")
	hits := map[string]int{}
	within(t, "all records", func() bool {
		var last uint64
		core.Poll(func(h *tracing.Hit) {
			if h.Nanos < last {
				t.Errorf("%s at %d after %d", h.Event.Name, h.Nanos, last)
			}
			last = h.Nanos
			hits[h.Event.Name]++
		})
		return hits["entry"]+hits["loop"] >= 2650
	})
	if hits["entry"] != 100 {
		t.Errorf("%v", hits)
	}
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
}

// aside starts a copy of a program as a child of a shell: a Core in this process would
// share the waiting for a child of our own.
func aside(t *testing.T, name string, args ...string) *testprog.Proc {
	t.Helper()
	path := testprog.Copy(t, testprog.Build(t, name))
	p := testprog.Start(t, "/bin/sh", append([]string{"-c", `exec 3<&0; "$@" <&3 & wait`, "sh", path}, args...)...)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.PID, p.PID))
	if err != nil {
		t.Fatal(err)
	}
	if p.PID, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		t.Fatal(err)
	}
	child := p.PID
	t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
	return p
}

// open makes a Core for a process.
func open(t testing.TB, p *testprog.Proc) *kprobes.Core {
	t.Helper()
	return openWith(t, p, nil)
}

// openWith does so with options for process.Attach.
func openWith(t testing.TB, p *testprog.Proc, o *process.TargetOptions) *kprobes.Core {
	t.Helper()
	proc, err := process.OpenUnwaited(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proc.Close() })
	target, err := process.Attach(proc, o)
	if err != nil {
		t.Fatal(err)
	}
	core, err := kprobes.Open(target, nil)
	if err != nil {
		t.Fatal(err)
	}
	return core
}

func tryAdd(core *kprobes.Core, tactic arch.Tactic, probes ...string) ([]*kprobes.Event, error) {
	var defs []*event.Def
	for _, p := range probes {
		d, err := event.Parse(p)
		if err != nil {
			return nil, err
		}
		defs = append(defs, d)
	}
	return core.Add(defs, &kprobes.AddOptions{Tactic: tactic})
}

// tacticOf is how an event gets control.
func tacticOf(e *kprobes.Event) kprobes.Tactic {
	tactic, _ := e.Form()
	return tactic
}

func add(t *testing.T, core *kprobes.Core, tactic arch.Tactic, probes ...string) []*kprobes.Event {
	t.Helper()
	evs, err := tryAdd(core, tactic, probes...)
	if err != nil {
		t.Fatal(err)
	}
	return evs
}

// Functions with all kinds of first instructions, from several threads: the kernel's
// probes count what the program counts, also when nobody reads and records are lost, and
// no more once they are removed.
func TestUprobeCounts(t *testing.T) {
	p := aside(t, "work", "4")
	before := stateOf(t, p.PID)
	core := open(t, p)
	var probes []string
	for _, f := range strings.Fields("f_lea f_endbr f_push f_nop5 f_patch f_ret f_ptr f_str f_six f_small f_pair f_big f_double") {
		probes = append(probes, fmt.Sprintf("p:%s %s a=$arg1 b=$arg2", f, f))
	}
	evs := add(t, core, arch.TacticUprobe, probes...)
	add(t, core, "", "p:jump f_six+3")
	n := right(t, p, "go 6000")
	err := core.Remove(evs)
	if err != nil {
		t.Fatal(err)
	}
	right(t, p, "go 10")
	read := map[string]uint64{}
	if err := core.Close(func(h *tracing.Hit) { read[h.Event.Name]++ }); err != nil {
		t.Fatal(err)
	}
	var lost uint64
	for _, e := range evs {
		c := core.Counts(e)
		lost += c.Lost
		if c.Hits != n[e.Name] || c.Hits != c.Read+c.Lost || c.Read != read[e.Name] || tacticOf(e) != arch.TacticUprobe {
			t.Errorf("%s (%s): %+v, %d read, the program counted %d", e.Name, tacticOf(e), c, read[e.Name], n[e.Name])
		}
	}
	if lost == 0 {
		t.Error("nothing was lost: the ring was to overflow")
	}
	before.same(t)
}

// Records of the kernel's probes and of jumps come in the order of their times, over all Polls.
func TestUprobeOrderOfPolls(t *testing.T) {
	p := aside(t, "work", "4")
	core := open(t, p)
	add(t, core, arch.TacticUprobe, "p:held f_lea a=%di")
	add(t, core, arch.TacticJump, "p:jump f_push a=%di")
	kinds := map[string]int{}
	turns, back := 0, 0
	var last tracing.Hit
	hit := func(h *tracing.Hit) {
		if h.Nanos < last.Nanos {
			back++
			t.Logf("%s at %d after %s at %d", h.Event.Name, h.Nanos, last.Event.Name, last.Nanos)
		}
		if last.Event != nil && last.Event.Name != h.Event.Name {
			turns++
		}
		kinds[h.Event.Name]++
		last = tracing.Hit{Event: h.Event, Nanos: h.Nanos}
	}
	for range 10 {
		p.Send("go 2000")
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			p.Line()
		}()
		for done := false; !done && back < 10; {
			core.Poll(hit)
			select {
			case <-answered:
				done = true
			default:
			}
		}
		<-answered
	}
	if err := core.Close(hit); err != nil {
		t.Fatal(err)
	}
	if back > 0 || turns < 500 || kinds["held"] == 0 || kinds["jump"] == 0 {
		t.Errorf("%v records, %d times another kind than the one before, %d times back in time", kinds, turns, back)
	}
}

// A uprobe that only counts, by the command.
func TestUprobeCounters(t *testing.T) {
	p := startTight(t)
	s := trace(t, p.PID, "--counters", "p:entry tight", tightLoop)
	n := right(t, p, "go 400")
	r := s.end()
	r.counted(t, "entry", n["tight"], "uprobe")
	r.counted(t, "loop", n["loops"], "jump")
}

// What the kernel's probe can not do is refused with the reason, and a probe of the engine's and
// one of the kernel never stand on the same bytes.
func TestUprobeRefusals(t *testing.T) {
	p := aside(t, "tight")
	for probe, words := range map[string][]string{
		"r:x tight":                  {"return address", "SIGTRAP"},
		"p:x tight s=+0(%dx):string": {"no strings", "another instruction jumps"},
		"p:x tight s=+0(%dx):x32[4]": {"no arrays", "another instruction jumps"},
	} {
		args := []string{"trace", "-p", pid(p), probe}
		if strings.HasPrefix(probe, "r") {
			words = words[:1]
		}
		fails(t, command(t, args...), 1, words...)
	}
	core := open(t, p)
	loop := add(t, core, "", tightLoop)
	if _, err := tryAdd(core, arch.TacticUprobe, "p:x tight+2"); !errors.Is(err, unix.EBUSY) {
		t.Errorf("uprobe under a jump: %v", err)
	}
	held := add(t, core, arch.TacticUprobe, "p:x tight+10")
	if err := core.Remove(loop); err != nil {
		t.Fatal(err)
	}
	held = append(held, add(t, core, arch.TacticUprobe, "p:y tight+5")...)
	if _, err := tryAdd(core, arch.TacticJump, tightLoop); !errors.Is(err, kprobes.ErrRegister) {
		t.Errorf("jump over a uprobe: %v", err)
	}
	n := right(t, p, "go 100")
	if err := core.Close(nil); err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{n["tight"], n["loops"]} {
		if c := core.Counts(held[i]); c.Hits != want {
			t.Errorf("%s: %+v, want %d", held[i].Name, c, want)
		}
	}
}

// A tracer that is killed takes the kernel's probe with it: the program's bytes are its
// own again, and it goes on.
func TestUprobeTracerKilled(t *testing.T) {
	p := startTight(t)
	s := trace(t, p.PID, "--alone", tightEntry, tightLoop)
	at, orig := s.place("tight"), make([]byte, 2)
	if read(t, p.PID, at, orig); orig[0] != 0xcc {
		t.Fatalf("no breakpoint at 0x%x: % x", at, orig)
	}
	p.Send("go 2000")
	within(t, "a line", func() bool { return strings.Contains(s.out.String(), " entry: ") })
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.done
	within(t, "the program's own bytes", func() bool {
		read(t, p.PID, at, orig)
		return bytes.Equal(orig, []byte{0x31, 0xc0})
	})
	if line := p.Line(); !strings.Contains(line, `"tight":4000,`) || !strings.Contains(line, `"bad":0`) {
		t.Errorf("the program says %s", line)
	}
	if o := run(t, command(t, "detach", "-p", pid(p))); o.code != 0 {
		t.Fatal(o)
	}
	again := trace(t, p.PID, tightEntry, tightLoop)
	right(t, p, "go 10")
	r := again.end()
	r.counted(t, "entry", 20, "uprobe")
	s.before.same(t)
}

// place is where a function of the program is.
func (s *session) place(name string) uint64 {
	s.t.Helper()
	p, err := process.OpenUnwaited(s.pid)
	if err != nil {
		s.t.Fatal(err)
	}
	defer p.Close()
	target, err := process.Attach(p, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	m, fn, err := target.Space().Lookup("", name)
	if err != nil {
		s.t.Fatal(err)
	}
	return m.Runtime(fn.Addr)
}

// read reads a process's memory.
func read(t *testing.T, pid int, at uint64, b []byte) {
	t.Helper()
	p, err := process.Open(pid)
	if err != nil {
		t.Fatal("process " + strconv.Itoa(pid) + ": " + err.Error())
	}
	defer p.Close()
	if err := p.ReadMem(at, b); err != nil {
		t.Fatal(err)
	}
}

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
	tracing "kprobes.dev/kprobes/trace"
)

// accessors are the instructions that hit each watchpoint in a round of the program watch, by the names of their labels, with the
// number of times. Where the instruction is not known, the label is that of the next one.
type accessors map[string]uint64

// watchedBy is what the program's source says of watchpoints. A label of the program's names the instruction.
var watchedBy = []struct {
	def, filter string
	by          accessors
}{
	{"w:s1 w@var1+8:1 n=%r12", "", accessors{"store1": 1}},
	{"w:a1 @var1+8:1 n=%r12 at=$addr", "", accessors{"store1": 1, "load1": 1}},
	{"w:s2 w@var2+8:2 n=%r12", "", accessors{"store2": 1}},
	{"w:a2 rw@var2+8:2 n=%r12:u32", "", accessors{"store2": 1, "load2": 1}},
	{"w:s4 w@var4+8:4 n=%r12", "", accessors{"store4": 1, "inner4": 1, "add4": 1}},
	{"w:a4 @var4+8 n=%r12", "", accessors{"store4": 1, "inner4": 1, "add4": 1, "load4": 1}},
	{"w:s8 w@var8+8:8 n=%r12", "", accessors{"store8": 1, "wide8": 1}},
	{"w:a8 rw@var8+8:8 n=%r12", "", accessors{"store8": 1, "wide8": 1, "load8": 1}},
	{"w:byte w@var4+10:1 n=%r12", "", accessors{"store4": 1, "inner4": 1, "add4": 1}},
	{"w:loop w@behind8-16:8 n=%r12 at=$addr", "", accessors{"loop8": 2}},
	{"w:run x@accesses n=%di", "", accessors{"accesses": 1}},
	{"w:some w@var1+8:1 n=%r12", "n >= 100", accessors{"store1": 1}},
	{"w:set w@target8 n=%r12", "", accessors{"set8": 1}},
	{"w:jump @target8 n=%r12", "", accessors{"unknown, before jump8": 1, "unknown, before landed8": 1}},
}

// labels asks the program for the addresses of its instructions.
func labels(t *testing.T, p *testprog.Proc) map[string]uint64 {
	t.Helper()
	var at map[string]uint64
	p.Ask("where", &at)
	if len(at) < 10 {
		t.Fatalf("%v", at)
	}
	return at
}

// TestWatch compares what watchpoints of each length and access tell with what the program does: how often each instruction has
// accessed each variable, in threads that were there and in threads that come, and the number of the round in a register.
func TestWatch(t *testing.T) {
	const rounds, threads = 200, 3
	for group := range slices.Chunk(watchedBy, 4) {
		t.Run(strings.Fields(group[0].def)[0][2:], func(t *testing.T) {
			p := program(t, "watch", strconv.Itoa(threads))
			at := labels(t, p)
			args := []string{"p:late late"} // its jump tells that all stands
			for _, w := range group {
				if args = append(args, w.def); w.filter != "" {
					args = append(args, "-f", w.filter)
				}
			}
			s := trace(t, p.PID, args...)
			n := p.Counts("go " + strconv.Itoa(rounds))["rounds"]
			r := s.end()
			r.whole(t)
			for _, w := range group {
				compareWatch(t, r, strings.Fields(w.def)[0][2:], w.by, w.filter != "", at, n)
			}
		})
	}
}

// compareWatch compares the lines of a watchpoint with the accesses that instructions make in each of n rounds.
func compareWatch(t *testing.T, r result, name string, by accessors, filtered bool, at map[string]uint64, n uint64) {
	t.Helper()
	var all uint64
	want := map[string]uint64{}
	each := map[string]uint64{} // of one round, by all threads
	for label, times := range by {
		all += times * n
		unknown, function := "", "accesses"
		if l, ok := strings.CutPrefix(label, "unknown, before "); ok {
			unknown, label = "unknown, before ", l
		}
		if at[label] >= at["jumps"] && at["jumps"] > at["accesses"] {
			function = "jumps"
		}
		place := fmt.Sprintf("%s%s+0x%x", unknown, function, at[label]-at[function])
		want[place], each[place] = times*n, times*n/200
	}
	r.counted(t, name, all, "watch")
	if filtered {
		for place := range want {
			want[place] /= 2
		}
	}
	got, byRound := map[string]uint64{}, map[string]uint64{}
	for _, l := range r.of(name) {
		place, _, _ := strings.Cut(l.place, "/")
		got[place]++
		round, err := strconv.ParseUint(l.args["n"], 0, 64)
		if err != nil || round >= 200 || filtered && round < 100 {
			t.Fatalf("%s: %+v", name, l)
		}
		byRound[fmt.Sprint(place, " ", round)]++
		if a := l.args["at"]; a != "" && !strings.HasSuffix(a, "8") {
			t.Errorf("%s: the address %s is not 8 bytes behind a multiple of 32", name, a)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s: the program has accessed it at %v, told was %v", name, want, got)
	}
	for k, n := range byRound {
		if place := k[:strings.LastIndexByte(k, ' ')]; n != each[place] {
			t.Errorf("%s: %s: %d times, want %d", name, k, n, each[place])
		}
	}
	if c := r.totals[name]; c.lost != 0 || filtered != (c.filtered != 0) {
		t.Errorf("%s: %+v", name, c)
	}
}

// freeWatchpoints counts the watchpoints that the processor has left for a thread, by the kernel's own answer.
func freeWatchpoints(t *testing.T, tid int) (n int) {
	t.Helper()
	for ; n < 100; n++ {
		attr := unix.PerfEventAttr{
			Type: unix.PERF_TYPE_BREAKPOINT, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitDisabled,
			Bp_type: 2, Ext1: 0x1000, Ext2: 8,
		}
		fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if errors.Is(err, unix.ENOSPC) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	return n
}

// TestWatchFull arms one watchpoint more than the processor has: none of its batch is armed, and those before stay.
func TestWatchFull(t *testing.T) {
	p := aside(t, "watch")
	before := stateOf(t, p.PID)
	core := open(t, p)
	three := add(t, core, "", "w:one @var1", "w:two @var2", "w:three w@loop8+8:8")
	_, err := tryAdd(core, "", "w:four @var4", "w:five @var8")
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "has 4 watchpoints") || !strings.Contains(err.Error(), "one, two, three, four here") {
		t.Errorf("%v, want ENOSPC, and who holds them", err)
	}
	for _, tid := range tasks(t, p.PID) {
		if n := freeWatchpoints(t, tid); n != 1 {
			t.Errorf("thread %d has %d watchpoints left, want 1", tid, n)
		}
	}
	four := add(t, core, "", "w:four x@accesses")
	n := p.Counts("go 50")["rounds"]
	if err := core.Remove(three); err != nil {
		t.Fatal(err)
	}
	p.Counts("go 50")
	if err := core.Close(nil); err != nil {
		t.Fatal(err)
	}
	for e, want := range map[*kprobes.Event]uint64{three[0]: 0, three[2]: 2 * n, four[0]: 2 * n} {
		if c := core.Counts(e); c.Hits != want || c.Hits != c.Read+c.Lost || tacticOf(e) != arch.TacticWatch {
			t.Errorf("%s: %+v, want %d hits", e.Name, c, want)
		}
	}
	for _, tid := range tasks(t, p.PID) {
		if n := freeWatchpoints(t, tid); n != 4 {
			t.Errorf("thread %d has %d watchpoints left, want 4", tid, n)
		}
	}
	before.same(t)
}

// TestWatchOff has watchpoints that only count, that nobody reads, and that are off for a while: what is counted is what the
// program does while they are on, and what is lost is counted.
func TestWatchOff(t *testing.T) {
	p := aside(t, "watch")
	core := open(t, p)
	recorded := add(t, core, "", "w:recorded w@loop8+8:8 n=%r12")[0]
	counted, err := core.Add(parsed(t, "w:counted @var1+8:1"), &kprobes.AddOptions{Count: true})
	if err != nil {
		t.Fatal(err)
	}
	n := p.Counts("go 100")["rounds"]
	if err := core.SetEnabled(false); err != nil {
		t.Fatal(err)
	}
	if free := freeWatchpoints(t, p.PID); free != 4 {
		t.Errorf("%d watchpoints are left while all is off", free)
	}
	p.Counts("go 100")
	if err := core.SetEnabled(true); err != nil {
		t.Fatal(err)
	}
	n += p.Counts("go 60000")["rounds"]
	read := uint64(0)
	if err := core.Close(func(*tracing.Hit) { read++ }); err != nil {
		t.Fatal(err)
	}
	if c := core.Counts(recorded); c.Hits != 2*n || c.Read != read || c.Hits != c.Read+c.Lost || c.Lost == 0 {
		t.Errorf("recorded: %+v, %d read, the program counted %d; some were to be lost", c, read, 2*n)
	}
	if c := core.Counts(counted[0]); c.Hits != 2*n || c.Read+c.Lost != 0 {
		t.Errorf("counted: %+v, the program counted %d", c, 2*n)
	}
}

// A watchpoint ends with its tracer, also if that is killed.
func TestWatchKilled(t *testing.T) {
	p := program(t, "watch")
	s := trace(t, p.PID, "--alone", "p:late late", "w:a @var1", "w:b @var2", "w:c @var4", "w:d @var8")
	if n := freeWatchpoints(t, p.PID); n != 0 {
		t.Errorf("%d watchpoints are left", n)
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.done
	for _, tid := range tasks(t, p.PID) {
		if n := freeWatchpoints(t, tid); n != 4 {
			t.Errorf("thread %d has %d watchpoints left after the tracer was killed", tid, n)
		}
	}
	p.Counts("go 100")
}

// A program that executes another one takes no watchpoint along: its address is another's memory then.
func TestWatchExec(t *testing.T) {
	p := program(t, "watch")
	s := trace(t, p.PID, "p:late late", "w:a w@var1+8:1 n=%r12", "w:b @var2")
	n := p.Counts("go 30")["rounds"]
	p.Send("execute")
	if l := p.Line(); l != "ready" {
		t.Fatalf("%q", l)
	}
	p.Counts("go 30")
	r := s.wait()
	if n := freeWatchpoints(t, p.PID); n != 4 {
		t.Errorf("%d watchpoints are left in the program that is executed", n)
	}
	r.counted(t, "a", n, "watch")
	r.whole(t)
}

// A program that is started is watched from its first instruction to its end.
func TestWatchStart(t *testing.T) {
	path := testprog.Copy(t, testprog.Build(t, "watch"))
	cmd := command(t, "trace", "--format", "json", "-o", tempFile(t, "json"), "w:a w@var1+8:1 n=%r12", "w:plain @plain8", "--", path)
	cmd.Stdin = strings.NewReader("go 20\ngo 20\nquit\n")
	o := run(t, cmd)
	for _, want := range []string{
		`{"event":"wprobes/a","hits":160,"missed":0,"lost":0,"tactic":"watch"}`, `{"event":"wprobes/plain","hits":2,"missed":0,"lost":0,"tactic":"watch"}`,
	} {
		if o.code != 0 || !strings.Contains(o.stderr, want) {
			t.Errorf("want %s: %v", want, o)
		}
	}
	b, err := os.ReadFile(cmd.Args[5])
	if n := strings.Count(string(b), `"event":"wprobes/a"`); err != nil || n != 160 {
		t.Errorf("%d lines, %v", n, err)
	}
}

// TestWatchRegisters compares all registers of a watchpoint with those that a probe at the same instruction records in the same calls.
func TestWatchRegisters(t *testing.T) {
	const names = "ax bx cx dx si di bp sp r8 r9 r10 r11 r12 r13 r14 r15"
	args := ""
	for name := range strings.FieldsSeq(names) {
		args += fmt.Sprintf(" %s=%%%s:x64", name, name)
	}
	p := program(t, "watch", "1")
	s := trace(t, p.PID, "w:watch x@accesses"+args, "p:probe accesses"+args)
	n := p.Counts("go 50")["rounds"]
	r := s.end()
	watched, probed := r.of("watch"), r.of("probe")
	if uint64(len(watched)) != n || uint64(len(probed)) != n || n == 0 {
		t.Fatalf("%d and %d lines, the program counted %d: %v", len(watched), len(probed), n, r.outcome)
	}
	// Two threads make the later calls: each line of the one has its like among those of the other.
	count := map[string]int{}
	for i := range probed {
		count[watched[i].task+fmt.Sprint(watched[i].args)]++
		count[probed[i].task+fmt.Sprint(probed[i].args)]--
	}
	for line, n := range count {
		if n != 0 {
			t.Errorf("%s: %+d lines of the watchpoint", line, n)
		}
	}
	if len(watched[0].args) != len(strings.Fields(names)) || watched[0].args["sp"] == watched[0].args["di"] {
		t.Errorf("%v", watched[0])
	}
}

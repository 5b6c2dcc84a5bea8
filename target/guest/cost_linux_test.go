package guest_test

import (
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testguest"
)

// cost is a row of the table: what a call costs more, in instructions of the guest, with
// probes of the engine's, or with events of the guest's own.
type cost struct {
	name  string
	call  string // for hit
	defs  []string
	count bool   // ours only counts
	off   bool   // ours is disarmed
	own   ownWay // the guest's own, and how it is carried out
	rival string // the row that it is compared with: at most a third of it
}

// ownWay is how the guest's kernel carries out an event of its own.
type ownWay string

const (
	ours      ownWay = ""
	onFtrace  ownWay = "[FTRACE]"
	optimised ownWay = "[OPTIMIZED]"
	byInt3    ownWay = "int3"
	kretprobe ownWay = "kretprobe"
)

const (
	regs3  = " dfd=%di:s32 name=%si:x64 how=%dx:x64"
	name   = " name=+0(%si):ustring"
	kernel = " digits=@hex_asc:string"
)

// costs are the rows. The guest's own come last: they may leave its tracer slower.
var costs = []cost{
	{name: "counter", call: "open", defs: []string{"p do_sys_openat2"}, count: true, rival: "own ftrace"},
	{name: "counter inside", call: "open", defs: []string{"p do_sys_openat2+5"}, count: true, rival: "own optimised"},
	{name: "record", call: "open", defs: []string{"p do_sys_openat2"}, rival: "own ftrace"},
	{name: "record inside", call: "open", defs: []string{"p do_sys_openat2+5"}, rival: "own optimised"},
	{name: "record, 3 registers", call: "open", defs: []string{"p do_sys_openat2" + regs3}, rival: "own ftrace, 3 registers"},
	{name: "record, user's string", call: "open", defs: []string{"p do_sys_openat2" + name}, rival: "own ftrace, user's string"},
	{name: "record, kernel's string", call: "open", defs: []string{"p do_sys_openat2" + kernel}, rival: "own ftrace, kernel's string"},
	{name: "return", call: "open", defs: []string{"r do_sys_openat2 $retval:s32"}, rival: "own kretprobe"},
	{name: "entry and return", call: "open", defs: []string{"p do_sys_openat2", "r do_sys_openat2 $retval:s32"}, rival: "own kretprobe"},
	{name: "disarmed", call: "open", defs: []string{"p do_sys_openat2" + name}, off: true, rival: "own ftrace"},
	{name: "counter", call: "getppid", defs: []string{"p __x64_sys_getppid"}, count: true, rival: "own ftrace"},
	{name: "record", call: "getppid", defs: []string{"p __x64_sys_getppid"}, rival: "own ftrace"},
	{name: "return", call: "getppid", defs: []string{"r __x64_sys_getppid $retval:s32"}, rival: "own kretprobe"},

	{name: "own ftrace", call: "open", defs: []string{"p do_sys_openat2"}, own: onFtrace},
	{name: "own ftrace, 3 registers", call: "open", defs: []string{"p do_sys_openat2" + regs3}, own: onFtrace},
	{name: "own ftrace, user's string", call: "open", defs: []string{"p do_sys_openat2" + name}, own: onFtrace},
	{name: "own ftrace, kernel's string", call: "open", defs: []string{"p do_sys_openat2" + kernel}, own: onFtrace},
	{name: "own optimised", call: "open", defs: []string{"p do_sys_openat2+5"}, own: optimised},
	{name: "own optimised, 3 registers", call: "open", defs: []string{"p do_sys_openat2+5" + regs3}, own: optimised},
	{name: "own int3", call: "open", defs: []string{"p do_sys_openat2+5"}, own: byInt3},
	{name: "own int3, 3 registers", call: "open", defs: []string{"p do_sys_openat2+5" + regs3}, own: byInt3},
	{name: "own kretprobe", call: "open", defs: []string{"r do_sys_openat2 $retval:s32"}, own: kretprobe},
	{name: "own ftrace", call: "getppid", defs: []string{"p __x64_sys_getppid"}, own: onFtrace},
	{name: "own int3", call: "getppid", defs: []string{"p __x64_sys_getppid+5"}, own: byInt3},
	{name: "own kretprobe", call: "getppid", defs: []string{"r __x64_sys_getppid $retval:s32"}, own: kretprobe},
}

// tmpfile are the flags O_TMPFILE|O_RDONLY, which openat refuses before it allocates anything:
// a call that always takes as many instructions, for no file is freed behind it.
const tmpfile = "4259840"

// perCall is the least of several runs, in instructions per call: interrupts only add to it.
func perCall(g *testguest.Guest, call string) float64 {
	least := math.Inf(1)
	for range 3 {
		var c testguest.Counts
		if call == "open" {
			c = g.Hit("openname", costCalls, 0, "/no/such/file", tmpfile, "0")
		} else {
			c = g.Hit(call, costCalls, 0)
		}
		least = min(least, float64(c.Ticks)/float64(c.Calls))
	}
	return least
}

// costCalls is the number of calls of a run: the records of three runs fit the ring.
const costCalls = 2500

// measure measures one row.
func (c *cost) measure(tb testing.TB, g *testguest.Guest, p *probed) float64 {
	if c.own != ours {
		defer c.enableOwn(tb, g)()
		return perCall(g, c.call)
	}
	evs := p.add(&kprobes.AddOptions{Count: c.count, Tactic: "jump"}, c.defs...)
	if c.off {
		if err := p.core.SetEnabled(false); err != nil {
			tb.Fatal(err)
		}
	}
	per := perCall(g, c.call)
	p.poll()
	for _, e := range evs {
		n := p.core.Counts(e)
		if n.Lost+n.Missed != 0 || c.off != (n.Hits == 0) {
			tb.Errorf("%s: %+v", c.name, n)
		}
	}
	if err := p.core.SetEnabled(true); err != nil {
		tb.Fatal(err)
	}
	if err := p.core.Remove(evs); err != nil {
		tb.Fatal(err)
	}
	p.hits = nil
	return per
}

const optimization = "/proc/sys/debug/kprobes-optimization"

// enableOwn makes the guest's own events, waits until they are carried out the way that is
// to be measured, and returns what removes them.
func (c *cost) enableOwn(tb testing.TB, g *testguest.Guest) (remove func()) {
	must := func(path, text string, trunc bool) {
		tb.Helper()
		if e := g.Write(path, text, trunc); e != 0 {
			tb.Fatalf("%s: %s: %v", path, text, e)
		}
	}
	must(optimization, map[bool]string{true: "0", false: "1"}[c.own == byInt3], true)
	for _, d := range c.defs {
		must(tracing+"kprobe_events", strings.Replace(d, " ", ":cost ", 1)+"\n", false)
	}
	must(own+"enable", "1", true)
	for tries := 0; !c.carriedOut(g); tries++ {
		if tries == 10_000 {
			tb.Fatalf("%s: not carried out as %q", c.name, c.own)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return func() {
		must(own+"enable", "0", true)
		must(tracing+"trace", "", true)
		if e := g.Write(tracing+"kprobe_events", "", true); e != 0 && e != syscall.EBUSY {
			tb.Fatal(e)
		}
		must(optimization, "1", true)
	}
}

// carriedOut says whether the guest's kernel tells of its probe what is expected.
func (c *cost) carriedOut(g *testguest.Guest) bool {
	list := g.Shell("cat /sys/kernel/debug/kprobes/list")
	switch c.own {
	case byInt3:
		return list != "" && !strings.Contains(list, string(optimised)) && !strings.Contains(list, string(onFtrace))
	case kretprobe:
		return strings.Contains(list, "  r  ")
	default:
		return strings.Contains(list, string(c.own))
	}
}

// measureCosts gives what each row costs, by call and name.
func measureCosts(tb testing.TB) (base map[string]float64, more map[string]float64) {
	g := testguest.Boot(tb, &testguest.Options{CPUs: 1, Icount: true})
	p := attach(tb, g, nil)
	base = map[string]float64{"open": perCall(g, "open"), "getppid": perCall(g, "getppid")}
	more = map[string]float64{}
	for i := range costs {
		c := &costs[i]
		more[c.call+" "+c.name] = c.measure(tb, g, p) - base[c.call]
	}
	return base, more
}

// costTable is the table as text.
func costTable(base, more map[string]float64) string {
	var b strings.Builder
	for _, call := range []string{"open", "getppid"} {
		fmt.Fprintf(&b, "%-8s %-28s %8.1f\n", call, "un-probed", base[call])
		for i := range costs {
			if c := &costs[i]; c.call == call {
				fmt.Fprintf(&b, "%-8s %-28s %+8.1f\n", call, c.name, more[call+" "+c.name])
			}
		}
	}
	return b.String()
}

// TestCost compares in one run what probes of the engine's cost with what the guest's own do.
func TestCost(t *testing.T) {
	base, more := measureCosts(t)
	t.Logf("instructions of the guest per call:\n%s", costTable(base, more))
	for i := range costs {
		c := &costs[i]
		if c.own != ours {
			continue
		}
		if us, it := more[c.call+" "+c.name], more[c.call+" "+c.rival]; us > it/3 || it < 300 {
			t.Errorf("%s, %s: %+.1f instructions, the guest's own (%s) %+.1f", c.call, c.name, us, c.rival, it)
		}
	}
	for _, call := range []string{"open disarmed"} {
		if d := more[call]; math.Abs(d) > 5 {
			t.Errorf("%s: %+.1f instructions", call, d)
		}
	}
}

// BenchmarkCost prints the table: go test ./target/guest -run '^$' -bench Cost -benchtime 1x -v.
func BenchmarkCost(b *testing.B) {
	for b.Loop() {
		base, more := measureCosts(b)
		b.Logf("instructions of the guest per call:\n%s", costTable(base, more))
		b.ReportMetric(more["open record"], "instr/record")
		b.ReportMetric(more["open record, user's string"], "instr/string")
		b.ReportMetric(more["open return"], "instr/return")
	}
}

// TestKmodCost holds what a handler of a module takes, which counts, to a third of what an event of the guest's own does.
func TestKmodCost(t *testing.T) {
	m := attachModules(t, testguest.Boot(t, &testguest.Options{CPUs: 1, Icount: true}))
	bare := perCall(m.g, "getppid")
	m.insert("testdata/cost.c")
	handler := perCall(m.g, "getppid") - bare
	m.remove("cost")
	if lines, want := m.log(), fmt.Sprintf("%d calls", 3*costCalls); len(lines) != 1 || lines[0] != want {
		t.Errorf("the log: %q, want %q", lines, want)
	}
	own := (&cost{call: "getppid", defs: []string{"p __x64_sys_getppid"}, own: onFtrace}).measure(t, m.g, nil) - bare
	t.Logf("instructions: %.0f of a call, %.0f more with a handler of a module, %.0f with an event of the guest's own", bare, handler, own)
	if handler <= 0 || handler > own/3 {
		t.Errorf("a handler of a module takes %.0f instructions, an event of the guest's own %.0f", handler, own)
	}
}

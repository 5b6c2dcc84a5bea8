package e2e

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
	tracing "kprobes.dev/kprobes/trace"
)

// A program that installs a handler for SIGSEGV of its own, after it was probed, does not see
// the faults of arguments, whose pointers are bad here.
func TestOwnHandlerLater(t *testing.T) {
	p := program(t, "sigmask", "none")
	s := trace(t, p.PID, "p:a masked_work v=+0(%di):u64 s=+0(%di):string")
	for _, command := range []string{"go 50", "own", "go 50", "disown", "go 50"} {
		if c := right(t, p, command); c["bad"] != 0 {
			t.Errorf("%s: %v", command, c)
		}
	}
	o := s.end()
	if n := strings.Count(o.stdout, " v=0 s=(fault)"); n != 300 {
		t.Errorf("%d lines of 300:\n%.500s", n, o.stdout)
	}
}

// A Go program installs its handlers when its runtime starts, after it was armed.
func TestOwnHandlerOfStartedGo(t *testing.T) {
	cmd := command(t, "trace", "p:a main.Load v=+0(%ax):u64 s=+0(%ax):string", "--", testprog.Build(t, "gohard"))
	cmd.Stdin = strings.NewReader("go 40\nquit\n")
	o := run(t, cmd)
	lines, nils := strings.Count(o.stdout, ": a: ("), strings.Count(o.stdout, " v=0 s=(fault)")
	if o.code != 0 || lines != 80 || nils != 20 || !strings.Contains(o.stdout, `"nils":20}`) {
		t.Errorf("%d lines of 80, %d of them with nil pointers, of 20: %v", lines, nils, o)
	}
}

// BenchmarkLoads tells what the hit of a record costs by the number of its arguments that
// read memory, where the thread blocks no signal and where it blocks all.
func BenchmarkLoads(b *testing.B) {
	modes := map[string]*testprog.Proc{"open": program(b, "sigmask", "none"), "blocked": program(b, "sigmask", "all")}
	for b.Loop() {
		for name, p := range modes {
			base := perCall(p)
			for _, loads := range []int{0, 1, 3} {
				def := "p:a masked_work a=%di" + strings.Repeat(" @todo:u64", loads)
				s := trace(b, p.PID, "--stat", "--buffer-size", "67108864", def)
				b.ReportMetric(perCall(p)-base, fmt.Sprintf("%s-%d-loads-ns/hit", name, loads))
				s.end()
			}
		}
	}
}

// perCall is the time of one call of the program's function, in nanoseconds.
func perCall(p *testprog.Proc) float64 {
	const calls, rounds = 100_000, 9
	var times []float64
	for range rounds {
		start := time.Now()
		p.Counts(fmt.Sprint("go ", calls))
		times = append(times, float64(time.Since(start))/calls)
	}
	return median(times)
}

// TestGoLoadsAskNothing: a record of a Go program without C whose arguments read memory makes no system call, and a bad
// pointer harms nobody.
func TestGoLoadsAskNothing(t *testing.T) {
	for name, flags := range map[string][]string{"static": nil, "pie": {"-buildmode=pie"}} {
		flags = append(flags, "CGO_ENABLED=0")
		t.Run(name, func(t *testing.T) {
			goLoads(t, testprog.Build(t, "gohard", flags...))
			goLoadsCalls(t, testprog.Build(t, "goloads", flags...))
		})
	}
}

// TestGoLoadsWithC: in a Go program with C code a record asks which signals its thread blocks once for each time that the thread has called C. What C
// does to masks and handlers harms nobody whose pointers are bad: on threads of Go's, from C, and on threads that C has made.
func TestGoLoadsWithC(t *testing.T) {
	goLoadsCalls(t, testprog.Build(t, "goloads", "CGO_ENABLED=1"))
	const n = 400
	p := testprog.Start(t, testprog.Build(t, "goloads", "CGO_ENABLED=1", "-tags=masks"))
	core := open(t, p)
	e := add(t, core, "", lookProbes[0])[0]
	tg := core.Target().(*process.Target)
	if !tg.FaultsCaught(e.Place().Addr) || tg.CodegenEnv().Masks == nil {
		t.Error("records of main.Look always ask the kernel")
	}
	calls, bad := uint64(0), uint64(0)
	for _, command := range []string{"good", "go", "block", "go", "back", "go", "thread", "go", "action", "go", "block", "thread"} {
		c := right(t, p, fmt.Sprint(command, " ", n))
		calls, bad = calls+c["calls"], bad+c["faults"]
	}
	faults := closedFaults(t, core)
	if c := core.Counts(e); c.Hits != calls || faults != bad || calls < 24*n {
		t.Errorf("%+v, %d faults; the program made %d calls, %d of them with bad pointers", c, faults, calls, bad)
	}
}

// closedFaults closes a Core and counts the records whose second argument, a string, could not be read.
func closedFaults(t *testing.T, core *kprobes.Core) (faults uint64) {
	t.Helper()
	if err := core.Close(func(h *tracing.Hit) {
		vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, "")
		if err != nil {
			t.Fatal(err)
		}
		if vs[1].Fault {
			faults++
		}
	}); err != nil {
		t.Error(err)
	}
	return faults
}

func goLoads(t *testing.T, program string) {
	const n = 2000
	p := testprog.Start(t, program, "1")
	core := open(t, p)
	e := add(t, core, "", "p:a main.Load v=+0(%ax):u64 s=+0(%ax):string w=+8(%ax):u64")[0]
	tg := core.Target().(*process.Target)
	if at := e.Place(); !tg.FaultsCaught(at.Addr) || at.Offset != 0 {
		t.Error("records of main.Load ask the kernel")
	}
	for _, fn := range []string{"runtime.sigtramp", "runtime.mstart", "runtime.sighandler"} {
		r, err := tg.Space().Resolve(symbol.Place{Sym: fn})
		if err != nil {
			t.Fatal(err)
		}
		if tg.FaultsCaught(r.Addr) {
			t.Errorf("%s runs with signals blocked", fn)
		}
	}
	before := right(t, p, "count")
	p.Counts(fmt.Sprint("go ", n))
	after := right(t, p, "count")
	faults := closedFaults(t, core)
	if c := core.Counts(e); c.Hits != after["main.Load"]-before["main.Load"] || faults != after["nils"]-before["nils"] || faults == 0 {
		t.Errorf("%+v, %d faults, the program counts %v, then %v", c, faults, before, after)
	}
}

// TestGoOwnHandler: a Go program that sets the action of SIGSEGV by the system call itself, after it was probed, does not
// die of bad pointers.
func TestGoOwnHandler(t *testing.T) {
	for _, env := range []string{"CGO_ENABLED=0", "CGO_ENABLED=1"} {
		t.Run(env, func(t *testing.T) { goOwnHandler(t, testprog.Build(t, "goloads", env, "-tags=acts")) })
	}
}

func goOwnHandler(t *testing.T, program string) {
	const calls = 160
	p := testprog.Start(t, program)
	core := open(t, p)
	e := add(t, core, "", lookProbes[0])[0]
	for _, command := range []string{"go", "own", "go"} {
		right(t, p, fmt.Sprint(command, " ", calls))
	}
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	if c := core.Counts(e); c.Hits != 3*calls {
		t.Errorf("%+v", c)
	}
}

// goLoadsCalls counts the system calls of records.
func goLoadsCalls(t *testing.T, program string) {
	const calls, rounds = 200, 10
	p := testprog.Start(t, program)
	core := open(t, p)
	e := add(t, core, "", lookProbes[0])[0]
	want := map[uint64]int{unix.SYS_WRITE: 1} // the answer
	var seen []string
	good := false // one round without other calls is enough
	for range rounds {
		c, err := testprog.SystemCalls(p.PID, func() { p.Send(fmt.Sprint("good ", calls)) })
		if err != nil {
			t.Fatal(err)
		}
		p.Line()
		good = good || maps.Equal(testprog.WithoutRuntime(c, calls), want)
		seen = append(seen, fmt.Sprint(c))
	}
	if !good {
		t.Errorf("system calls in rounds of %d records %s, want %v", calls, seen, want)
	}
	right(t, p, fmt.Sprint("go ", calls))
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	if c := core.Counts(e); c.Hits != (rounds+1)*calls {
		t.Errorf("%+v", c)
	}
}

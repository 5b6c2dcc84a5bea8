package e2e

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// timedCalls are the calls of the program timed, by their numbers: how long each has taken by the program's own clock, at least and at
// most.
type timedCalls struct{ Inner, Outer []uint64 }

// slack is how far two clocks may be apart over a time: the engine's is measured against the kernel's.
func slack(ns uint64) uint64 { return ns/500 + 200 }

// goTimed has the program make calls.
func goTimed(t *testing.T, p *testprog.Proc, calls int) (c timedCalls) {
	t.Helper()
	p.Ask("go "+strconv.Itoa(calls), &c)
	if len(c.Inner) == 0 || len(c.Outer) != len(c.Inner) {
		t.Fatalf("%d and %d calls", len(c.Inner), len(c.Outer))
	}
	return c
}

// TestDuration compares the duration of calls with what the program's own clock says inside and around each: at return instructions, and
// behind a jump to another function, by a trampoline. A filter on it lets pass what it says.
func TestDuration(t *testing.T) {
	p := program(t, "timed")
	out := tempFile(t, "trace")
	s := trace(t, p.PID, "-o", out, "r:plain timed_plain id=$arg1:u64 ns=$duration", "r:jump timed_jump id=$arg1:u64 ns=$duration",
		"r:slow timed_plain id=$arg1:u64 us=$duration:u32", "-f", "us >= 1000000")
	c := goTimed(t, p, 500)
	r := s.end()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	r.stdout = string(b)
	r.lines = linesOf(r.stdout)
	seen, slow := make([]int, len(c.Inner)), make([]int, len(c.Inner))
	for _, l := range r.lines {
		id, err := strconv.ParseUint(l.args["id"], 10, 64)
		if err != nil || id >= uint64(len(seen)) {
			t.Fatalf("%+v", l)
		}
		if l.event == "slow" {
			slow[id]++
			continue
		}
		seen[id]++
		ns, err := strconv.ParseUint(l.args["ns"], 10, 64)
		if in, all := c.Inner[id], c.Outer[id]; err != nil || ns+slack(ns) < in || ns > all+slack(all) || l.event == "jump" != (id&1 == 1) {
			t.Errorf("%s, call %d: %s ns, by the program's clock %d to %d", l.event, id, l.args["ns"], in, all)
		}
	}
	passed := 0
	for id := range seen {
		if seen[id] != 1 {
			t.Errorf("call %d: %d lines", id, seen[id])
		}
		const limit = 1000000
		in, all, even := c.Inner[id], c.Outer[id], id&1 == 0
		passed += slow[id]
		if slow[id] > 0 && (!even || all+slack(all) < limit) || even && slow[id] != 1 && in > limit+slack(in) {
			t.Errorf("call %d: %d lines that passed the filter, of %d to %d ns", id, slow[id], in, all)
		}
	}
	if passed == 0 {
		t.Error("no call has passed the filter")
	}
	r.whole(t)
	for _, e := range []string{"plain", "jump"} {
		r.counted(t, e, uint64(len(seen)/2), "jump")
	}
}

// TestDurationHistogram compares a histogram of the durations of calls, made by the code at the hit, with the program's own clock: as
// many calls lie below each power of two as by what the clock says around them, at least, and inside of them, at most.
func TestDurationHistogram(t *testing.T) {
	p := program(t, "timed")
	out := tempFile(t, "hist")
	s := &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
	s.start(command(t, "hist", "-p", strconv.Itoa(p.PID), "-o", out, "r:plain timed_plain ns=$duration", "keys=ns.log2:vals=ns:sort=ns",
		"r:jump timed_jump ns=$duration", "keys=ns.log2:vals=ns:sort=ns"))
	s.armed()
	c := goTimed(t, p, 2000)
	s.end()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range histogramsIn(t, string(b)) {
		if h.total != uint64(len(c.Inner)/2) || h.dropped != 0 {
			t.Errorf("%d hits, %d dropped, want %d", h.total, h.dropped, len(c.Inner)/2)
		}
		below, sum, least, most := uint64(0), uint64(0), uint64(0), uint64(0)
		for id := i; id < len(c.Inner); id += 2 {
			least += c.Inner[id] - min(slack(c.Inner[id]), c.Inner[id])
			most += c.Outer[id] + slack(c.Outer[id])
		}
		for k := range 64 {
			below += h.hits["ns: ~ 2^"+strconv.Itoa(k)]
			sum += h.sums["ns: ~ 2^"+strconv.Itoa(k)]
			lo, hi := uint64(0), uint64(0)
			for id := i; id < len(c.Inner); id += 2 {
				if in, all := c.Inner[id], c.Outer[id]; all+slack(all) <= 1<<k {
					lo++
					hi++
				} else if in <= 1<<k+slack(in) {
					hi++
				}
			}
			if below < lo || below > hi {
				t.Errorf("%d: %d calls up to 2^%d ns, by the program's clock %d to %d", i, below, k, lo, hi)
			}
		}
		if sum < least || sum > most {
			t.Errorf("%d: %d ns, by the program's clock %d to %d", i, sum, least, most)
		}
	}
}

// commandTime is a line of INFO commandstats: a command, its calls, and the microseconds that they have taken.
var commandTime = regexp.MustCompile(`cmdstat_(\w+):calls=(\d+),usec=(\d+)`)

// TestRedisLatency compares the time of Redis's commands by their names with what the server measures itself: from within call, around
// the command's function. It looks at a clock of microseconds.
func TestRedisLatency(t *testing.T) {
	r := startRedis(t, redisPath(t))
	out := tempFile(t, "hist")
	s := &session{t: t, pid: r.proc.PID, before: stateOf(t, r.proc.PID)}
	s.start(command(t, "hist", "-p", strconv.Itoa(r.proc.PID), "-o", out,
		"r:call call name=+0(+8(+0(+80($arg1)))):string ns=$duration", "keys=name:vals=ns:sort=ns",
		"r:bits bitcountCommand key=+0(+8(+8(+80($arg1)))):string ns=$duration", "keys=key:vals=ns"))
	s.armed()
	r.ask("CONFIG RESETSTAT")
	r.ask("SETRANGE large 4000000 x")
	r.ask("SETRANGE small 400000 x")
	const calls = 200
	for range calls {
		r.ask("BITCOUNT large")
		r.ask("BITCOUNT small")
		r.ask("STRLEN large")
	}
	type taken struct{ calls, us uint64 }
	own := map[string]taken{}
	for _, m := range commandTime.FindAllStringSubmatch(r.ask("INFO commandstats"), -1) {
		n, _ := strconv.ParseUint(m[2], 10, 64)
		us, _ := strconv.ParseUint(m[3], 10, 64)
		own[m[1]] = taken{n, us}
	}
	s.end()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	hs := histogramsIn(t, string(b))
	for name, c := range map[string]uint64{"BITCOUNT": 2 * calls, "STRLEN": calls, "SETRANGE": 2} {
		o := own[strings.ToLower(name)]
		hits, ns := hs[0].hits["name: "+name], hs[0].sums["name: "+name]
		if hits != c || o.calls != c || ns+slack(ns) < 1000*(o.us-min(o.us, c)) {
			t.Errorf("%s: %d calls of %d ns, the server says %+v", name, hits, ns, o)
		}
	}
	large, small := hs[1].sums["key: large"], hs[1].sums["key: small"]
	if o := own["bitcount"]; hs[1].hits["key: large"] != calls || hs[1].hits["key: small"] != calls || large+small > 1000*(o.us+o.calls)+slack(large) || large <= small {
		t.Errorf("%d and %d ns, the server says %+v", large, small, o)
	}
}

// TestGoHandlerLatency compares the time of a Go server's handler by the kind of the request, a string that it is called with, with what the
// server's own clock says inside and around each call. The handler recovers from panics, and its stack moves.
func TestGoHandlerLatency(t *testing.T) {
	p := hardGo(t, "goserver", nil)
	out := tempFile(t, "hist")
	s := &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
	s.start(command(t, "hist", "-p", strconv.Itoa(p.PID), "-o", out, "r:handle main.Handle kind ns=$duration", "keys=kind:vals=ns:sort=ns",
		"r:each main.Handle kind n ns=$duration", "keys=kind,n:vals=ns"))
	s.armed()
	const calls = 3000
	var counts map[string]uint64
	p.Ask("load "+strconv.Itoa(calls)+" 4", &counts)
	own := map[string]struct{ Calls, Inner, Outer uint64 }{}
	p.Ask("times", &own)
	r := s.end()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if counts["bad"] > 0 || counts["recovered"] != calls/3 || len(own) != 3 {
		t.Fatalf("%v, %v", counts, own)
	}
	hs := histogramsIn(t, string(b))
	if len(hs) != 2 || hs[0].total != calls || hs[1].total != calls || hs[0].dropped+hs[1].dropped != 0 {
		t.Fatalf("%s", b)
	}
	r.entered(t, "handle", calls, 0)
	for kind, o := range own {
		hits, ns := hs[0].hits["kind: "+kind], hs[0].sums["kind: "+kind]
		// The slack of two clocks is that of a call.
		if room := ns/500 + 200*hits; hits != calls/3 || o.Calls != hits || ns+room < o.Inner || ns > o.Outer+room {
			t.Errorf("%s: %d calls of %d ns, the server says %+v", kind, hits, ns, o)
		}
	}
}

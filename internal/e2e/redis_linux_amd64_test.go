package e2e

import (
	"debug/elf"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"kprobes.dev/kprobes/internal/kuprobe"
	"kprobes.dev/kprobes/internal/testprog"
)

// Probes on redis-server 7.0. client: argc at 72, argv at 80; robj: its type in the low
// four bits of the word at 0, ptr at 8; for a string ptr leads to the text.
const (
	processCommand = "p:cmd processCommand argc=+72(%di):s32 name=+0(+8(+0(+80(%di)))):string"
	lookupKey      = "r:look lookupKey key=+0(+8($arg2)):string flags=$arg3:u32 val=$retval type=+0($arg2):b4@0/32"
)

// lookupWrite is LOOKUP_WRITE of redis 7.0.
const lookupWrite = 1 << 3

// sum adds the calls that the server counted: one run of processCommand each.
func sum(calls map[string]uint64) (n uint64) {
	for _, c := range calls {
		n += c
	}
	return n
}

// Every command that the server counts hits processCommand once, and every lookup of a
// key lookupKey: exactly, with 400,000 commands, whether or not the reader keeps pace.
func TestRedisCounts(t *testing.T) {
	const n = 50_000
	r := startRedis(t, redisPath(t))
	for _, mode := range [][]string{{"--stat"}, {"--stat", "--counters"}} {
		s := trace(t, r.proc.PID, append(mode, processCommand, lookupKey)...)
		r.ask("CONFIG RESETSTAT") // counts as one call, after it has reset
		r.load(n, "-r", "1000")
		calls := r.calls()
		out := s.end()
		if calls["get"] != n || calls["set"] != n {
			t.Fatalf("%v: the server counted %v", mode, calls)
		}
		out.counted(t, "cmd", sum(calls)+1, "jump") // and the INFO itself
		out.counted(t, "look", 2*n, "jump")
		for e, c := range out.totals {
			t.Logf("%v: %s: %d of %d records found the ring full", mode, e, c.lost, c.hits)
		}
	}
}

// TestRedisUsers has two users of a server under load, one of which is killed: the other's counts stay those of the server, also where
// it came second.
func TestRedisUsers(t *testing.T) {
	const n = 100_000
	r := startRedis(t, redisPath(t))
	before := stateOf(t, r.proc.PID)
	for _, first := range []bool{true, false} {
		killed := joins(t, r.proc, 2, "trace", "--stat", processCommand, lookupKey)
		stays := joins(t, r.proc, 2, "trace", "--stat", processCommand, lookupKey)
		if !first {
			killed, stays = stays, killed
		}
		r.ask("CONFIG RESETSTAT")
		done := make(chan error, 1)
		go func() { done <- killed.cmd.Process.Kill() }()
		r.load(n, "-r", "1000")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		within(t, "the killed one's probes to go", func() bool { return points(t, r.proc.PID) == 2 })
		calls := r.calls()
		stays.interrupt()
		out := stays.wait()
		if out.code != 0 || calls["get"] != n || calls["set"] != n {
			t.Fatalf("the server counted %v: %v", calls, out.outcome)
		}
		out.counted(t, "cmd", sum(calls)+1, "jump")
		out.counted(t, "look", 2*n, "jump")
	}
	before.same(t)
}

var benchmarkKey = regexp.MustCompile(`^"key:0000000000\d\d"$`)

// Each printed record has the values of its call: the command and its number of words,
// the key, what kind of lookup it is, and whether the key was found, which the server
// counts for itself.
func TestRedisValues(t *testing.T) {
	const n = 3_200 // whole pipelines of 16; with strings in them all records fit in 1 MiB, whatever the reader's pace
	r := startRedis(t, redisPath(t))
	s := trace(t, r.proc.PID, "--buffer-size", "67108864", processCommand, lookupKey)
	r.ask("CONFIG RESETSTAT")
	r.load(n, "-r", "80")
	calls := r.calls()
	hits, misses := r.stat("keyspace_hits"), r.stat("keyspace_misses")
	out := s.end()
	out.whole(t)
	got := map[string]uint64{}
	for _, l := range out.lines {
		if l.event == "cmd" {
			got[l.args["name"]+l.args["argc"]]++
			continue
		}
		if !benchmarkKey.MatchString(l.args["key"]) || l.args["type"] != "0" {
			t.Fatalf("%+v: not a key of the benchmark", l)
		}
		got[lookup(t, l)]++
	}
	want := map[string]uint64{
		`"SET"3`: calls["set"], `"GET"2`: calls["get"], `"CONFIG"2`: 1, `"CONFIG"3`: calls["config|get"], `"INFO"2`: 3,
		"read found": hits, "read not found": misses,
	}
	if calls["set"] != n || got["write found"]+got["write not found"] != n {
		t.Errorf("%d and %d lookups for writing, want %d", got["write found"], got["write not found"], n)
	}
	for what, c := range want {
		if got[what] != c {
			t.Errorf("%s: %d times, the server counted %d", what, got[what], c)
		}
	}
}

// lookup names a line's kind of lookup and its outcome.
func lookup(t testing.TB, l line) string {
	t.Helper()
	flags, err := strconv.ParseUint(l.args["flags"], 10, 32)
	val, verr := strconv.ParseUint(l.args["val"], 0, 64)
	if err != nil || verr != nil {
		t.Fatalf("%+v: %v, %v", l, err, verr)
	}
	what := "read"
	if flags&lookupWrite != 0 {
		what = "write"
	}
	if val == 0 {
		return what + " not found"
	}
	return what + " found"
}

// cost is what a way of probing costs the server.
type cost struct {
	rate []float64 // commands a second
	cpu  []float64 // nanoseconds of the server's CPU per command
}

// measure loads a server and notes what it took.
func (c *cost) measure(r *redis, n int) {
	before := r.cpu()
	c.rate = append(c.rate, r.load(n))
	c.cpu = append(c.cpu, float64(r.cpu()-before)/float64(2*n))
}

// ratios compares the throughput with that of another way, round by round.
func (c *cost) ratios(base *cost) []float64 {
	var out []float64
	for i, r := range c.rate {
		out = append(out, r/base.rate[i])
	}
	return out
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// BenchmarkRedis compares, in rounds that alternate, a server that is not probed with one
// whose runs of processCommand and lookupKey are counted, and recorded with arguments, by
// us and by the kernel's uprobes (on a server started from a copy of the program). It
// reports the throughput as a ratio, the server's CPU per command, and, from that, the
// cost of a hit. A command hits twice.
func BenchmarkRedis(b *testing.B) {
	const n, hits = 150_000, 2
	if _, err := kuprobe.Mount(); err != nil {
		b.Fatalf("%v: run as root", err)
	}
	path := testprog.Copy(b, redisPath(b))
	ours, theirs := startRedis(b, redisPath(b)), startRedis(b, path)
	names := []string{"none", "counters", "records", "theirs", "uprobe-counters", "uprobe-records"}
	costs := map[string]*cost{}
	for _, name := range names {
		costs[name] = &cost{}
	}
	for b.Loop() {
		costs["none"].measure(ours, n)
		for name, args := range map[string][]string{"counters": {"--stat", "--counters"}, "records": {"--stat"}} {
			s := trace(b, ours.proc.PID, append(args, processCommand, lookupKey)...)
			costs[name].measure(ours, n)
			s.end()
		}
		costs["theirs"].measure(theirs, n)
		for name, record := range map[string]bool{"uprobe-counters": false, "uprobe-records": true} {
			placed(b, path, record, func() { costs[name].measure(theirs, n) })
		}
	}
	for _, name := range names {
		base := costs["none"]
		if name == "theirs" || name[0] == 'u' {
			base = costs["theirs"]
		}
		c := costs[name]
		b.ReportMetric(median(c.cpu), name+"-cpu-ns/cmd")
		if c != base {
			b.ReportMetric(100*median(c.ratios(base)), name+"-throughput-%")
			b.ReportMetric((median(c.cpu)-median(base.cpu))/hits, name+"-ns/hit")
		}
	}
}

// placed runs f with the kernel's probes on both functions.
func placed(b testing.TB, path string, record bool, f func()) {
	b.Helper()
	for _, p := range []kuprobe.Tracefs{
		{Place: exported(b, path, "processCommand"), Args: "argc=+72(%di):s32 name=+0(+8(+0(+80(%di)))):string"},
		{Place: exported(b, path, "lookupKey"), Args: "val=$retval:u64"},
	} {
		p.Record = record
		p.Return = p.Args == "val=$retval:u64"
		probe, err := p.Open()
		if err != nil {
			b.Fatal(err)
		}
		defer func() {
			if n, err := probe.Count(); err != nil || n == 0 {
				b.Errorf("uprobe on %+v: %d hits, %v", p.Place, n, err)
			}
			if err := probe.Close(); err != nil {
				b.Error(err)
			}
		}()
	}
	f()
}

// exported finds the place of a dynamic symbol in a program's file.
func exported(t testing.TB, path, name string) kuprobe.Place {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		for _, p := range f.Progs {
			if s.Name == name && p.Type == elf.PT_LOAD && s.Value-p.Vaddr < p.Filesz {
				return kuprobe.Place{Path: path, Offset: s.Value - p.Vaddr + p.Off}
			}
		}
	}
	t.Fatalf("%s: no dynamic symbol %s", path, name)
	return kuprobe.Place{}
}

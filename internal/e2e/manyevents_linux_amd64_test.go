package e2e

import (
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

// manyEvents is how many events are armed at once; half of them with histograms.
const manyEvents = 100

// busyFunctions finds functions of a server that commands run, each at most twice in one.
func busyFunctions(t testing.TB, r *redis, core *kprobes.Core) (names []string) {
	t.Helper()
	const n = 2000
	d, err := event.Parse("p *")
	if err != nil {
		t.Fatal(err)
	}
	evs, err := core.Add([]*event.Def{d}, &kprobes.AddOptions{Count: true, Skip: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	r.load(n, "-P", "1")
	for _, e := range evs {
		if hits := core.Counts(e).Hits; hits >= n/2 && hits <= 4*n && !strings.HasPrefix(e.Place().Symbol, "0x") {
			names = append(names, e.Place().Symbol)
		}
	}
	if err := core.Remove(evs); err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Fatal("the load runs no function")
	}
	return names
}

// addMany adds the events, round the functions, with a filter on the first argument.
func addMany(t testing.TB, core *kprobes.Core, names []string, filter string) []*kprobes.Event {
	t.Helper()
	var defs []*event.Def
	for i := range manyEvents {
		d, err := event.Parse(fmt.Sprintf("p:e%d %s n=$arg1:u64", i, names[i%len(names)]))
		if err != nil {
			t.Fatal(err)
		}
		if d.Filter = filter; i%2 == 1 {
			if d.Hist, err = event.ParseHist("keys=n.log2"); err != nil {
				t.Fatal(err)
			}
		}
		defs = append(defs, d)
	}
	evs, err := core.Add(defs, nil)
	if err != nil {
		t.Fatal(err)
	}
	return evs
}

// memory is what the tracer has allocated, after a collection, and what the target has in memory, in KiB.
func (r *redis) memory() (own, its uint64) {
	r.t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text, _, _ := strings.Cut(field(r.t, r.proc.PID, r.proc.PID, "VmRSS"), " ")
	its, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		r.t.Fatal(err)
	}
	return m.HeapAlloc >> 10, its
}

// TestManyEvents records and counts on a loaded server: all hits are accounted for, and the memory of both sides stays what it was.
// A long run goes on for minutes.
func TestManyEvents(t *testing.T) {
	// In KiB: the reader keeps room for the largest batch that it has met, at most that of the rings; the server's allocator swings.
	const ownRoom, itsRoom = 64 << 10, 8 << 10
	r := startRedis(t, redisPath(t))
	core := open(t, r.proc)
	names := busyFunctions(t, r, core)
	evs := addMany(t, core, names, "n & 16")
	stop, ended := make(chan struct{}), make(chan uint64)
	go func() {
		read := uint64(0)
		for {
			core.Poll(func(*kprobes.Hit) { read++ })
			select {
			case <-stop:
				ended <- read
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	r.load(20000)
	own, its := r.memory()
	for end := time.Now().Add(lasting(time.Second)); time.Now().Before(end); {
		r.load(20000)
	}
	own2, its2 := r.memory()
	close(stop)
	read := <-ended
	if err := core.Close(func(*kprobes.Hit) { read++ }); err != nil {
		t.Fatal(err)
	}
	if own2 > own+ownRoom || its2 > its+itsRoom {
		t.Errorf("memory in KiB: the tracer had %d, then %d; the server %d, then %d", own, own2, its, its2)
	}
	recorded := uint64(0) // by those that record
	for i, e := range evs {
		c := core.Counts(e)
		sum := c.Read + c.Lost
		if i%2 == 1 {
			h, err := core.Histogram(e)
			if err != nil {
				t.Fatal(err)
			}
			sum = h.Dropped()
			for _, one := range h.Entries() {
				sum += one.Hits
			}
		}
		if i%2 == 0 {
			recorded += c.Read
		}
		if c.Hits != sum+c.Filtered || c.Missed != 0 {
			t.Errorf("%s: %d in records or the histogram: %+v", e.Name, sum, c)
		}
	}
	if recorded != read || read == 0 {
		t.Errorf("%d records were read, the events have %d", read, recorded)
	}
	t.Logf("%d functions, %d records read; memory in KiB: the tracer %d, then %d; the server %d, then %d", len(names), read, own, own2, its, its2)
}

// commandFunctions finds the functions that carry commands out.
func commandFunctions(t testing.TB, r *redis, core *kprobes.Core) (names []string) {
	t.Helper()
	d, err := event.Parse("p [gshlrzpim]*Command")
	if err != nil {
		t.Fatal(err)
	}
	evs, err := core.Add([]*event.Def{d}, &kprobes.AddOptions{Count: true, Skip: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range evs {
		names = append(names, e.Place().Symbol)
	}
	if err := core.Remove(evs); err != nil {
		t.Fatal(err)
	}
	return names
}

// loadAll has the server carry out n commands of each kind.
func (r *redis) loadAll(n int) {
	r.t.Helper()
	o := run(r.t, exec.Command(tool(r.t, "redis-benchmark", "redis-tools"), "-h", "127.0.0.1", "-p", r.port, "-n", strconv.Itoa(n), "-r", "1000",
		"-t", "ping,set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset", "-q"))
	if o.code != 0 {
		r.t.Fatalf("redis-benchmark: %v", o)
	}
}

// BenchmarkManyFiltered reports what a server's CPU time per command is, in percent of that without events, while nothing passes the
// filters of its events: the median of pairs of rounds that follow each other. The events are on the functions of 100 commands, or on 100
// functions nearly all of which each command runs. In a long run rounds are long enough for a figure.
func BenchmarkManyFiltered(b *testing.B) {
	for name, find := range map[string]func(testing.TB, *redis, *kprobes.Core) []string{"commands": commandFunctions, "steps": busyFunctions} {
		b.Run(name, func(b *testing.B) { benchManyFiltered(b, find) })
	}
}

func benchManyFiltered(b *testing.B, find func(testing.TB, *redis, *kprobes.Core) []string) {
	n := 500
	if long {
		n = 10_000
	}
	r := startRedis(b, redisPath(b))
	core := open(b, r.proc)
	names := find(b, r, core)
	evs := addMany(b, core, names, "n == 0x123456789abcdef0")
	var with, without, shares []float64
	probed := uint64(0) // commands
	round := func(on bool) float64 {
		if err := core.SetEnabled(on); err != nil {
			b.Fatal(err)
		}
		commands, before := r.stat("total_commands_processed"), r.cpu()
		r.loadAll(n)
		took := r.cpu() - before
		if commands = r.stat("total_commands_processed") - commands; on {
			probed += commands
		}
		return float64(took) / float64(commands)
	}
	round(false)
	for b.Loop() {
		without, with = append(without, round(false)), append(with, round(true))
		shares = append(shares, 100*with[len(with)-1]/without[len(without)-1])
	}
	hits, filtered := uint64(0), uint64(0)
	for _, e := range evs {
		c := core.Counts(e)
		hits, filtered = hits+c.Hits, filtered+c.Filtered
	}
	if err := core.Close(nil); err != nil {
		b.Fatal(err)
	}
	if hits != filtered || hits == 0 {
		b.Errorf("%d hits, %d of them filtered", hits, filtered)
	}
	b.ReportMetric(median(without), "unprobed-cpu-ns/cmd")
	b.ReportMetric(float64(hits)/float64(probed), "hits/cmd")
	b.ReportMetric(median(shares), "cpu-%")
}

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/hit"
)

const statHelp = `Count the hits of probes, and print counts and rates at intervals, in a running process, in a
program that is started for it, or in the kernel of a QEMU guest. A line has the seconds since the
beginning, the hits of the interval and how many a second that is, hits that were missed and
records that were lost, and the event. PROBE is a definition as kprobe trace takes it. -f FILTER
behind a probe counts only the hits that pass. --format and --listen show the counts as metrics
for Prometheus. At the end a line for each event goes to stderr.`

// statting is a run of the verb stat.
type statting struct {
	f      traceFlags
	every  time.Duration
	top    int
	t      *tracing
	counts func() []kprobes.Counts
	names  []string
	before []kprobes.Counts
	start  time.Time
	last   time.Time
	lines  int
	listen string
	shown  exposition
}

func newStat(con *console) *cobra.Command {
	var g statting
	f := &g.f
	f.con = con
	c := &cobra.Command{
		Use:   "stat (-p PID | -x FILE | --guest SPEC | -- CMD ARGS…) PROBE…",
		Short: "count the hits of probes, and print rates at intervals",
		Long:  statHelp,
		RunE: func(c *cobra.Command, args []string) error {
			probes, cmd := atDash(c, args)
			f.others = probes
			return g.run(cmd)
		},
	}
	f.shared(c, "hits")
	f.every.flags(c)
	fl := c.Flags()
	events := &probeValue{f: f, fl: fl}
	fl.VarP(events, "event", "e", "a probe (may be repeated)")
	fl.VarP(&boundValue{events, "FILTER", &f.filters}, "filter", "f", "what a hit of the probe before must pass to be counted: 'n > 5'")
	fl.StringVar(&f.file, "probes", "", "read probes from a file, one a line")
	fl.StringVar(&g.shown.format, "format", "text", "text or json, or metrics: prometheus or openmetrics")
	listenFlag(fl, &g.listen)
	fl.DurationVarP(&g.every, "interval", "I", time.Second, "the time between two outputs")
	fl.IntVar(&g.top, "top", 20, "the most events in an output: those with the most hits")
	return c
}

// run is the verb.
func (g *statting) run(cmd []string) error {
	f := &g.f
	g.shown.f, f.format = f, "text"
	if !isExposition(g.shown.format) {
		f.format, g.shown.format = g.shown.format, ""
	}
	if f.format != "text" && f.format != "json" {
		return usagef("format %q: text, json, %s or %s", f.format, formPrometheus, formOpenMetrics)
	}
	if err := f.check(cmd); err != nil {
		return err
	}
	switch {
	case f.of.kernel:
		return usagef("-k: the kernel counts for itself: read kprobe_profile in tracefs")
	case f.given("count"):
		return usagef("--count belongs to kprobe trace: --duration ends kprobe stat")
	case g.every < minInterval:
		return usagef("--interval %v: at least %v", g.every, minInterval)
	case g.top < 1:
		return usagef("--top %d: at least 1", g.top)
	case f.every.named() && (g.shown.format != "" || g.listen != ""):
		return usagef("%s", oneProcessMetrics)
	}
	defs, err := f.definitions()
	if err != nil {
		return err
	}
	f.counters = len(f.filters) == 0 && !f.only.given() // a filter tests what a record has
	if err := errors.Join(g.shown.checkFile(), f.con.listen(g.listen)); err != nil {
		return err
	}
	if ok, err := f.elsewhere(defs, cmd); ok || err != nil {
		return err
	}
	t := &tracing{f: f, every: g.every, added: g.prepare, ticked: g.print}
	g.t = t
	t.left = g.leave
	o := lineOptions{con: f.con, path: f.out, format: f.format}
	if g.shown.format != "" {
		o.path, t.ticked = "", g.rewrite
	}
	if t.printed, err = newLines(o); err != nil {
		return err
	}
	t.hits = newHitQueue(func(*hit.Hit) {}, func(hit.Loss) {}, func() {})
	t.end = f.con.catchEnd(t.hits.takeAll)
	return errors.Join(t.run(defs, cmd), t.close())
}

// minInterval is the shortest interval.
const minInterval = 10 * time.Millisecond

// prepare begins to count.
func (g *statting) prepare(s tracee) error {
	g.start = time.Now()
	g.last = g.start
	if x, ok := s.(*tracedExecutable); ok {
		g.counts = func() (counts []kprobes.Counts) {
			g.names, counts = x.eventCounts()
			return counts
		}
		return nil
	}
	p, ok := s.(interface {
		Events() []*kprobes.Event
		Core() *kprobes.Core
	})
	if !ok {
		return usagef("kprobe stat does not count in this target")
	}
	evs, core := p.Events(), p.Core()
	index := make([]int, len(evs)) // in names: probes that share a name are one event
	g.counts = func() []kprobes.Counts {
		out := make([]kprobes.Counts, len(g.names))
		for i, e := range evs {
			n, sum := core.Counts(e), &out[index[i]]
			sum.Hits += n.Hits
			sum.Filtered += n.Filtered + n.Over // they do not count as hits either
			sum.Missed += n.Missed
			sum.Lost += n.Lost
		}
		return out
	}
	byName := map[string]int{}
	for i, e := range evs {
		name := e.Group + "/" + e.Name
		at, ok := byName[name]
		if !ok {
			at, byName[name] = len(g.names), len(g.names)
			g.names = append(g.names, name)
		}
		index[i] = at
	}
	g.before = make([]kprobes.Counts, len(g.names))
	return g.shown.begin(g.t, core, evs)
}

// rewrite writes the metrics at an interval: to a file.
func (g *statting) rewrite() {
	if g.f.out != "" {
		g.shown.write(g.t.printed)
	}
}

// leave prints the last interval, or the metrics.
func (g *statting) leave() {
	g.shown.end()
	switch {
	case g.counts == nil: // nothing was counted
	case g.shown.format != "":
		g.shown.write(g.t.printed)
	default:
		g.print()
	}
}

// rate is what an event has counted in an interval.
type rate struct {
	Time   float64 `json:"time"` // seconds since the beginning
	Event  string  `json:"event"`
	Hits   uint64  `json:"hits"`
	Rate   float64 `json:"hits_per_second"`
	Missed uint64  `json:"missed"`
	Lost   uint64  `json:"lost"`
}

// rates are what has been counted since the call before: all of a few events, of many those with the most hits.
func (g *statting) rates(now time.Time) []rate {
	counts := g.counts()
	g.before = append(g.before, make([]kprobes.Counts, len(counts)-len(g.before))...)
	seconds := max(now.Sub(g.last).Seconds(), time.Microsecond.Seconds())
	rs := make([]rate, len(counts))
	for i, n := range counts {
		b := &g.before[i]
		r := rate{Time: now.Sub(g.start).Seconds(), Event: g.names[i], Hits: since(n.Hits-n.Filtered, b.Hits-b.Filtered), Missed: since(n.Missed, b.Missed), Lost: since(n.Lost, b.Lost)}
		r.Rate = float64(r.Hits) / seconds
		rs[i] = r
	}
	g.before, g.last = counts, now
	if len(rs) > g.top {
		slices.SortStableFunc(rs, func(a, b rate) int { return cmp.Compare(b.Hits, a.Hits) })
		rs = slices.DeleteFunc(rs[:g.top], func(r rate) bool { return r.Hits+r.Missed+r.Lost == 0 })
	}
	return rs
}

// since is a difference of counts, which are sums over CPUs that hit meanwhile.
func since(now, before uint64) uint64 { return now - min(before, now) }

// headEvery is the number of outputs between two lines with the names of the columns.
const headEvery = 20

// print prints an interval.
func (g *statting) print() {
	l := g.t.printed
	l.buf = l.buf[:0]
	rs := g.rates(time.Now())
	if g.f.format != "json" && g.lines%headEvery == 0 {
		l.buf = fmt.Appendf(l.buf, "#%11s %14s %14s %10s %10s  %s\n", "time", "hits", "hits/s", "missed", "lost", "event")
	}
	g.lines++
	for _, r := range rs {
		if g.f.format == "json" {
			b, _ := json.Marshal(r) // it has numbers and a string
			l.buf = append(append(l.buf, b...), '\n')
			continue
		}
		l.buf = fmt.Appendf(l.buf, "%12.3f %14d %14.1f %10d %10d  %s\n", r.Time, r.Hits, r.Rate, r.Missed, r.Lost, r.Event)
	}
	_, err := l.out.Write(l.buf)
	l.buf = l.buf[:0]
	l.failed(err)
	l.flush()
}

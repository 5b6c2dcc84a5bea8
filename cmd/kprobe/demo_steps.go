package main

import (
	"fmt"
	"runtime"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/demoapp"
)

// traceLines is the number of trace lines that are shown.
const traceLines = 12

// demoLines collects lines of a trace.
type demoLines struct {
	print hit.Printer
	text  []byte
	n     int
}

func (l *demoLines) add(h *hit.Hit) {
	if l.n < traceLines {
		l.text = l.print.Text(l.text, h)
		l.n++
	}
}

// trace shows a probe with named arguments and a return probe as kprobetrace.rst has
// them on do_sys_open, here on a function that takes a database, a key and flags.
func (d *demo) trace() error {
	d.step("Two probes go into %s while it runs, written as in kprobetrace.rst, and each hit makes a line.", demoapp.Get)
	_, err := d.arm("p:myprobe "+demoapp.Get+" db=%ax key=$arg2:gostring flags=%di:x32", "r:myretprobe "+demoapp.Get+" $retval:s64")
	if err != nil {
		return err
	}
	l := &demoLines{print: hit.Printer{Names: d.s.names}}
	if err := d.read(l.add, func() bool { return l.n == traceLines }); err != nil {
		return err
	}
	_, err = fmt.Fprintf(d.out, "\n%s%s", hit.Header(uint64(l.n), runtime.NumCPU()), l.text)
	return err
}

// list shows the probes as the process's own memory has them.
func (d *demo) list() error {
	d.step("The listing, as in kprobes/list: [OPTIMIZED] says that a hit takes a jump, not a trap.")
	return writeList(d.out, d.s.proc, d.s.names)
}

// histogramTime is how long latencies are collected.
const histogramTime = 1500 * time.Millisecond

// histogram shows how long requests take, and compares what all probes have counted
// meanwhile with what the workload has.
func (d *demo) histogram() error {
	d.step("How long %s takes to answer a request, in nanoseconds, from the records of its entries and returns.", demoapp.Handle)
	evs, err := d.arm("p:request "+demoapp.Handle+" client=$arg1:u8 text=$arg2:gostring", "r:reply "+demoapp.Handle+" text=$retval:gostring")
	if err != nil {
		return err
	}
	var lat hit.Latency
	measure := func(h *hit.Hit) {
		switch h.Event.Name {
		case evs[0].Name:
			lat.Enter(h)
		case evs[1].Name:
			lat.Leave(h)
		}
	}
	// The workload is held for a moment at both ends, so that its counts and ours are of
	// the same requests.
	if _, err := d.app.Pause(d.ctx); err != nil {
		return err
	}
	if err := d.readRest(func(*hit.Hit) {}); err != nil {
		return err
	}
	before := d.counts()
	own, err := d.app.Resume(d.ctx)
	if err != nil {
		return err
	}
	end := time.Now().Add(histogramTime)
	if err := d.read(measure, func() bool { return time.Now().After(end) }); err != nil {
		return err
	}
	now, err := d.app.Pause(d.ctx)
	if err != nil {
		return err
	}
	if err := d.readRest(measure); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n%s", lat.AppendText(nil, "latency"))
	return d.compare(before, own, now)
}

// counts is what the armed probes have counted.
func (d *demo) counts() []kprobes.Counts {
	var out []kprobes.Counts
	for _, e := range d.evs {
		out = append(out, d.s.core.Counts(e))
	}
	return out
}

// compare shows the hits beside the workload's own counts. A difference is an error.
func (d *demo) compare(before []kprobes.Counts, own, now demoapp.Counts) error {
	d.step("Every hit is counted: the probes' counts of that time beside what the server counted itself.")
	want := map[string]uint64{demoapp.Get: now.Get - own.Get, demoapp.Handle: now.Handle - own.Handle}
	fmt.Fprintf(d.out, "   %-12s %-10s %10s %10s %7s %7s\n", "EVENT", "FUNCTION", "HITS", "SERVER", "MISSED", "LOST")
	var err error
	for i, n := range d.counts() {
		e := d.evs[i]
		fn := e.Place().Symbol
		hits := n.Hits - before[i].Hits
		fmt.Fprintf(d.out, "   %-12s %-10s %10d %10d %7d %7d\n", e.Name, fn, hits, want[fn], n.Missed, n.Lost)
		if hits != want[fn] && err == nil {
			err = fmt.Errorf("event %s has %d hits, but the workload counted %d calls of %s", e.Name, hits, want[fn], fn)
		}
	}
	return err
}

// The cost is the median of many batches: other programs disturb some of them.
const (
	costBatches = 100
	costCalls   = 4000 // of a batch: the ring holds the records of so many
)

// costRow is a line of the table of costs.
type costRow struct {
	what   string
	count  bool
	probes []string
}

var costRows = []costRow{
	{what: "not probed"},
	{what: "counted", count: true, probes: []string{"p:hits " + demoapp.Step}},
	{what: "recorded: time, CPU, thread, goroutine, 4 arguments", probes: []string{"p:record " + demoapp.Step + " a=$arg1 b=$arg2 c=$arg3 d=$arg4"}},
	{what: "entry and return recorded and paired", probes: []string{"p:entry " + demoapp.Step + " a=$arg1", "r:return " + demoapp.Step + " value=$retval"}},
}

// cost shows what a hit costs: the workload itself measures its calls of a function
// that does nothing, without probes and with.
func (d *demo) cost() error {
	d.step("What a hit costs: the server times %d calls of %s, which does nothing, without and with probes.", costBatches*costCalls, demoapp.Step)
	if err := d.s.core.Remove(d.evs); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "   %-52s %8s %8s %8s\n", "", "NS/CALL", "ADDED", "RATIO")
	var plain float64
	for i := range costRows {
		r := &costRows[i]
		ns, err := d.price(r)
		if err != nil {
			return err
		}
		if i == 0 {
			plain = ns
		}
		fmt.Fprintf(d.out, "   %-52s %8.1f %8.1f %8.1f\n", r.what, ns, ns-plain, ns/plain)
	}
	_, err := fmt.Fprintln(d.out, "   (kprobe bench measures this with more care, beside the kernel's uprobes)")
	return err
}

// price measures a call with the probes of a row, in nanoseconds.
func (d *demo) price(r *costRow) (ns float64, err error) {
	var evs []*kprobes.Event
	if len(r.probes) > 0 {
		if evs, err = d.add(r.count, r.probes...); err != nil {
			return 0, err
		}
	}
	calls := uint64(0)
	var all []float64
	for range costBatches {
		c, err := d.app.Call(d.ctx, costCalls)
		if err != nil {
			return 0, err
		}
		d.s.core.Poll(func(*hit.Hit) {})
		calls += c.Calls
		all = append(all, c.PerCall())
	}
	if err := d.readRest(func(*hit.Hit) {}); err != nil {
		return 0, err
	}
	for _, e := range evs {
		if n := d.s.core.Counts(e); n.Hits != calls || n.Lost+n.Missed != 0 {
			return 0, fmt.Errorf("event %s has %d hits, %d lost and %d missed of %d calls", e.Name, n.Hits, n.Lost, n.Missed, calls)
		}
	}
	return median(all), d.s.core.Remove(evs)
}

package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"golang.org/x/sys/unix"
)

// want is how many hits of an event the run must have made.
func (r *demoRun) want() uint64 {
	if r.segments > 0 {
		return r.segments
	}
	return r.Calls
}

// has says whether a line is of the run.
func (r *demoRun) has(l *demoLine) bool {
	return slices.Contains(r.events, l.event) && (r.segments > 0 || l.tid == r.TID)
}

// demoLine is a line of a trace.
type demoLine struct {
	text  string // as it was printed
	event string
	tid   int
	same  string // what has to be equal
}

// traceLine takes a line of a trace apart: task, thread, CPU, context, time, event, place and values.
var traceLine = regexp.MustCompile(`^ *(.*-(\d+) +\[\d+\]) .{5} +[0-9.]+: (\w+): (.*)$`)

// caller is where a function returns to. The guest's own return probe has its trampoline there.
var caller = regexp.MustCompile(`^\([^ ]+ <- `)

// parseDemoLines reads the lines of a trace.
func parseDemoLines(text string) []demoLine {
	var out []demoLine
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		f := traceLine.FindStringSubmatch(line)
		if f == nil {
			continue
		}
		tid, err := strconv.Atoi(f[2])
		if err != nil {
			continue
		}
		out = append(out, demoLine{text: line, event: f[3], tid: tid, same: f[1] + " " + f[3] + ": " + caller.ReplaceAllString(f[4], "(<- ")})
	}
	return out
}

func (r *demoRun) filter(lines []demoLine) []demoLine {
	return slices.DeleteFunc(slices.Clone(lines), func(l demoLine) bool { return !r.has(&l) })
}

// calls has the test program make its calls.
func (d *guestDemo) calls() error {
	d.step("A test program in the guest opens files, reads, and sends messages over TCP. Of its first calls: our line, the guest's own below.")
	for _, w := range demoWork {
		before, err := d.g.segments()
		if err != nil {
			return err
		}
		c, err := d.g.hit(w.what, w.n, w.cpu, w.more...)
		if err != nil {
			return err
		}
		r := demoRun{Counts: c, events: w.events}
		if w.what == "tcp" {
			now, err := d.quiet()
			if err != nil {
				return err
			}
			r.segments = now - before
		}
		d.runs = append(d.runs, r)
	}
	return d.readRest()
}

// quiet returns the number of received segments once no more are on their way: the last ones
// are acknowledgements that TCP delays.
func (d *guestDemo) quiet() (uint64, error) {
	last := uint64(0)
	for {
		n, err := d.g.segments()
		if err != nil || n == last {
			return n, err
		}
		last = n
		if err := d.pause(time.Second / 2); err != nil {
			return 0, err
		}
	}
}

func (d *guestDemo) pause(t time.Duration) error {
	select {
	case <-d.ctx.Done():
		return d.ctx.Err()
	case <-time.After(t):
		return nil
	}
}

// guestSettle is how long no record may have come until it is thought that there are no more:
// far longer than the reader keeps one back to give all out in order.
const guestSettle = 250 * time.Millisecond

// readRest reads the records of all calls that were made.
func (d *guestDemo) readRest() error {
	for last := time.Now(); time.Since(last) < guestSettle; {
		if d.t.Poll(func(h *hit.Hit) { d.ours = d.print.Text(d.ours, h) }) > 0 {
			last = time.Now()
		}
		if err := d.pause(pollPause); err != nil {
			return err
		}
	}
	return nil
}

// compare shows lines of both tracers, and compares all.
func (d *guestDemo) compare() error {
	if err := d.g.write(guestTracing+"tracing_on", "0", unix.O_TRUNC); err != nil {
		return err
	}
	text, err := d.g.read(guestTracing + "trace")
	if err != nil {
		return err
	}
	ours, own := parseDemoLines(string(d.ours)), parseDemoLines(text)
	fmt.Fprintf(d.out, "\n%s", hit.Header(uint64(len(ours)), demoCPUs))
	equal, all := 0, 0
	var rows []demoRow
	var errs []error
	for i := range d.runs {
		r := &d.runs[i]
		a, b := r.filter(ours), r.filter(own)
		d.show(a, b, len(r.events))
		n, err := sameDemoLines(a, b)
		equal, all = equal+n, all+max(len(a), len(b))
		errs = append(errs, err)
		for _, e := range r.events {
			rows = addRow(rows, demoRow{event: e, ours: countOf(a, e), own: countOf(b, e), want: r.want()})
		}
	}
	d.step("%d of %d lines of these calls are equal but for the times.", equal, all)
	fmt.Fprintln(d.out, "   (left out: the column of interrupts and preemption, and of a return the caller, where the guest's own has put its trampoline)")
	return errors.Join(append(errs, d.table(rows))...)
}

// show shows the lines of the first calls.
func (d *guestDemo) show(a, b []demoLine, n int) {
	for i := range min(n, len(a), len(b)) {
		fmt.Fprintf(d.out, "%s\n%s\n", a[i].text, b[i].text)
	}
}

// sameDemoLines counts lines that are equal; the first that is not is the error.
func sameDemoLines(a, b []demoLine) (equal int, err error) {
	if len(a) != len(b) {
		err = fmt.Errorf("the guest's own tracer has %d lines of calls of which we have %d", len(b), len(a))
	}
	for i := range min(len(a), len(b)) {
		if a[i].same == b[i].same {
			equal++
		} else if err == nil {
			err = fmt.Errorf("line %d of a run differs:\n%s\nand the guest's own\n%s", i+1, a[i].text, b[i].text)
		}
	}
	return equal, err
}

func countOf(lines []demoLine, event string) (n uint64) {
	for i := range lines {
		if lines[i].event == event {
			n++
		}
	}
	return n
}

// demoRow is a line of the table of counts.
type demoRow struct {
	event           string
	ours, own, want uint64
}

// addRow adds to the row of the same event.
func addRow(rows []demoRow, r demoRow) []demoRow {
	for i := range rows {
		if rows[i].event == r.event {
			rows[i].ours += r.ours
			rows[i].own += r.own
			rows[i].want += r.want
			return rows
		}
	}
	return append(rows, r)
}

// table shows the counts. A difference is an error.
func (d *guestDemo) table(rows []demoRow) error {
	fmt.Fprintf(d.out, "   %-12s %10s %12s %10s\n", "EVENT", "OUR LINES", "GUEST'S OWN", "PROGRAM")
	var errs []error
	for _, r := range rows {
		fmt.Fprintf(d.out, "   %-12s %10d %12d %10d\n", r.event, r.ours, r.own, r.want)
		if r.ours != r.want || r.own != r.want {
			errs = append(errs, fmt.Errorf("event %s: the program counted %d, we have %d lines, the guest's own tracer %d", r.event, r.want, r.ours, r.own))
		}
	}
	fmt.Fprintln(d.out, "   (PROGRAM is what the test program has counted itself; for TCP segments, what the guest's network has: /proc/net/snmp)")
	for _, e := range d.t.evs {
		if n := d.t.core.Counts(e); n.Lost+n.Missed > 0 {
			errs = append(errs, fmt.Errorf("event %s: %d hits lost, %d missed", e.Name, n.Lost, n.Missed))
		}
	}
	return errors.Join(errs...)
}

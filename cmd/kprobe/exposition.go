package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/metrics"
	"kprobes.dev/kprobes/target/process"
)

// The formats that metrics are written in.
const (
	formPrometheus  = "prometheus"
	formOpenMetrics = "openmetrics"
)

// isExposition says whether a format is one of metrics.
func isExposition(format string) bool { return format == formPrometheus || format == formOpenMetrics }

// exposition shows what a run counts as metrics: over HTTP, and in a file.
type exposition struct {
	f      *traceFlags
	format string // of the file; "": there is none

	mu     sync.Mutex    // held while histograms change or are read, and while the file is written
	core   *kprobes.Core // nil: there is nothing to show
	evs    []*kprobes.Event
	queue  *hitQueue
	labels []metrics.Label             // of the target
	more   func(to *metrics.Set) error // adds what is not a count of an event; nil: there is nothing
	pages  map[string]page             // beside /metrics
	stop   func()                      // the answering of requests
}

// eventCounts are the counts of an event: of all probes of its name.
type eventCounts struct {
	group, name string
	kprobes.Counts
	filtered bool // it has a filter
}

// begin is called when the probes have been added; it answers requests from now on.
func (x *exposition) begin(t *tracing, core *kprobes.Core, evs []*kprobes.Event) error {
	x.mu.Lock()
	x.core, x.evs, x.queue, x.labels = core, evs, t.hits, x.f.targetLabels(core, t.s.Names())
	set := metrics.NewSet()
	err := x.collect(set)
	if err != nil {
		x.core = nil
	}
	x.mu.Unlock()
	if err != nil {
		return usageError{err}
	}
	if x.f.con.web == nil {
		return nil
	}
	pages := map[string]page{"/metrics": x.answer}
	for path, p := range x.pages {
		pages[path] = p
	}
	x.stop = x.f.con.web.serve(pages, nil)
	if !x.f.quiet {
		fmt.Fprintf(x.f.con.stderr, "kprobe: metrics are at http://%s/metrics\n", x.f.con.web.listener.Addr())
	}
	return nil
}

// end answers no more requests.
func (x *exposition) end() {
	if x.stop != nil {
		x.stop()
		x.stop = nil
	}
}

// targetLabels are the labels that name the target.
func (f *traceFlags) targetLabels(core *kprobes.Core, names hit.Namer) []metrics.Label {
	if p, ok := engine.Of(core).Target().(*process.Target); ok {
		pid := p.Proc().PID()
		return []metrics.Label{{Name: "pid", Value: fmt.Sprint(pid)}, {Name: "process", Value: names.Comm(pid)}}
	}
	return []metrics.Label{{Name: "guest", Value: f.of.guest}}
}

// counts sums up the counts of probes that share a name. Precondition: x.mu is held.
func (x *exposition) counts() (out []*eventCounts) {
	byName := map[[2]string]*eventCounts{}
	for _, e := range x.evs {
		key := [2]string{e.Group, e.Name}
		sum := byName[key]
		if sum == nil {
			sum = &eventCounts{group: e.Group, name: e.Name}
			byName[key] = sum
			out = append(out, sum)
		}
		n := x.core.Counts(e)
		sum.Hits += n.Hits
		sum.Missed += n.Missed
		sum.Lost += n.Lost
		sum.Filtered += n.Filtered
		sum.filtered = sum.filtered || e.Def.Filter != ""
	}
	for e, n := range x.queue.losses() {
		if sum := byName[[2]string{e.Group, e.Name}]; sum != nil {
			sum.Lost += n
		}
	}
	return out
}

// eventLabels are the labels of an event.
func (x *exposition) eventLabels(group, name string) []metrics.Label {
	return append([]metrics.Label{{Name: "group", Value: group}, {Name: "event", Value: name}}, x.labels...)
}

// collect adds all metrics to a set. Precondition: x.mu is held.
func (x *exposition) collect(to *metrics.Set) error {
	all := x.counts()
	counter := func(name, help string, of func(*eventCounts) (n uint64, ok bool)) error {
		f := metrics.Family{Name: name, Help: help, Kind: metrics.Counter}
		for _, e := range all {
			if n, ok := of(e); ok {
				f.Samples = append(f.Samples, metrics.Sample{Labels: x.eventLabels(e.group, e.name), Value: metrics.Uint(n)})
			}
		}
		return to.Add(f)
	}
	err := errors.Join(
		counter("kprobe_hits_total", "Hits of an event, also those that did not pass its filter.", func(e *eventCounts) (uint64, bool) { return e.Hits, true }),
		counter("kprobe_missed_total", "Hits at which nothing could be done: a return probe without a free instance.", func(e *eventCounts) (uint64, bool) { return e.Missed, true }),
		counter("kprobe_lost_total", "Records of hits that are lost: the ring, or the queue of records, was full.", func(e *eventCounts) (uint64, bool) { return e.Lost, true }),
		counter("kprobe_filtered_total", "Hits that did not pass the event's filter.", func(e *eventCounts) (uint64, bool) { return e.Filtered, e.filtered }),
	)
	if err == nil && x.more != nil {
		err = x.more(to)
	}
	return err
}

// text is all metrics in a format. Precondition: x.mu is held.
func (x *exposition) text(format string) ([]byte, error) {
	set := metrics.NewSet()
	if err := x.collect(set); err != nil {
		return nil, err
	}
	if format == formOpenMetrics {
		return metrics.OpenMetrics(nil, set.Families()), nil
	}
	return metrics.Text(nil, set.Families()), nil
}

// answer answers a request for the metrics.
func (x *exposition) answer(w http.ResponseWriter, r *http.Request) error {
	format, kind := formPrometheus, metrics.TextType
	if metrics.Accepts(r.Header.Get("Accept")) {
		format, kind = formOpenMetrics, metrics.OpenMetricsType
	}
	x.mu.Lock()
	text, err := x.text(format)
	x.mu.Unlock()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(text) // the client may be gone
	return nil
}

// write writes the metrics to the file, which other programs see as it was or as it is, or to what l prints to.
func (x *exposition) write(l *lines) {
	x.mu.Lock()
	defer x.mu.Unlock()
	text, err := x.text(x.format)
	switch {
	case err != nil:
	case x.f.out == "":
		_, err = l.out.Write(text)
	default:
		l.name = x.f.out
		err = x.f.con.replaceFile(x.f.out, text)
	}
	l.failed(err)
}

// checkFile says why metrics can not be written to what -o names.
func (x *exposition) checkFile() error {
	if x.format == "" || x.f.out == "" {
		return nil
	}
	at := x.f.con.path(x.f.out)
	if st, err := os.Lstat(at); err == nil && !st.Mode().IsRegular() {
		return usagef("-o %s: metrics take the place of a file, and this is none: leave out -o to write to standard output", x.f.out)
	}
	_, err := os.Stat(filepath.Dir(at))
	return x.f.con.pathError(err, filepath.Dir(x.f.out))
}

// replaceFile puts a file of this content in the place of one.
func (c *console) replaceFile(path string, content []byte) (err error) {
	at := c.path(path)
	temp := filepath.Join(filepath.Dir(at), fmt.Sprintf(".%s.%08x", filepath.Base(at), rand.Uint32()))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666) // as the umask has it: others may read it
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, at)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

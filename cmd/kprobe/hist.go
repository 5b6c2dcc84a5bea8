package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// histHelp says what a histogram may be.
const histHelp = `Count the hits of probes by keys, in a running process, in a program that is started
for it, or in the kernel of a QEMU guest, and print a histogram for each event at the end.
PROBE is a definition as kprobe trace takes it. HIST is, as in the kernel's hist triggers,

  keys=FIELD[,FIELD…][:vals=FIELD…][:sort=FIELD[.descending],…][:size=N][:nohitcount][ if FILTER]

A FIELD is an argument of the probe by its name, common_pid or common_cpu; as a key also
common_stacktrace, the callers. A key may have
  .hex .sym .sym-offset     shown so
  .log2, .buckets=N         by powers of two, by ranges of N
  .execname                 of common_pid: the thread's name too
A value is summed up. Entries are sorted by hitcount, or by what sort= names. FILTER is what
-f of kprobe trace takes.`

// histogramming is a run of the verb hist.
type histogramming struct {
	f      traceFlags
	hists  []*event.Hist // of the definitions
	of     map[string]*hit.Histogram
	order  []string
	values []fetch.Value
	core   *engine.Core
	evs    []*engine.Event // in the order of order
}

func newHist() *cobra.Command {
	var g histogramming
	f := &g.f
	c := &cobra.Command{
		Use:   "hist (-p PID | --guest SPEC | -- CMD ARGS…) PROBE HIST [PROBE HIST…]",
		Short: "count the hits of probes by keys",
		Long:  histHelp,
		RunE: func(c *cobra.Command, args []string) error {
			probes, cmd := args, []string(nil)
			if n := c.ArgsLenAtDash(); n >= 0 {
				probes, cmd = args[:n], args[n:]
			}
			return g.run(probes, cmd)
		},
	}
	f.shared(c, "hits")
	f.format = "text"
	return c
}

// run is the verb.
func (g *histogramming) run(args, cmd []string) error {
	f := &g.f
	if err := f.check(cmd); err != nil {
		return err
	}
	switch {
	case f.of.kernel:
		return usagef("-k has histograms of its own: write hist:… into the event's trigger file in tracefs")
	case len(args) == 0 || len(args)%2 != 0:
		return usagef("give a PROBE and its HIST: kprobe hist -p PID 'p:look lookupKey n=$arg2' keys=n.log2")
	}
	defs, err := g.definitions(args)
	if err != nil {
		return err
	}
	t := &tracing{f: f}
	t.added = g.prepare
	t.left = func() { g.print(t) }
	if t.printed, err = newLines(lineOptions{path: f.out, format: f.format, stat: true, count: f.count}); err != nil {
		return err
	}
	t.hits = newHitQueue(func(h *hit.Hit) { g.add(t, h) }, func() {})
	t.end = catchEnd(t.hits.takeAll)
	return errors.Join(t.run(defs, cmd), t.close())
}

// definitions parses probes and their histograms.
func (g *histogramming) definitions(args []string) ([]*event.Def, error) {
	var defs []*event.Def
	var errs []error
	for i := 0; i < len(args); i += 2 {
		d, err := event.Parse(args[i])
		h, no := event.ParseHist(args[i+1])
		if err = errors.Join(err, no); err != nil {
			errs = append(errs, err)
			continue
		}
		if d == nil || d.Kind == event.Delete {
			return nil, usagef("%q is no probe", args[i])
		}
		if d.Filter = h.Filter; g.f.count == 0 { // who counts lines has to see them
			d.Hist = h
		}
		for _, k := range h.Keys {
			if k.Mod == event.HistStack {
				d.Stack = event.HistCallers
			}
		}
		defs, g.hists = append(defs, d), append(g.hists, h)
	}
	if len(errs) > 0 {
		return nil, usageError{errors.Join(errs...)}
	}
	return defs, nil
}

// prepare makes the histograms of the events that have been added.
func (g *histogramming) prepare(s tracee, defs []*event.Def) error {
	g.of = map[string]*hit.Histogram{}
	p, ok := s.(interface {
		Events() []*kprobes.Event
		Core() *kprobes.Core
	})
	if !ok {
		return usagef("there are no histograms of this target")
	}
	g.core = engine.Of(p.Core())
	for _, e := range p.Events() {
		for i, d := range defs {
			if e.Def != d {
				continue
			}
			prog := engine.OfEvent(e).Prog
			if prog == nil { // its object is not there yet
				return fmt.Errorf("%s: its object is not there: a histogram needs it", e.Name)
			}
			h, err := hit.NewHistogram(g.hists[i], prog)
			if err != nil {
				return usageError{err}
			}
			name := e.Group + "/" + e.Name
			g.of[name], g.order, g.evs = h, append(g.order, name), append(g.evs, engine.OfEvent(e))
		}
	}
	return nil
}

// add counts a hit.
func (g *histogramming) add(t *tracing, h *hit.Hit) {
	hist := g.of[h.Event.Group+"/"+h.Event.Name]
	if hist == nil {
		return
	}
	comm := h.Comm
	if comm == "" {
		comm = t.printed.print.Names.Comm(h.TID)
	}
	vs, err := h.Event.Prog.DecodeInto(g.values[:0], h.Rec, h.Event.ArgsOff, comm)
	g.values = vs
	if err != nil {
		return // the ring's reader counts what is damaged
	}
	if h.Unknown {
		fetch.HideResults(vs)
	}
	hist.Add(h, vs, comm)
	t.printed.hit(h)
}

// print prints the histograms, each under the name of its event where there are several.
func (g *histogramming) print(t *tracing) {
	l := t.printed
	for i, name := range g.order {
		h := g.of[name]
		entries, dropped, ok, err := g.core.Histogram(g.evs[i])
		if err != nil {
			fmt.Fprintf(os.Stderr, "kprobe: %v\n", err)
		}
		if ok {
			h.Load(entries, dropped)
		}
		if len(g.order) > 1 {
			if h.Hits()+h.Dropped() == 0 && len(g.order) > len(g.hists) { // of a pattern
				continue
			}
			if i > 0 {
				l.buf = append(l.buf, '\n')
			}
			l.buf = fmt.Appendf(l.buf, "# %s\n", name)
		}
		l.buf = h.AppendText(l.buf, l.print.Names.Symbol)
	}
	_, err := l.out.Write(l.buf)
	l.failed(err)
}

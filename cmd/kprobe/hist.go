package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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

  keys=FIELD[,FIELD…][:vals=FIELD…][:VAR=EXPR…][:sort=FIELD[.descending],…][:size=N]
    [:nohitcount][:pause][:name=NAME][:ACTION…][ if FILTER]

A FIELD is an argument of the probe by its name, common_pid, common_cpu or common_timestamp
(nanoseconds); as a key also common_stacktrace, the callers. A key may have
  .hex .sym .sym-offset     shown so
  .log2, .buckets=N         by powers of two, by ranges of N
  .execname                 of common_pid: the thread's name too
A value is summed up, and may be .hex, .percent or .graph. Entries are sorted by hitcount, or
by what sort= names. FILTER is what -f of kprobe trace takes.

Each entry has VAR, set at each hit. Another event with the same keys reads it as $VAR or
GROUP.EVENT.$VAR: an EXPR has + - * / of fields, numbers and variables. An ACTION is
  onmatch(GROUP.EVENT).trace(SYNTH,PARAM…)    a synthetic event is made of the values
  onmax($VAR).save(FIELD…), onchange($VAR)…   fields are kept with the largest, the last VAR

In place of a PROBE, 's:SYNTH TYPE FIELD; …' is a synthetic event. With a HIST behind it its
events are counted, without one they are printed as lines.

--format and --listen make metrics for Prometheus of histograms, and profiles for go tool
pprof of those with common_stacktrace.`

func newHist(con *console) *cobra.Command {
	var g histogramming
	f := &g.f
	f.con = con
	c := &cobra.Command{
		Use:   "hist (-p PID | -x FILE | --guest SPEC | -- CMD ARGS…) PROBE HIST [PROBE HIST…]",
		Short: "count the hits of probes by keys",
		Long:  histHelp,
		RunE: func(c *cobra.Command, args []string) error {
			probes, cmd := atDash(c, args)
			return g.run(probes, cmd)
		},
	}
	f.shared(c, "hits")
	f.every.flags(c)
	f.format = "text" // of lines
	g.flags(c.Flags())
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
	case len(args) == 0:
		return usagef(needHist)
	}
	defs, err := g.definitions(args)
	if err == nil {
		err = errors.Join(g.checkProfile(), g.checkMetrics(), g.checkExecutable())
	}
	if err == nil {
		err = f.con.listen(g.listen)
	}
	if err != nil {
		return err
	}
	if ok, err := f.elsewhere(defs, cmd); ok || err != nil {
		return err
	}
	t := &tracing{f: f}
	t.added = func(s tracee) error { return g.prepare(t, s) }
	t.left = func() { g.leave(t) }
	t.sum = g.sum
	o := lineOptions{con: f.con, path: f.out, format: f.format, stat: true, count: f.count}
	if g.shownAs.format != "" {
		o.path = ""
	}
	if t.printed, err = newLines(o); err != nil {
		return err
	}
	if g.every > 0 {
		t.every, t.ticked = g.every, func() { g.shownAs.write(t.printed) }
	}
	take := func(h *hit.Hit) { g.hit(t, h) }
	if f.every.named() {
		take = t.printed.namedByProcess(func(h *hit.Hit) { g.executableHit(t, h) })
	}
	t.hits = newHitQueue(take, func(hit.Loss) {}, t.printed.flush)
	t.end = f.con.catchEnd(t.hits.takeAll)
	return errors.Join(t.run(defs, cmd), t.close(), g.err)
}

const needHist = "give a PROBE and its HIST: kprobe hist -p PID 'p:look lookupKey n=$arg2' keys=n.log2"

// definitions parses probes, synthetic events and their histograms.
func (g *histogramming) definitions(args []string) ([]*event.Def, error) {
	var errs []error
	for i := 0; i < len(args); i++ {
		var one given
		var err error
		text := args[i]
		if event.IsSynthetic(text) {
			one.synth, err = event.ParseSynthetic(text)
		} else if one.def, err = event.Parse(text); err == nil && (one.def == nil || one.def.Kind == event.Delete) {
			return nil, usagef("%q is no probe", text)
		}
		errs = append(errs, err)
		if i+1 < len(args) && isHist(args[i+1]) {
			i++
			one.hist, err = event.ParseHist(args[i])
			errs = append(errs, err)
		} else if !event.IsSynthetic(text) {
			return nil, usagef("%s\n%q has no HIST behind it", needHist, text)
		}
		g.given = append(g.given, one)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, usageError{err}
	}
	return g.probes(), nil
}

// isHist tells a HIST from a PROBE: its first word has an =.
func isHist(arg string) bool {
	first, _, _ := strings.Cut(strings.TrimSpace(arg), " ")
	return strings.Contains(first, "=")
}

// probes gives the definitions of probes with what their histograms ask for. The code at the hit counts where nobody needs a hit's
// record, which who counts lines does.
func (g *histogramming) probes() (defs []*event.Def) {
	synths, stack := map[string]*event.Synthetic{}, false
	for _, one := range g.given {
		if one.synth != nil {
			one.synth.Hist, synths[one.synth.Name] = one.hist, one.synth
			stack = stack || needsStack(one.hist) // of the hits at which it is traced
		}
	}
	for _, one := range g.given {
		d := one.def
		if d == nil {
			continue
		}
		if d.Filter = g.f.only.and(one.hist.Filter); g.f.count == 0 && !g.f.every.named() {
			d.Hist = one.hist
		}
		for i := range one.hist.Actions {
			a := &one.hist.Actions[i]
			a.Traced = synths[a.Synth]
		}
		if stack || needsStack(one.hist) {
			d.Stack = event.HistCallers
		}
		defs = append(defs, d)
	}
	return defs
}

// prepare makes the histograms of the events that have been added.
func (g *histogramming) prepare(t *tracing, s tracee) error {
	g.set = hit.NewHistograms()
	g.set.Traced = func(def *event.Synthetic, h *hit.Hit, vs []fetch.Value) {
		l := t.printed
		l.buf = l.print.Synthetic(l.buf[:0], def, h, vs)
		_, err := l.out.Write(l.buf)
		l.failed(err)
	}
	if x, ok := s.(*tracedExecutable); ok {
		return g.prepareExecutable(x)
	}
	p, ok := s.(interface {
		Events() []*kprobes.Event
		Core() *kprobes.Core
	})
	if !ok {
		return usagef("there are no histograms of this target")
	}
	g.core = engine.Of(p.Core())
	evs := p.Events()
	for _, e := range evs {
		prog := engine.OfEvent(e).Prog
		if prog == nil { // its object is not there yet
			return fmt.Errorf("%s: its object is not there: a histogram needs it", e.Name)
		}
		if !g.set.Event(e.Group, e.Name, prog) {
			return usagef("the probes of event %s have not all the same arguments: say their types, name=arg:u64", e.Name)
		}
	}
	for _, one := range g.given {
		if one.synth != nil {
			g.set.Synthetic(one.synth)
		}
	}
	for _, one := range g.given {
		if err := g.add(one, evs); err != nil {
			return err
		}
	}
	if err := g.oneProfile(); err != nil {
		return err
	}
	g.begun = time.Now()
	return g.beginMetrics(t, p.Core(), evs)
}

// add makes the histograms of a definition: of a pattern's, one for each event.
func (g *histogramming) add(one given, evs []*kprobes.Event) error {
	if one.hist == nil {
		return nil
	}
	all, err := g.of(one, evs)
	if err != nil {
		return err
	}
	for _, s := range all {
		group, name, _ := strings.Cut(s.name, "/")
		h, err := g.set.Add(group, name, one.hist)
		if err != nil {
			return usageError{err}
		}
		s.hist, s.many = h, len(all) > 1
		g.shown = append(g.shown, s)
	}
	return nil
}

// of finds the histograms that a definition needs: one for each name among its events. Probes of an event that has one join it.
func (g *histogramming) of(one given, evs []*kprobes.Event) (all []shown, err error) {
	if one.synth != nil {
		return []shown{{name: event.SyntheticGroup + "/" + one.synth.Name, def: one.hist, synth: one.synth}}, nil
	}
	for _, ev := range evs {
		e := engine.OfEvent(ev)
		if e.Given != one.def {
			continue
		}
		name := e.Group + "/" + e.Name
		named := func(s shown) bool { return s.name == name }
		if i := slices.IndexFunc(g.shown, named); i >= 0 {
			if g.shown[i].def.Text != one.hist.Text {
				return nil, usagef("event %s has a histogram already: each of its probes takes the same", e.Name)
			}
			g.shown[i].evs = append(g.shown[i].evs, e)
		} else if i := slices.IndexFunc(all, named); i >= 0 {
			all[i].evs = append(all[i].evs, e)
		} else {
			all = append(all, shown{name: name, def: one.hist, evs: []*engine.Event{e}})
		}
	}
	return all, nil
}

// decoded gives the arguments of a hit, in the room of others, and the name of its thread.
func decoded(h *hit.Hit, room []fetch.Value, names hit.Namer) (vs []fetch.Value, comm string, err error) {
	if comm = h.Comm; comm == "" {
		comm = names.Comm(h.TID)
	}
	vs, err = h.Event.Prog.DecodeInto(room[:0], h.Rec, h.Event.ArgsOff, comm)
	if err == nil && h.Unknown {
		fetch.HideResults(vs)
	}
	return vs, comm, err
}

// hit counts a hit.
func (g *histogramming) hit(t *tracing, h *hit.Hit) {
	g.shownAs.mu.Lock()
	defer g.shownAs.mu.Unlock()
	vs, comm, err := decoded(h, g.values, t.printed.print.Names)
	g.values = vs
	if err != nil {
		return // the ring's reader counts what is damaged
	}
	g.set.Hit(h, vs, comm)
	t.printed.hit(h)
}

// leave prints the histograms, with what generated code has counted.
func (g *histogramming) leave(t *tracing) {
	g.shownAs.end()
	switch {
	case g.f.every.named():
		t.printed.histograms(g.shown)
		return
	case g.shownAs.core == nil: // nothing was counted
		return
	case g.shownAs.format != "":
		g.shownAs.write(t.printed)
		return
	}
	for i := range g.shown {
		if err := g.load(&g.shown[i], g.shown[i].hist); err != nil {
			fmt.Fprintf(g.f.con.stderr, "kprobe: %v\n", err)
		}
	}
	if g.format != histText && len(g.shown) > 0 {
		g.profile(t.printed)
		return
	}
	t.printed.histograms(g.shown)
}

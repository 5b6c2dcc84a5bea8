package main

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/metrics"
)

// flags are those that say how histograms are shown.
func (g *histogramming) flags(fl *pflag.FlagSet) {
	fl.StringVar(&g.format, "format", histText, "text; a profile of a histogram by callers: pprof or folded; metrics: prometheus or openmetrics")
	listenFlag(fl, &g.listen)
	fl.DurationVarP(&g.every, "interval", "I", 0, "write the metrics anew to the file of -o at this interval, and not only at the end")
	fl.IntVar(&g.series, "series", defaultSeries, "the most series that a histogram makes as metrics; what is left out is counted")
}

// defaultSeries is what --series is by default.
const defaultSeries = 10_000

// checkMetrics says whether the histograms that are asked for can be shown as metrics, and has them count what the metrics need.
func (g *histogramming) checkMetrics() error {
	g.shownAs.f = &g.f
	if isExposition(g.format) {
		g.shownAs.format = g.format
	}
	switch {
	case g.f.given("interval") && (g.shownAs.format == "" || g.f.out == ""):
		return usagef("--interval is for metrics in a file: --format %s -o FILE", formPrometheus)
	case g.f.given("interval") && g.every < minInterval:
		return usagef("--interval %v: at least %v", g.every, minInterval)
	case g.series < 1:
		return usagef("--series %d: at least 1", g.series)
	case g.shownAs.format == "" && g.listen == "":
		return nil
	}
	for _, one := range g.given {
		switch {
		case one.hist == nil && g.shownAs.format != "":
			return usagef("--format %s: synthetic event %s has no histogram, and its lines have no place among metrics", g.format, one.synth.Name)
		case one.hist == nil:
			continue
		}
		if err := metrics.CheckKeys(one.hist); err != nil && g.shownAs.format != "" {
			return usagef("--format %s: %v", g.format, err)
		}
		metrics.SumKeys(one.hist)
	}
	return g.shownAs.checkFile()
}

// beginMetrics begins to show the histograms as metrics, if that is asked for.
func (g *histogramming) beginMetrics(t *tracing, core *kprobes.Core, evs []*kprobes.Event) error {
	g.shownAs.more = g.collect
	g.shownAs.pages = map[string]page{"/profile": g.answerProfile}
	g.counted = make([]*metrics.Counted, len(g.shown))
	return g.shownAs.begin(t, core, evs)
}

// collect adds the histograms to a set of metrics, but for those by callers. Precondition: g.shownAs.mu is held.
func (g *histogramming) collect(to *metrics.Set) error {
	for i := range g.shown {
		s := &g.shown[i]
		if metrics.CheckKeys(s.def) != nil || slices.ContainsFunc(g.shown[:i], func(o shown) bool { return o.hist.Shares(s.hist) }) {
			continue
		}
		if g.counted[i] == nil {
			g.counted[i] = &metrics.Counted{Labels: g.histLabels(s), Unit: g.timeUnit, Symbol: g.core.Symbol, Max: g.series}
		}
		now, err := g.snapshot(s)
		if err != nil {
			return err
		}
		if err := g.counted[i].Add(to, now); err != nil {
			return err
		}
	}
	return nil
}

// histLabels are the labels of a histogram: of one that events share its name.
func (g *histogramming) histLabels(s *shown) []metrics.Label {
	if s.def.Name != "" {
		return append([]metrics.Label{{Name: "histogram", Value: s.def.Name}}, g.shownAs.labels...)
	}
	group, name, _ := strings.Cut(s.name, "/")
	return g.shownAs.eventLabels(group, name)
}

// snapshot copies a histogram as it is now, with what generated code has counted for all events that share it. Precondition: g.shownAs.mu is held.
func (g *histogramming) snapshot(s *shown) (*hit.Histogram, error) {
	now := s.hist.Copy()
	var errs []error
	for i := range g.shown {
		if g.shown[i].hist.Shares(s.hist) {
			errs = append(errs, g.load(&g.shown[i], now))
		}
	}
	return now, errors.Join(errs...)
}

// timeUnit is what 1 of an argument stands for; 0: it is no time.
func (g *histogramming) timeUnit(field string) time.Duration {
	for _, one := range g.given {
		if one.def == nil {
			continue
		}
		for _, a := range one.def.Args {
			if a.Name == field && a.Expr.Kind == event.ExprDuration {
				return time.Nanosecond
			}
		}
	}
	return 0
}

// load adds to a histogram what generated code has counted for it.
func (g *histogramming) load(s *shown, to *hit.Histogram) (err error) {
	add := func(entries []fetch.HistEntry, dropped uint64, ok bool, bad error) {
		err = errors.Join(err, bad)
		if ok {
			to.Load(entries, dropped)
		}
	}
	for _, e := range s.evs {
		add(g.core.Histogram(e))
	}
	if s.synth != nil {
		add(g.core.Traced(s.synth))
	}
	return err
}

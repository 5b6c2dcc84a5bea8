package debughttp

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/metrics"
	"kprobes.dev/kprobes/trace"
)

// metricsPath is where the metrics are, below Prefix.
const metricsPath = "metrics"

// maxSeries is the most series that a histogram makes.
const maxSeries = 10_000

// shown is what histograms have shown as metrics: what is shown once is shown from then on.
type shown struct {
	mu  sync.Mutex
	now map[*hit.Histogram]*metrics.Counted
}

// metrics answers with what the events have counted, and the histograms of their triggers.
func (s *Server) metrics(c *call) error {
	if err := allows(c.w, c.r.Method, []string{http.MethodGet}); err != nil {
		return err
	}
	s.shown.mu.Lock()
	defer s.shown.mu.Unlock()
	set, err := s.shown.collect(c.in)
	if err != nil {
		return err
	}
	kind, text := metrics.TextType, metrics.Text
	if metrics.Accepts(c.r.Header.Get("Accept")) {
		kind, text = metrics.OpenMetricsType, metrics.OpenMetrics
	}
	c.w.Header().Set("Content-Type", kind)
	_, _ = c.w.Write(text(nil, set.Families())) // the client may be gone
	return nil
}

// collect makes the metrics of an instance. Precondition: mu is held.
func (s *shown) collect(in *trace.Instance) (*metrics.Set, error) {
	set, core := metrics.NewSet(), engine.Of(in.Core())
	before := s.now
	s.now = map[*hit.Histogram]*metrics.Counted{}
	var errs []error
	in.EachCounts(func(e trace.EventCounts) {
		labels := []metrics.Label{{Name: "group", Value: e.Group}, {Name: "event", Value: e.Name}}
		counter := func(name, help string, n uint64) {
			errs = append(errs, set.Add(metrics.Family{Name: name, Help: help, Kind: metrics.Counter, Samples: []metrics.Sample{{Labels: labels, Value: metrics.Uint(n)}}}))
		}
		if len(e.Defs) > 0 { // it is a probe
			counter("kprobe_hits_total", "Hits of an event since it was defined.", e.Hits)
			counter("kprobe_missed_total", "Hits at which nothing could be done: a return probe without a free instance.", e.Missed)
			counter("kprobe_lost_total", "Records of hits that are lost: the ring was full.", e.Lost)
		}
		for _, h := range e.Histograms {
			if metrics.CheckKeys(h.Definition()) != nil {
				continue // a profile shows callers
			}
			c := before[h]
			if c == nil {
				c = &metrics.Counted{Labels: labels, Unit: unitOf(e.Defs), Symbol: core.Symbol, Max: maxSeries}
			}
			s.now[h] = c
			errs = append(errs, c.Add(set, h))
		}
	})
	return set, errors.Join(errs...)
}

// unitOf tells which arguments of an event are times.
func unitOf(defs []*event.Def) func(field string) time.Duration {
	return func(field string) time.Duration {
		for _, d := range defs {
			for _, a := range d.Args {
				if a.Name == field && a.Expr != nil && a.Expr.Kind == event.ExprDuration {
					return time.Nanosecond
				}
			}
		}
		return 0
	}
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/httpaccess"
	"kprobes.dev/kprobes/internal/metrics"
)

// token gives what requests must bear: it is read from the file at each.
func (*agentRun) token(file string) func() (string, error) {
	return func() (string, error) {
		if file == "" {
			return "", errors.New("write token_file, with the name of a file that has one")
		}
		return httpaccess.FileToken(file, "token_file")
	}
}

// healthy answers whether the agent runs.
func healthy(w http.ResponseWriter, _ *http.Request) error {
	_, _ = w.Write([]byte("ok\n")) // the client may be gone
	return nil
}

// ready answers whether each target has been looked for, and the probes are armed in those that are there.
func (a *agentRun) ready(w http.ResponseWriter, r *http.Request) error {
	a.mu.Lock()
	targets, looked := a.targets, a.applied
	a.mu.Unlock()
	for _, t := range targets {
		t.mu.Lock()
		looked = looked && t.looked
		t.mu.Unlock()
	}
	if !looked {
		return httpaccess.Refuse(http.StatusServiceUnavailable, "not ready: probes are being armed\n")
	}
	return healthy(w, r)
}

// answer answers a request for the metrics.
func (a *agentRun) answer(w http.ResponseWriter, r *http.Request) error {
	set := metrics.NewSet()
	if err := a.collect(set); err != nil {
		return err
	}
	text, kind := metrics.Text(nil, set.Families()), metrics.TextType
	if metrics.Accepts(r.Header.Get("Accept")) {
		text, kind = metrics.OpenMetrics(nil, set.Families()), metrics.OpenMetricsType
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(text) // the client may be gone
	return nil
}

// family is the metric of one name while it is gathered.
type family struct {
	to  *metrics.Set
	err error
}

func (f *family) add(kind metrics.Kind, name, help string, n uint64, labels ...metrics.Label) {
	f.err = errors.Join(f.err, f.to.Add(metrics.Family{Name: name, Help: help, Kind: kind, Samples: []metrics.Sample{{Labels: labels, Value: metrics.Uint(n)}}}))
}

// collect adds all metrics to a set.
func (a *agentRun) collect(to *metrics.Set) error {
	a.mu.Lock()
	targets, accepted, rejected, refused := a.targets, a.accepted, a.rejected, a.refused
	a.mu.Unlock()
	f := &family{to: to}
	const reloads = "kprobe_agent_reloads_total"
	f.add(metrics.Counter, reloads, "Times that the configuration was read anew.", accepted, metrics.Label{Name: "result", Value: "accepted"})
	f.add(metrics.Counter, reloads, "", rejected, metrics.Label{Name: "result", Value: "rejected"})
	f.add(metrics.Gauge, "kprobe_agent_config_rejected", "1 if the configuration that was read last was rejected: an older one is in force.", oneIf(refused))
	for _, t := range targets {
		t.mu.Lock()
		err := t.collect(f)
		t.mu.Unlock()
		if f.err = errors.Join(f.err, err); f.err != nil {
			return f.err
		}
	}
	return nil
}

func oneIf(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// collect adds the metrics of a target. Precondition: t.mu is held.
func (t *agentTarget) collect(f *family) error {
	of := metrics.Label{Name: "target", Value: t.is.Name}
	f.add(metrics.Gauge, "kprobe_target_up", "1 if the process of a target has been opened.", oneIf(t.process != nil), of)
	f.add(metrics.Counter, "kprobe_target_processes_total", "Processes of a target that have been opened.", t.opened, of)
	if p := t.process; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	t.collectSpans(f, of)
	for _, one := range t.probes {
		var armed *agentArmed
		if t.process != nil {
			armed = t.process.probes[one]
		}
		for _, n := range one.sum(t.process, armed) {
			labels := one.labels(t, n.group, n.name)
			f.add(metrics.Counter, "kprobe_hits_total", "Hits of an event, also those that did not pass its filter.", n.Hits, labels...)
			f.add(metrics.Counter, "kprobe_missed_total", "Hits at which nothing could be done: a return probe without a free instance.", n.Missed, labels...)
			f.add(metrics.Counter, "kprobe_lost_total", "Records of hits that are lost: the ring was full.", n.Lost, labels...)
			f.add(metrics.Counter, "kprobe_over_budget_total", "Hits beyond the event's budget, at which nothing was done.", n.Over, labels...)
			if n.filtered {
				f.add(metrics.Counter, "kprobe_filtered_total", "Hits that did not pass the event's filter.", n.Filtered, labels...)
			}
		}
		probe := append([]metrics.Label{of, {Name: "probe", Value: one.is.Define}}, textLabels(one.is.Labels)...)
		f.add(metrics.Gauge, "kprobe_probe_armed", "1 if a probe is armed in the process of its target.", oneIf(armed != nil && len(armed.evs) > 0), probe...)
		f.add(metrics.Gauge, "kprobe_probe_disabled_events", "Events of a probe that their budget has disabled.", armed.disabled(), probe...)
		f.add(metrics.Counter, "kprobe_probe_failed_total", "Processes in which a probe could not be armed: the audit lines have the reasons.", one.failed, probe...)
		hists, err := one.histograms(t, t.process, armed)
		if err == nil {
			err = f.to.AddAll(hists)
		}
		if err != nil {
			return err
		}
	}
	return f.err
}

// collectSpans adds what has become of calls. Preconditions: t.mu and the process's lock are held.
func (t *agentTarget) collectSpans(f *family, of metrics.Label) {
	if !slices.ContainsFunc(t.probes, func(p *agentProbe) bool { return p.is.Spans }) && t.sent.made.Spans == 0 {
		return
	}
	made, sent := t.sent.made, t.sent.sent
	if p := t.process; p != nil && p.spans != nil {
		made = sumSpans(made, p.spans.stats())
	}
	for _, e := range t.sent.open {
		sent = sumSent(sent, e.Stats())
	}
	for _, one := range []struct {
		result string
		n      uint64
	}{{"made", made.Spans}, {"unjoined", made.Unjoined}, {"unfollowed", made.Unfollowed}, {"sent", sent.Sent}, {"rejected", sent.Rejected}, {"failed", sent.Failed}, {"dropped", sent.Dropped}} {
		f.add(metrics.Counter, "kprobe_spans_total", "Calls that became spans, and what has become of these.", one.n, of, metrics.Label{Name: "result", Value: one.result})
	}
}

// labels are those of an event.
func (p *agentProbe) labels(t *agentTarget, group, name string) []metrics.Label {
	return append([]metrics.Label{{Name: "target", Value: t.is.Name}, {Name: "group", Value: group}, {Name: "event", Value: name}}, textLabels(p.is.Labels)...)
}

func textLabels(all map[string]string) (out []metrics.Label) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, metrics.Label{Name: name, Value: all[name]})
	}
	return out
}

// disabled counts the events that their budget has disabled.
func (a *agentArmed) disabled() (n uint64) {
	if a == nil {
		return 0
	}
	for _, ev := range a.evs {
		n += oneIf(engine.OfEvent(ev).Exceeded() != nil)
	}
	return n
}

// sum is what the events of a probe have counted in all processes. Precondition: the target's lock is held.
func (p *agentProbe) sum(of *agentProcess, armed *agentArmed) []*eventCounts {
	var out []*eventCounts
	at := func(group, name string) *eventCounts {
		i := slices.IndexFunc(out, func(n *eventCounts) bool { return n.group == group && n.name == name })
		if i < 0 {
			i, out = len(out), append(out, &eventCounts{group: group, name: name})
		}
		return out[i]
	}
	for _, n := range p.counts {
		one := *n
		out = append(out, &one)
	}
	if armed == nil {
		return out
	}
	for _, ev := range armed.evs {
		n, to := of.p.core.Counts(ev), at(ev.Group, ev.Name)
		to.Hits += n.Hits
		to.Missed += n.Missed
		to.Lost += n.Lost
		to.Filtered += n.Filtered
		to.Over += n.Over
		to.filtered = to.filtered || ev.Def.Filter != ""
	}
	return out
}

// histograms are those of the events of a probe, in all processes. Preconditions: the locks of the target and of the process are held.
func (p *agentProbe) histograms(t *agentTarget, of *agentProcess, armed *agentArmed) (*metrics.Set, error) {
	set := metrics.NewSet()
	if err := set.AddAll(p.hists); err != nil || armed == nil {
		return set, err
	}
	core := engine.Of(of.p.core)
	for _, h := range armed.hists {
		key := h.group + "/" + h.name
		c := p.shown[key]
		if c == nil {
			c = &metrics.Counted{Labels: p.labels(t, h.group, h.name), Unit: unitsOf(h.ev.Def), Max: defaultSeries}
			p.shown[key] = c
		}
		c.Symbol = core.Symbol
		now := h.hist.Copy()
		entries, dropped, ok, err := core.Histogram(h.ev)
		if ok {
			now.Load(entries, dropped)
		}
		if err = errors.Join(err, c.Add(set, now)); err != nil {
			return nil, err
		}
	}
	set.Merge()
	return set, nil
}

// unitsOf says what 1 of an argument stands for; 0: it is no time.
func unitsOf(d *event.Def) func(string) time.Duration {
	return func(field string) time.Duration {
		if slices.ContainsFunc(d.Args, func(a event.Arg) bool { return a.Name == field && a.Expr.Kind == event.ExprDuration }) {
			return time.Nanosecond
		}
		return 0
	}
}

// keep keeps what the events have counted in a process that is left. Precondition: the target's lock is held, and no hits are taken any more.
func (p *agentProbe) keep(of *agentProcess, armed *agentArmed) {
	p.counts = p.sum(of, armed)
	slices.SortFunc(p.counts, func(a, b *eventCounts) int { return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.name, b.name)) })
	hists, err := p.histograms(of.t, of, armed)
	if err != nil {
		of.say("histogram lost", "probe", p.is.Define, "error", fmt.Sprint(err))
		return
	}
	p.hists = hists
}

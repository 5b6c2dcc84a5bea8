package main

import (
	"errors"
	"maps"
	"net/http"
	"slices"

	"kprobes.dev/kprobes/internal/executables"
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
		if f.err = errors.Join(f.err, t.collect(f)); f.err != nil {
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

// collect adds the metrics of a target.
func (t *agentTarget) collect(f *family) error {
	of := metrics.Label{Name: "target", Value: t.is.Name}
	t.mu.Lock()
	probes, up, opened, set := t.probes, len(t.processes), t.opened, t.set
	t.mu.Unlock()
	f.add(metrics.Gauge, "kprobe_target_up", "Processes of a target that have been opened and have not been left.", uint64(up), of)
	f.add(metrics.Counter, "kprobe_target_processes_total", "Processes of a target that have been opened.", opened, of)
	if set != nil {
		collectSet(f, set.Counts(), of)
	}
	t.collectSpans(f, probes, of)
	for _, one := range probes {
		if err := t.collectProbe(f, one, of); err != nil {
			return err
		}
	}
	return f.err
}

// collectSet adds how processes of a program were met.
func collectSet(f *family, n executables.Counts, of metrics.Label) {
	for _, one := range []struct {
		how string
		n   uint64
	}{{"first", n.First}, {"running", n.Running}, {"late", n.Late}, {"forked", n.Forked}} {
		f.add(metrics.Counter, "kprobe_target_met_total", "Processes of a program that have been opened, by how they were met.", one.n, of, metrics.Label{Name: "how", Value: one.how})
	}
	for _, one := range []struct {
		why string
		n   uint64
	}{{"refused", n.Refused}, {"short", n.Short}, {"unseen", n.Unseen}} {
		f.add(metrics.Counter, "kprobe_target_unprobed_total", "Processes of a program that have no probes, by the reason.", one.n, of, metrics.Label{Name: "why", Value: one.why})
	}
}

// collectProbe adds the metrics of a probe.
func (t *agentTarget) collectProbe(f *family, one *agentProbe, of metrics.Label) error {
	sums, err := one.sums()
	if err != nil {
		return err
	}
	for _, n := range sums.counts {
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
	f.add(metrics.Gauge, "kprobe_probe_armed", "Processes of its target in which a probe is armed.", sums.armed, probe...)
	f.add(metrics.Gauge, "kprobe_probe_disabled_events", "Events of a probe that their budget has disabled.", sums.disabledEvents, probe...)
	f.add(metrics.Counter, "kprobe_probe_failed_total", "Processes in which a probe could not be armed: the audit lines have the reasons.", sums.failed, probe...)
	return errors.Join(f.err, f.to.AddAll(sums.hists))
}

// collectSpans adds what has become of calls.
func (t *agentTarget) collectSpans(f *family, probes []*agentProbe, of metrics.Label) {
	made, sent := t.spanSums()
	if !slices.ContainsFunc(probes, func(p *agentProbe) bool { return p.is.Spans }) && made.Spans == 0 {
		return
	}
	for _, one := range []struct {
		result string
		n      uint64
	}{{"made", made.Spans}, {"unjoined", made.Unjoined}, {"unfollowed", made.Unfollowed}, {"unread", made.Unread}, {"sent", sent.Sent}, {"rejected", sent.Rejected}, {"failed", sent.Failed}, {"dropped", sent.Dropped}} {
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

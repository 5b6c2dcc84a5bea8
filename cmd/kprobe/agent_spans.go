package main

import (
	"errors"
	"maps"
	"net/http"
	"slices"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spans"
)

// updateSpans makes the calls that become spans those of the target. All of a process are made anew if one changes: which call is in which is
// found among all.
func (p *agentProcess) updateSpans(probes []*agentProbe, why string) {
	have := 0
	for one := range p.probes {
		if one.is.Spans {
			have++
		}
	}
	var want []*agentProbe
	for _, one := range probes {
		if one.is.Spans {
			want = append(want, one)
		}
	}
	if have == len(want) && !slices.ContainsFunc(want, func(one *agentProbe) bool { return p.probes[one] == nil }) {
		return
	}
	for one, armed := range p.probes {
		if one.is.Spans {
			p.disarm(one, armed, why)
		}
	}
	p.endSpans(why)
	if len(want) == 0 {
		return
	}
	armed, err := p.armSpans(want)
	if p.spans != nil {
		p.t.mu.Lock()
		p.t.sent.making[p.spans] = p
		p.t.sent.open[p.spans.out.exporter] = true
		p.t.mu.Unlock()
	}
	for i, one := range want {
		p.set(one, armed[i])
		if err != nil {
			p.say("arm failed", "probe", one.is.Define, "why", why, "error", err.Error())
		} else {
			p.say("armed", "probe", one.is.Define, "events", len(armed[i].evs), "why", why)
		}
	}
}

// armSpans arms the probes of calls, all of them or none.
func (p *agentProcess) armSpans(want []*agentProbe) ([]*agentArmed, error) {
	armed := make([]*agentArmed, len(want))
	for i := range armed {
		armed[i] = &agentArmed{probed: probed{core: p.p.core}, p: p}
	}
	g, err := p.newSpans(want)
	if err != nil {
		return armed, err
	}
	of := &tracedProcess{probed: probed{core: p.p.core}, s: p.p.s}
	defs, err := g.define(of, nil)
	if err != nil {
		return armed, errors.Join(err, g.to.Close())
	}
	p.mu.Lock() // no hit is taken before it is known whose it is
	defer p.mu.Unlock()
	add := func(defs []*event.Def, o *kprobes.AddOptions) ([]*kprobes.Event, error) {
		evs, err := p.p.core.Add(defs, o)
		of.evs = append(of.evs, evs...)
		return evs, err
	}
	for i, c := range g.calls {
		o := p.addOptions(want[i])
		o.Inlines = kprobes.InlinesNone // an inlined call has no return
		if armed[i].evs, err = add([]*event.Def{c.entry, c.ret}, o); err != nil {
			break
		}
	}
	if runtime := defs[2*len(g.calls):]; err == nil && len(runtime) > 0 {
		p.runtime, err = add(runtime, &kprobes.AddOptions{Inlines: kprobes.InlinesNone})
	}
	if err == nil {
		err = g.prepare(of)
	}
	if err != nil {
		for _, one := range armed {
			one.evs = nil
		}
		p.runtime = nil
		return armed, errors.Join(err, p.p.core.Remove(of.evs), g.to.Close())
	}
	p.spans = g
	return armed, nil
}

// newSpans prepares what makes spans.
func (p *agentProcess) newSpans(want []*agentProbe) (*spanning, error) {
	to := p.t.a.otlp
	header := http.Header{}
	for name, value := range to.Headers {
		header.Set(name, value)
	}
	sender, err := otlp.Dial(to.Endpoint, header)
	if err != nil {
		return nil, err
	}
	g := &spanning{sample: 1, service: to.Service, to: sender}
	g.f.con, g.f.quiet = p.t.a.con, true
	g.f.of.pid = p.pid
	g.t = &tracing{f: &g.f, s: p.p}
	if g.t.printed, err = newLines(lineOptions{con: g.f.con, stat: true}); err != nil {
		return nil, err
	}
	g.t.printed.print.Names = p.p.s.names
	for _, one := range want {
		d, err := one.is.Def()
		if err != nil {
			return nil, err
		}
		g.calls = append(g.calls, &spanned{given: d, failing: one.is.Failed})
	}
	return g, nil
}

// endSpans hands over what makes spans to the exporter, and has that send what it has while others go on.
func (p *agentProcess) endSpans(why string) {
	g := p.spans
	if g == nil {
		return
	}
	if len(p.runtime) > 0 {
		if err := p.p.core.Remove(p.runtime); err != nil {
			p.say("disarm failed", "probe", "the runtime's", "why", why, "error", err.Error())
		}
		p.runtime = nil
	}
	p.mu.Lock() // no hit is taken any more, and nobody reads half of what is handed over
	p.spans = nil
	g.finish()
	p.mu.Unlock()
	t := p.t
	t.mu.Lock()
	t.sent.made = sumSpans(t.sent.made, g.stats())
	delete(t.sent.making, g)
	t.mu.Unlock()
	t.a.ending.Go(func() {
		st, err := g.out.exporter.Close()
		t.mu.Lock()
		delete(t.sent.open, g.out.exporter)
		t.sent.sent = sumSent(t.sent.sent, st)
		t.mu.Unlock()
		if err = errors.Join(st.Err, err); err != nil {
			t.a.say("spans lost", "target", t.is.Name, "pid", p.pid, "failed", st.Failed, "rejected", st.Rejected, "error", err.Error())
		}
	})
}

// agentSpans is what has become of the calls of a target.
type agentSpans struct {
	made   spans.Stats                 // by processes that have been left
	sent   otlp.Stats                  // by exporters that are closed
	making map[*spanning]*agentProcess // in the processes that there are
	open   map[*otlp.Exporter]bool
}

// spanSums sums up what has become of calls until now.
func (t *agentTarget) spanSums() (made spans.Stats, sent otlp.Stats) {
	t.mu.Lock()
	made, sent = t.sent.made, t.sent.sent
	making, open := maps.Clone(t.sent.making), slices.Collect(maps.Keys(t.sent.open))
	t.mu.Unlock()
	for g, p := range making {
		p.mu.Lock()
		made = sumSpans(made, g.stats())
		p.mu.Unlock()
	}
	for _, e := range open {
		sent = sumSent(sent, e.Stats())
	}
	return made, sent
}

func sumSent(a, b otlp.Stats) otlp.Stats {
	a.Sent += b.Sent
	a.Rejected += b.Rejected
	a.Failed += b.Failed
	a.Dropped += b.Dropped
	return a
}

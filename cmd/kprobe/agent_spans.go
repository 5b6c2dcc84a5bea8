package main

import (
	"errors"
	"net/http"
	"slices"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spans"
)

// updateSpans makes the calls that become spans those of the target. All of a process are made anew if one changes: which call is in which is
// found among all.
func (p *agentProcess) updateSpans(why string) {
	have := 0
	for one := range p.probes {
		if one.is.Spans {
			have++
		}
	}
	var want []*agentProbe
	for _, one := range p.t.probes {
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
		p.t.sent.open = append(p.t.sent.open, p.spans.out.exporter)
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
		armed[i] = &agentArmed{probed: probed{core: p.p.core}}
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
	p.mu.Lock()
	p.spans = nil
	p.mu.Unlock()
	if err := p.p.core.Remove(p.runtime); err != nil {
		p.say("disarm failed", "probe", "the runtime's", "why", why, "error", err.Error())
	}
	p.runtime = nil
	g.finish()
	t := p.t
	t.mu.Lock()
	t.sent.made = sumSpans(t.sent.made, g.stats())
	t.mu.Unlock()
	t.a.ending.Go(func() {
		st, err := g.out.exporter.Close()
		t.mu.Lock()
		t.sent.open = slices.DeleteFunc(t.sent.open, func(e *otlp.Exporter) bool { return e == g.out.exporter })
		t.sent.sent = sumSent(t.sent.sent, st)
		t.mu.Unlock()
		if err = errors.Join(st.Err, err); err != nil {
			t.a.say("spans lost", "target", t.is.Name, "pid", p.pid, "failed", st.Failed, "rejected", st.Rejected, "error", err.Error())
		}
	})
}

func sumSpans(a, b spans.Stats) spans.Stats {
	a.Spans += b.Spans
	a.Errors += b.Errors
	a.Left += b.Left
	a.Unjoined += b.Unjoined
	a.Unfollowed += b.Unfollowed
	return a
}

func sumSent(a, b otlp.Stats) otlp.Stats {
	a.Sent += b.Sent
	a.Rejected += b.Rejected
	a.Failed += b.Failed
	a.Dropped += b.Dropped
	return a
}

package main

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spanmaker"
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
	armed, errs := p.armSpans(want)
	if p.spans != nil {
		p.t.mu.Lock()
		p.t.sent.making[p.spans] = p
		p.t.mu.Unlock()
	}
	for i, one := range want {
		p.set(one, armed[i])
		if errs[i] != nil {
			p.say("arm failed", "probe", one.is.Define, "why", why, "error", errs[i].Error())
		} else {
			p.say("armed", "probe", one.is.Define, "events", len(armed[i].evs), "why", why)
		}
	}
}

// armSpans arms the probes of calls: all of them or none, but for sets of which the program has nothing. It says why each is not armed.
func (p *agentProcess) armSpans(want []*agentProbe) ([]*agentArmed, []error) {
	armed, errs := make([]*agentArmed, len(want)), make([]error, len(want))
	for i := range armed {
		armed[i] = &agentArmed{probed: probed{core: p.p.core}, p: p}
	}
	m, err := p.addSpans(want, armed, errs)
	if err == nil {
		p.spans = m
		return armed, errs
	}
	for i, one := range armed {
		one.evs, errs[i] = nil, err
	}
	p.runtime = nil
	return armed, errs
}

// addSpans adds the probes of calls and prepares what makes spans of their hits. If that fails none is there.
func (p *agentProcess) addSpans(want []*agentProbe, armed []*agentArmed, errs []error) (m *spanmaker.Maker, err error) {
	m, probeOf, err := p.newSpans(want)
	if err != nil {
		return nil, err
	}
	defs, err := m.Define()
	if err != nil {
		return nil, err
	}
	missing, byProbe := m.Missing(), make([][]*event.Def, len(want))
	for _, c := range m.Calls() {
		i := probeOf[c]
		byProbe[i] = append(byProbe[i], c.Entry, c.Return)
	}
	p.mu.Lock() // no hit is taken before it is known whose it is
	defer p.mu.Unlock()
	var all []*kprobes.Event
	add := func(defs []*event.Def, o *kprobes.AddOptions) ([]*kprobes.Event, error) {
		evs, err := p.p.core.Add(defs, o)
		all = append(all, evs...)
		return evs, err
	}
	for i := 0; err == nil && i < len(want); i++ {
		if len(byProbe[i]) == 0 {
			errs[i] = fmt.Errorf("the program has none of its functions: %w", missing[want[i].is.Set])
			continue
		}
		o := p.addOptions(want[i])
		o.Inlines = kprobes.InlinesNone // an inlined call has no return
		armed[i].evs, err = add(byProbe[i], o)
	}
	if runtime := defs[2*len(m.Calls()):]; err == nil && len(runtime) > 0 {
		p.runtime, err = add(runtime, &kprobes.AddOptions{Inlines: kprobes.InlinesNone})
	}
	if err == nil {
		err = m.Prepare(engineEvents(all))
	}
	if err != nil {
		return nil, errors.Join(err, p.p.core.Remove(all))
	}
	return m, nil
}

// newSpans prepares what makes spans. probeOf says which of the probes has a call.
func (p *agentProcess) newSpans(want []*agentProbe) (m *spanmaker.Maker, probeOf map[*spanmaker.Call]int, err error) {
	exporter, err := p.t.exporter()
	if err != nil {
		return nil, nil, err
	}
	var calls []*spanmaker.Call
	probeOf = map[*spanmaker.Call]int{}
	for i, one := range want {
		of, err := one.is.Calls()
		if err != nil {
			return nil, nil, err
		}
		for _, c := range of {
			call := spanmaker.OfProbe(c)
			if one.is.Set != "" {
				call = spanmaker.OfSet(one.is.Set, c)
			}
			probeOf[call] = i
			calls = append(calls, call)
		}
	}
	is := spanmaker.Resource(engine.Of(p.p.core), p.t.a.otlp.Service, plainVersion(), p.pid)
	m = spanmaker.New(engine.Of(p.p.core), calls, &spanmaker.Options{
		Words: spanmaker.Words{Set: "set", Error: "failed", Errors: "errors"},
		Names: p.p.s.names, Add: &engine.AddOptions{Late: true, Found: true, Inlines: engine.InlinesNone},
		Emit: func(s *otlp.Span) {
			s.Of = is
			exporter.Export(s)
		},
		Tell: func(what spanmaker.Notice, text string) {
			if what == spanmaker.Defect {
				p.say("left out", "error", text)
			}
		},
	})
	return m, probeOf, nil
}

// endSpans hands over what makes spans to the exporter, which goes on.
func (p *agentProcess) endSpans(why string) {
	m := p.spans
	if m == nil {
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
	m.Finish()
	p.mu.Unlock()
	t := p.t
	t.mu.Lock()
	t.sent.made.Add(m.Stats())
	delete(t.sent.making, m)
	t.mu.Unlock()
}

// exporter gives what sends the spans of all processes of the target. Each span says of which process it is.
func (t *agentTarget) exporter() (*otlp.Exporter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sent.exporter != nil {
		return t.sent.exporter, nil
	}
	to, header := t.a.otlp, http.Header{}
	for name, value := range to.Headers {
		header.Set(name, value)
	}
	sender, err := otlp.Dial(to.Endpoint, header)
	if err != nil {
		return nil, err
	}
	t.sent.exporter = otlp.NewExporter(sender, &otlp.Options{Scope: otlp.Scope{Name: "kprobe", Version: plainVersion()}, Lost: t.lostSpans})
	return t.sent.exporter, nil
}

// lostSpans says that spans could not be sent, or were not taken. Each reason is told once.
func (t *agentTarget) lostSpans(n uint64, why error) {
	t.sent.losses.once(why.Error(), func() {
		t.a.say("spans lost", "target", t.is.Name, "spans", n, "error", why.Error())
	})
}

// endSending has the exporter send what it has while others go on. Precondition: all processes have been left.
func (t *agentTarget) endSending() {
	t.mu.Lock()
	e := t.sent.exporter
	t.mu.Unlock()
	if e == nil {
		return
	}
	t.a.ending.Go(func() {
		st, err := e.Close()
		if lost := st.Failed + st.Rejected + st.Dropped; lost > 0 || err != nil {
			t.a.say("spans lost", "target", t.is.Name, "failed", st.Failed, "rejected", st.Rejected, "dropped", st.Dropped, "error", fmt.Sprint(errors.Join(st.Err, err)))
		}
	})
}

// spanSums sums up what has become of calls until now.
func (t *agentTarget) spanSums() (made spanmaker.Stats, sent otlp.Stats) {
	t.mu.Lock()
	made = t.sent.made
	making, exporter := maps.Clone(t.sent.making), t.sent.exporter
	t.mu.Unlock()
	for m, p := range making {
		p.mu.Lock()
		made.Add(m.Stats())
		p.mu.Unlock()
	}
	if exporter != nil {
		sent = exporter.Stats()
	}
	return made, sent
}

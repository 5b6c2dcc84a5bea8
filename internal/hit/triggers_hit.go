package hit

import (
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// Hit runs the triggers of a hit's event, and says what is shown of the hit. names gives the thread's name where the record has none.
//
// As in the kernel,
//   - triggers act at all hits of the event, also at those that are not shown: tracing is off, the event is disabled, or its filter does
//     not let them pass;
//   - the trigger added last acts first, and histograms behind all others;
//   - traceoff and stacktrace act when it is decided whether the hit is shown, all others before: the hit at which traceoff acts is
//     shown, that at which an event disables itself is not. A stack is shown if tracing is on then;
//   - the hit at which traceon acts is shown, but for an event that is enabled, has no filter, and has a trigger that needs the record
//     (a filter, hist, traceoff, stacktrace);
//   - the hit at which an event enables itself is shown if a trigger needs the record;
//   - a Count goes down when there was something to switch, and when callers are shown or histograms switched at each hit.
func (s *Triggers) Hit(h *Hit, names Namer) Shown {
	e := s.events[[2]string{h.Event.Group, h.Event.Name}]
	if e == nil || len(e.triggers) == 0 && e.filter == nil {
		return Shown{Line: !s.off && (e == nil || !e.state.SoftDisabled)}
	}
	o, err := s.occurrence(h, names)
	if err != nil { // whoever shows it says so
		return Shown{Line: !s.off && !e.state.SoftDisabled}
	}
	return s.run(e, o)
}

// run runs the triggers of an event, and says what is shown.
func (s *Triggers) run(e *triggerEvent, o *occurrence) (shown Shown) {
	// Where triggers need the record the kernel takes room in the ring before they act, and if tracing is off then, the record is not
	// kept. A record that may be thrown away is made elsewhere first, and takes room behind them (trace_event_buffer_lock_reserve in
	// kernel/trace/trace.c).
	roomFirst := e.conditional && !e.state.SoftDisabled && e.filter == nil
	// Where none does it looks before they act whether the event is disabled (__trace_trigger_soft_disabled), and behind them again.
	skipped := !e.conditional && e.state.SoftDisabled
	recorded := !s.off
	var post []*trigger
	for _, t := range e.triggers {
		switch {
		case t.hist != nil && t.hist.paused || !matches(t.filter, o):
		case t.post():
			post = append(post, t)
		default:
			s.act(t, o)
		}
	}
	if !roomFirst {
		recorded = !s.off
	}
	passes := matches(e.filter, o)
	if !passes {
		e.filtered++
	}
	shown.Line = recorded && !skipped && !e.state.SoftDisabled && passes
	for _, t := range post {
		acted := s.act(t, o)
		shown.Stack = shown.Stack || acted && t.def.Command == event.TriggerStacktrace && !s.off
	}
	return shown
}

// occurrence reads the record of a hit.
func (s *Triggers) occurrence(h *Hit, names Namer) (*occurrence, error) {
	o := &occurrence{hit: h, comm: h.Comm}
	if o.comm == "" {
		o.comm = names.Comm(h.TID)
	}
	if h.Event.Prog == nil {
		return o, nil
	}
	vs, err := h.Event.Prog.DecodeInto(s.values[:0], h.Rec, h.Event.ArgsOff, o.comm)
	if s.values = vs; err != nil {
		return nil, err
	}
	h.Hide(vs)
	o.values = vs
	return o, nil
}

// matches says whether a hit passes a filter; nil lets all pass.
func matches(f *fetch.Filter, o *occurrence) bool {
	h := o.hit
	return f == nil || f.Match(o.values, &fetch.FilterHit{IP: h.Addr(), Ret: h.Caller, PID: uint64(h.TID), CPU: uint64(h.CPU), Comm: o.comm})
}

// act has a trigger act, and says whether there was something to do, and its count was not used up.
func (s *Triggers) act(t *trigger, o *occurrence) bool {
	on := t.def.Command == t.kind() // of the commands that switch something
	switch t.def.Command {
	case event.TriggerTraceOn, event.TriggerTraceOff:
		if s.off == !on || !t.take() {
			return false
		}
		s.off = !on
	case event.TriggerEnableEvent, event.TriggerDisableEvent:
		if t.target.state.SoftDisabled == !on || !t.take() {
			return false
		}
		t.target.state.SoftDisabled = !on
	case event.TriggerHist:
		t.hist.count(&occurrence{hit: o.hit, values: o.values, comm: o.comm}, s.trace)
	default:
		if !t.take() {
			return false
		}
		switch {
		case t.target != nil:
			t.target.pause(!on)
		case t.def.Command == event.TriggerSnapshot:
			s.host.Snapshot()
		}
	}
	return true
}

// take takes one of the times that the trigger acts, if any is left.
func (t *trigger) take() bool {
	switch t.left {
	case 0:
		return false
	case event.Unlimited:
	default:
		t.left--
	}
	return true
}

// pause has the event's histograms count no more, or count again.
func (e *triggerEvent) pause(paused bool) {
	for _, t := range e.triggers {
		if t.hist != nil {
			t.hist.paused = paused
		}
	}
}

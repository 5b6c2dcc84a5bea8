package hit

import (
	"fmt"
	"slices"
	"syscall"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
)

// Triggers runs the triggers of events, and says what is shown of each hit. It does what the kernel does
// (kernel/trace/trace_events_trigger.c, Linux 6.18): see Hit. Hits are to come in the order of their times. It is not safe for use by
// several goroutines.
//
// The first trigger added that switches tracing, or an event, says how that begins: a traceon or enable_event that it begins off, or
// that trigger would have nothing to do. What no trigger switches is on.
type Triggers struct {
	off      bool // tracing is
	switches bool // a trigger switches tracing
	events   map[[2]string]*triggerEvent
	names    []string // of the events, GROUP:EVENT
	hists    *Histograms
	values   []fetch.Value
}

// triggerEvent is an event that may have triggers.
type triggerEvent struct {
	compile  func(filter string) (*fetch.Filter, error)
	triggers []*trigger    // in the order in which they act
	filter   *fetch.Filter // what is shown; triggers act whatever it says
	filtered uint64        // hits that did not pass filter
	disabled bool
	switches bool // a trigger enables or disables it
	mixed    bool // its probes have not all the same fields
	// conditional: a trigger needs the hit's record, so that triggers act when the record has been made and not before.
	conditional bool
}

// trigger is one that has been added to an event.
type trigger struct {
	def    *event.Trigger
	left   uint64        // how often it still acts
	filter *fetch.Filter // nil: it acts at all hits
	target *triggerEvent // whose switch it is; nil: Command names none
	hist   *Histogram    // of TriggerHist
}

// Shown says what is shown of a hit.
type Shown struct {
	Line  bool // the hit
	Stack bool // its stack, since a stacktrace trigger acted; without Line by itself
}

// NewTriggers makes a set without events.
func NewTriggers() *Triggers {
	return &Triggers{events: map[[2]string]*triggerEvent{}, hists: NewHistograms()}
}

// Event tells of an event with a program of arguments; nil: its object is not there yet. compile compiles a filter for the event. All
// events are to be told of before triggers are added. An event of several probes is told of with each.
func (s *Triggers) Event(group, name string, prog *fetch.Program, compile func(filter string) (*fetch.Filter, error)) {
	key := [2]string{group, name}
	e := s.events[key]
	if e == nil {
		e = &triggerEvent{compile: compile}
		s.events[key] = e
		s.names = append(s.names, group+":"+name)
	}
	if prog != nil && !s.hists.Event(group, name, prog) {
		e.mixed = true
	}
}

// errMixed is why an event's fields can not be told apart.
const errMixed = "the probes of the event have not all the same arguments: say their types, name=arg:u64"

// Filter gives an event the filter that its hits must pass to be shown. The error is an *event.FilterError, or EINVAL: the event's
// probes have not all the same fields.
func (s *Triggers) Filter(group, name, text string) error {
	e := s.events[[2]string{group, name}]
	if e.mixed {
		return errno.Errorf(syscall.EINVAL, "filter %q: %s", text, errMixed)
	}
	f, err := e.compile(text)
	if err != nil {
		return err
	}
	e.filter = f
	return nil
}

// Filtered gives the number of hits that did not pass the event's filter; false: it has none.
func (s *Triggers) Filtered(group, name string) (n uint64, ok bool) {
	e := s.events[[2]string{group, name}]
	if e == nil || e.filter == nil {
		return 0, false
	}
	return e.filtered, true
}

// Add adds a trigger to an event. The histogram of a hist trigger is given back. The error is an *event.TriggerError (EINVAL: there is
// no event of the name; EEXIST: the event has such a trigger already), *event.FilterError or *event.HistError.
func (s *Triggers) Add(group, name string, def *event.Trigger) (*Histogram, error) {
	e := s.events[[2]string{group, name}]
	t := &trigger{def: def, left: def.Count}
	if def.Command.HasTarget() {
		if t.target = s.events[[2]string{def.Group, def.Name}]; t.target == nil {
			named := def.Group + ":" + def.Name
			return nil, def.Refuse(syscall.EINVAL, named, "there is no event "+named+symbol.DidYouMean(symbol.Nearest(named, s.names)))
		}
	}
	for _, other := range e.triggers {
		if t.collides(other) {
			why := fmt.Sprintf("the event %s:%s has %s already: one of a kind is taken%s", group, name, other.def, kinds[def.Command])
			return nil, def.Refuse(syscall.EEXIST, "", why)
		}
	}
	if e.mixed && (def.Filter != "" || def.Hist != nil) {
		return nil, def.Refuse(syscall.EINVAL, "", errMixed)
	}
	if def.Filter != "" {
		var err error
		if t.filter, err = e.compile(def.Filter); err != nil {
			return nil, err
		}
	}
	if def.Command == event.TriggerHist {
		return s.addHist(e, t, group, name)
	}
	switch def.Command {
	case event.TriggerTraceOn, event.TriggerTraceOff:
		first(&s.switches, &s.off, def.Command == event.TriggerTraceOn)
	case event.TriggerEnableEvent, event.TriggerDisableEvent:
		first(&t.target.switches, &t.target.disabled, def.Command == event.TriggerEnableEvent)
	}
	e.triggers = slices.Insert(e.triggers, 0, t) // the last added acts first (list_add_rcu in register_trigger)
	e.conditional = e.conditional || t.filter != nil || t.post()
	return nil, nil
}

// first sets a switch by the first trigger that switches it.
func first(switches, off *bool, begins bool) {
	if !*switches {
		*switches, *off = true, begins
	}
}

// addHist adds a hist trigger, which acts behind all others (list_add_tail_rcu in hist_trigger_enable).
func (s *Triggers) addHist(e *triggerEvent, t *trigger, group, name string) (*Histogram, error) {
	for i := range t.def.Hist.Actions {
		if a := &t.def.Hist.Actions[i]; !a.Save {
			return nil, t.def.Hist.Refuse(event.HistUnsupported, a.Name, "a synthetic event is traced by kprobe hist")
		}
	}
	h, err := s.hists.Add(group, name, t.def.Hist)
	if err != nil {
		return nil, err
	}
	t.hist = h
	e.triggers = append(e.triggers, t)
	e.conditional = true
	return h, nil
}

// kinds says beside what a trigger can not stand.
var kinds = [...]string{
	event.TriggerTraceOn:      " (traceon, traceoff)",
	event.TriggerTraceOff:     " (traceon, traceoff)",
	event.TriggerStacktrace:   "",
	event.TriggerEnableEvent:  " for each event that is enabled or disabled",
	event.TriggerDisableEvent: " for each event that is enabled or disabled",
	event.TriggerEnableHist:   " for each event whose histograms are enabled or disabled",
	event.TriggerDisableHist:  " for each event whose histograms are enabled or disabled",
	event.TriggerHist:         " of the same keys, values, order and filter",
}

// kind is the command, of one that switches something off the one that switches it on: an event takes one of a kind, for each target.
func (t *trigger) kind() event.TriggerCommand {
	switch t.def.Command {
	case event.TriggerTraceOff:
		return event.TriggerTraceOn
	case event.TriggerDisableEvent:
		return event.TriggerEnableEvent
	case event.TriggerDisableHist:
		return event.TriggerEnableHist
	}
	return t.def.Command
}

// collides says whether two triggers of an event are of one kind.
func (t *trigger) collides(o *trigger) bool {
	if t.kind() != o.kind() || t.target != o.target {
		return false
	}
	if t.def.Command != event.TriggerHist {
		return true
	}
	a, b := *t.def.Hist, *o.def.Hist
	a.Size = b.Size
	return a.String() == b.String()
}

// post says whether the trigger acts when the hit has been recorded, not before (EVENT_CMD_FL_POST_TRIGGER).
func (t *trigger) post() bool {
	return t.def.Command == event.TriggerTraceOff || t.def.Command == event.TriggerStacktrace
}

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
func (s *Triggers) Hit(h *Hit, names Namer) (shown Shown) {
	e := s.events[[2]string{h.Event.Group, h.Event.Name}]
	if e == nil || len(e.triggers) == 0 && e.filter == nil {
		return Shown{Line: !s.off && (e == nil || !e.disabled)}
	}
	o, err := s.occurrence(h, names)
	if err != nil { // whoever shows it says so
		return Shown{Line: !s.off && !e.disabled}
	}
	// Where triggers need the record the kernel takes room in the ring before they act, and if tracing is off then, the record is not
	// kept. A record that may be thrown away is made elsewhere first, and takes room behind them (trace_event_buffer_lock_reserve in
	// kernel/trace/trace.c).
	roomFirst := e.conditional && !e.disabled && e.filter == nil
	// Where none does it looks before they act whether the event is disabled (__trace_trigger_soft_disabled), and behind them again.
	skipped := !e.conditional && e.disabled
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
	shown.Line = recorded && !skipped && !e.disabled && passes
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
	if h.Unknown {
		fetch.HideResults(vs)
	}
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
		if t.target.disabled == !on || !t.take() {
			return false
		}
		t.target.disabled = !on
	case event.TriggerHist:
		t.hist.count(&occurrence{hit: o.hit, values: o.values, comm: o.comm}, nil)
	default:
		if !t.take() {
			return false
		}
		if t.target != nil {
			t.target.pause(!on)
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

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
// In a set of NewTriggers the first trigger added that switches tracing, or an event, says how that begins: a traceon or enable_event that
// it begins off, or that trigger would have nothing to do. What no trigger switches is on. NewLive makes a set in which nothing is guessed.
type Triggers struct {
	off        bool // tracing is
	switches   bool // a trigger switches tracing
	events     map[[2]string]*triggerEvent
	order      []*triggerEvent
	hists      *Histograms
	values     []fetch.Value
	host       *Host       // nil: the set is not live
	synthetics *Synthetics // of a live set
	snapshots  int         // commands that need Host.Snapshot
}

// triggerEvent is an event that may have triggers.
type triggerEvent struct {
	group, name string
	compile     func(filter string) (*fetch.Filter, error)
	synth       *event.Synthetic // nil: a probe
	known       bool             // its fields are
	triggers    []*trigger       // in the order in which they act
	filter      *fetch.Filter    // what is shown; triggers act whatever it says
	filtered    uint64           // hits that did not pass filter
	state       EventState
	holds       int  // of triggers; of a live set
	told        Need // what the host knows
	switches    bool // a trigger enables or disables it
	mixed       bool // its probes have not all the same fields
	busy        bool // a synthetic event that is being traced
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

// Event tells of an event with a program of arguments; nil: its object is not there yet, and Event is called again when it is. compile
// compiles a filter for the event. An event is to be told of before triggers that name it. One of several probes is told of with each.
func (s *Triggers) Event(group, name string, prog *fetch.Program, compile func(filter string) (*fetch.Filter, error)) {
	e := s.events[[2]string{group, name}]
	if e == nil {
		e = &triggerEvent{group: group, name: name}
		s.add(e)
	}
	if !e.known {
		e.compile, e.known = compile, prog != nil
	}
	if prog != nil && !s.hists.Event(group, name, prog) {
		e.mixed = true
	}
}

func (s *Triggers) add(e *triggerEvent) {
	s.events[[2]string{e.group, e.name}] = e
	s.order = append(s.order, e)
}

// errMixed is why an event's fields can not be told apart.
const errMixed = "the probes of the event have not all the same arguments: say their types, name=arg:u64"

// Filter gives an event the filter that its hits must pass to be shown; "" takes it away. The error is an *event.FilterError, ENOENT (there
// is no such event) or EINVAL: the event's probes have not all the same fields.
func (s *Triggers) Filter(group, name, text string) error {
	e, err := s.find(group, name)
	if err != nil {
		return err
	}
	if text == "" {
		e.filter = nil
		return nil
	}
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

// CheckFilter says why an event can not have a filter. Errors: those of Filter.
func (s *Triggers) CheckFilter(group, name, text string) error {
	e, err := s.find(group, name)
	if err != nil {
		return err
	}
	_, err = e.compile(text)
	return err
}

// Filtered gives the number of hits that did not pass the event's filter; false: it has none.
func (s *Triggers) Filtered(group, name string) (n uint64, ok bool) {
	e := s.events[[2]string{group, name}]
	if e == nil || e.filter == nil {
		return 0, false
	}
	return e.filtered, true
}

// Add adds a trigger to an event. The histogram of a hist trigger is given back. The error is an *event.TriggerError (EINVAL: there is no
// event of the name; EEXIST: the event has such a trigger already), *event.FilterError or *event.HistError, or ENOENT: there is no such
// event.
func (s *Triggers) Add(group, name string, def *event.Trigger) (*Histogram, error) {
	e, err := s.find(group, name)
	if err != nil {
		return nil, err
	}
	t := &trigger{def: def, left: def.Count}
	if t.target, err = s.targetOf(def); err != nil {
		return nil, err
	}
	if (e.mixed || !e.known) && (def.Filter != "" || def.Hist != nil) {
		why := errMixed
		if !e.mixed {
			why = fmt.Sprintf("the object of %s:%s is not there yet: nothing is known of its fields", group, name)
		}
		return nil, def.Refuse(syscall.EINVAL, "", why)
	}
	if def.Command == event.TriggerHist {
		return s.addHist(e, t)
	}
	if t.filter, err = e.filterOf(def.Filter); err != nil {
		return nil, err
	}
	for _, other := range e.triggers {
		if t.collides(other) {
			why := fmt.Sprintf("the event %s:%s has %s already: one of a kind is taken%s", group, name, other, kinds[def.Command])
			return nil, def.Refuse(syscall.EEXIST, "", why)
		}
	}
	if s.host == nil {
		switch def.Command {
		case event.TriggerTraceOn, event.TriggerTraceOff:
			first(&s.switches, &s.off, def.Command == event.TriggerTraceOn)
		case event.TriggerEnableEvent, event.TriggerDisableEvent:
			first(&t.target.switches, &t.target.state.SoftDisabled, def.Command == event.TriggerEnableEvent)
		}
	}
	return nil, s.insert(e, t, 0) // the last added acts first (list_add_rcu in register_trigger)
}

// targetOf finds the event that a trigger names; nil: it names none.
func (s *Triggers) targetOf(def *event.Trigger) (*triggerEvent, error) {
	if !def.Command.HasTarget() {
		return nil, nil
	}
	if e := s.events[[2]string{def.Group, def.Name}]; e != nil {
		return e, nil
	}
	named := def.Group + ":" + def.Name
	var names []string
	for _, e := range s.order {
		names = append(names, e.group+":"+e.name)
	}
	return nil, def.Refuse(syscall.EINVAL, named, "there is no event "+named+symbol.DidYouMean(symbol.Nearest(named, names)))
}

// filterOf compiles a filter of the event; "": none.
func (e *triggerEvent) filterOf(text string) (*fetch.Filter, error) {
	if text == "" {
		return nil, nil
	}
	return e.compile(text)
}

// first sets a switch by the first trigger that switches it.
func first(switches, off *bool, begins bool) {
	if !*switches {
		*switches, *off = true, begins
	}
}

// insert puts a trigger among those of its event.
func (s *Triggers) insert(e *triggerEvent, t *trigger, at int) error {
	e.triggers = slices.Insert(e.triggers, at, t)
	e.judge()
	if s.host == nil {
		return nil
	}
	err := s.reserve(t, 1)
	if err == nil {
		if err = s.holdAll(t.target, e); err == nil {
			return nil
		}
		_ = s.reserve(t, -1)
	}
	e.triggers = slices.Delete(e.triggers, at, at+1)
	e.judge()
	return err
}

// judge finds out whether a trigger of the event needs the hit's record.
func (e *triggerEvent) judge() {
	e.conditional = slices.ContainsFunc(e.triggers, func(t *trigger) bool { return t.filter != nil || t.hist != nil || t.post() })
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
	event.TriggerSnapshot:     "",
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
func (t *trigger) collides(o *trigger) bool { return t.kind() == o.kind() && t.target == o.target }

// String is the trigger as the event's trigger file shows it.
func (t *trigger) String() string {
	if t.hist != nil {
		return t.hist.String()
	}
	shown := *t.def
	shown.Count = t.left
	return shown.String()
}

// post says whether the trigger acts when the hit has been recorded, not before (EVENT_CMD_FL_POST_TRIGGER).
func (t *trigger) post() bool {
	return t.def.Command == event.TriggerTraceOff || t.def.Command == event.TriggerStacktrace
}

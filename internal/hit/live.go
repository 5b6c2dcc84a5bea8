package hit

import (
	"slices"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
)

// Host is what a live set acts on: the trace instance whose triggers it runs. The functions run while the set works: they must not call
// it, except for Triggers.Need and Triggers.State. A function that is nil does nothing.
type Host struct {
	// Need is told when what an event needs of the target has changed. An error refuses the command that needs more; where less is
	// needed it is dropped.
	Need func(group, name string, n Need) error
	// Snapshot keeps what the buffer has, and empties the buffer. nil: triggers that need it are refused.
	Snapshot func()
	// Reserve is told that the first command needs Snapshot, and that none does any more. An error refuses the command.
	Reserve func(snapshots bool) error
	// Traced gets a synthetic event of which something is shown, at the hit that it is made of. The values are valid while it runs.
	Traced func(*event.Synthetic, *Hit, []fetch.Value, Shown)
}

// Need is what an event needs of the target.
type Need struct {
	Hits  bool // its hits are to come: it is enabled, or triggers may enable it, or its own triggers act (EVENT_FILE_FL_ENABLED)
	All   bool // also those that its filter does not let pass: it has triggers
	Stack int  // callers that a record needs for them; 0: none
}

// stackOfTrigger is how many callers a stacktrace trigger asks for.
const stackOfTrigger = event.MaxStack

// EventState is what the file enable of an event tells (event_enable_read in kernel/trace/trace_events.c, Linux 6.18).
type EventState struct {
	Enabled      bool // hits come; the files enable of the group and of all events tell this alone
	SoftMode     bool // triggers hold the event: its own, or those that switch it
	SoftDisabled bool // hits come for triggers, and are not shown
}

// String is the text of the file, without its newline: 0, 1, 0* or 1*.
func (s EventState) String() string {
	text := "0"
	if s.Enabled && !s.SoftDisabled {
		text = "1"
	}
	if s.SoftMode || s.SoftDisabled {
		text += "*"
	}
	return text
}

// NewLive makes a set for the trigger files of a trace instance: triggers come and go while hits come, and no switch is guessed from
// them. Tracing is on, and events are disabled, until somebody says so. Whoever changes anything is to have given Hit the hits that came
// before. The synthetic events belong to all instances; the set is one of theirs until Close.
func NewLive(host *Host, synthetics *Synthetics) *Triggers {
	s := NewTriggers()
	s.host, s.synthetics = host, synthetics
	s.hists.made, s.hists.undo = s.madeHist, s.removeMade
	s.hists.snapshot = host.Snapshot
	synthetics.join(s)
	return s
}

// Close takes all triggers away, and ends what the set has to do with synthetic events.
func (s *Triggers) Close() {
	for _, e := range s.order {
		for len(e.triggers) > 0 {
			s.removeAt(e, 0)
		}
	}
	s.synthetics.leave(s)
}

// SetTracing is what a write to tracing_on says.
func (s *Triggers) SetTracing(on bool) { s.off = !on }

// Tracing is what tracing_on shows: what SetTracing, or a trigger, has said last.
func (s *Triggers) Tracing() bool { return !s.off }

// SetEnabled is what a write to an event's file enable says. An event that triggers hold is disabled softly: its hits come, and are not
// shown (__ftrace_event_enable_disable in kernel/trace/trace_events.c, Linux 6.18). ENOENT: there is no such event.
func (s *Triggers) SetEnabled(group, name string, on bool) error {
	e, err := s.find(group, name)
	if err != nil {
		return err
	}
	before := e.state
	switch {
	case on:
		e.state.SoftDisabled, e.state.Enabled = false, true
	case e.holds > 0:
		e.state.SoftDisabled = true
	default:
		e.state.SoftDisabled, e.state.Enabled = false, false
	}
	if err = s.tell(e); err != nil {
		e.state = before
	}
	return err
}

// State is how the switches of an event stand; all are off of an event that is not there.
func (s *Triggers) State(group, name string) EventState {
	if e := s.events[[2]string{group, name}]; e != nil {
		return e.state
	}
	return EventState{}
}

// Need is what an event needs of the target.
func (s *Triggers) Need(group, name string) Need {
	if e := s.events[[2]string{group, name}]; e != nil {
		return e.need()
	}
	return Need{}
}

// References is how many triggers, of whatever event, enable or disable an event or its histograms.
func (s *Triggers) References(group, name string) (n int) {
	e := s.events[[2]string{group, name}]
	for _, o := range s.order {
		for _, t := range o.triggers {
			if t.target != nil && t.target == e {
				n++
			}
		}
	}
	return n
}

// Busy says why an event can not be deleted: EBUSY, since it is enabled, has triggers, or triggers name it.
func (s *Triggers) Busy(group, name string) error {
	e := s.events[[2]string{group, name}]
	switch {
	case e == nil:
		return nil
	case e.holds > 0:
		return errno.Errorf(syscall.EBUSY, "event %s/%s has triggers, or triggers of other events name it: remove them first", group, name)
	case e.state.Enabled:
		return errno.Errorf(syscall.EBUSY, "event %s/%s is enabled: disable it first", group, name)
	}
	return nil
}

// Forget is to be called when an event has been deleted. The error is that of Busy; the event stays then.
func (s *Triggers) Forget(group, name string) error {
	if err := s.Busy(group, name); err != nil {
		return err
	}
	key := [2]string{group, name}
	e := s.events[key]
	if e == nil {
		return nil
	}
	delete(s.events, key)
	s.hists.forget(key)
	s.order = slices.DeleteFunc(s.order, func(o *triggerEvent) bool { return o == e })
	return nil
}

func (s *Triggers) find(group, name string) (*triggerEvent, error) {
	if e := s.events[[2]string{group, name}]; e != nil {
		return e, nil
	}
	return nil, errno.Errorf(syscall.ENOENT, "there is no event %s/%s", group, name)
}

// hold has a trigger hold an event: its hits come from now on, and are not shown if they did not come before.
func (s *Triggers) hold(e *triggerEvent) error {
	before := e.state
	if e.holds++; e.holds == 1 {
		e.state.SoftMode = true
		if !e.state.Enabled {
			e.state.Enabled, e.state.SoftDisabled = true, true
		}
	}
	err := s.tell(e)
	if err != nil {
		e.holds--
		e.state = before
	}
	return err
}

// release undoes hold. The event stays as it is shown: enabled or not.
func (s *Triggers) release(e *triggerEvent) {
	if e.holds--; e.holds == 0 {
		e.state = EventState{Enabled: e.state.Enabled && !e.state.SoftDisabled}
	}
	_ = s.tell(e) // less is needed
}

// need is what an event needs.
func (e *triggerEvent) need() Need {
	n := Need{Hits: e.state.Enabled, All: len(e.triggers) > 0}
	for _, t := range e.triggers {
		switch {
		case t.def.Command == event.TriggerStacktrace:
			n.Stack = max(n.Stack, stackOfTrigger)
		case t.hist != nil && t.hist.needsStack():
			n.Stack = max(n.Stack, event.HistCallers)
		}
	}
	return n
}

// tell tells the host what an event needs, if that has changed.
func (s *Triggers) tell(e *triggerEvent) error {
	n := e.need()
	if n == e.told || s.host == nil {
		return nil
	}
	if s.host.Need != nil && e.synth == nil {
		if err := s.host.Need(e.group, e.name, n); err != nil {
			return err
		}
	}
	e.told = n
	return nil
}

// available is what the file trigger of an event without triggers shows.
const available = "# Available triggers:\n# traceon traceoff snapshot stacktrace enable_event disable_event enable_hist disable_hist hist\n"

// List is the text of an event's file trigger: a line for each, with what is left of its count.
func (s *Triggers) List(group, name string) string {
	e := s.events[[2]string{group, name}]
	if e == nil || len(e.triggers) == 0 {
		return available
	}
	var b strings.Builder
	for _, t := range e.triggers {
		b.WriteString(t.String() + "\n")
	}
	return b.String()
}

// AppendHist appends the text of an event's file hist: all its histograms.
func (s *Triggers) AppendHist(dst []byte, group, name string, symbol fetch.Resolver) []byte {
	e := s.events[[2]string{group, name}]
	if e == nil {
		return dst
	}
	n := 0
	for _, t := range e.triggers {
		if t.hist == nil {
			continue
		}
		if n++; n > 1 {
			dst = append(dst, "\n\n"...)
		}
		dst = t.hist.AppendText(dst, symbol)
	}
	return dst
}

package hit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
)

// Write is one write to an event's file trigger: it adds a trigger, takes one away (!), or pauses, continues or clears a histogram. To
// take away one that is not there is no error. What a failed write gives to error_log its error has as LogEntry:
//
//	*event.TriggerError  EINVAL, EEXIST or ERANGE; nothing is logged
//	*event.FilterError   EINVAL
//	*event.HistError     EINVAL, EEXIST or ENOENT; LogEntry may be empty
//	EBUSY                of the histogram that would be taken away another one reads a variable, or there is one snapshot() already
//	ENOENT               there is no such event
//
// and those of Host.Need and Host.Reserve.
func (s *Triggers) Write(group, name, text string) error {
	e, err := s.find(group, name)
	if err != nil || text == "" {
		return err
	}
	def, err := event.ParseTriggerCommand(text)
	if err == nil {
		if def.Remove && def.Hist == nil {
			return s.remove(e, def)
		}
		_, err = s.Add(group, name, def)
	}
	var bad *event.HistError
	if errors.As(err, &bad) {
		bad.Event = group + ":" + name
	}
	return err
}

// Truncate is what opening an event's file trigger with O_TRUNC does: histograms, and the triggers that switch them, are taken away.
// Where another histogram reads a variable of one, the histograms stay (hist_unreg_all in kernel/trace/trace_events_hist.c, Linux 6.18).
func (s *Triggers) Truncate(group, name string) {
	e := s.events[[2]string{group, name}]
	if e == nil {
		return
	}
	read := slices.ContainsFunc(e.triggers, func(t *trigger) bool { return t.hist != nil && s.hists.read(t.hist) })
	s.removeAll(e, func(t *trigger) bool {
		return t.hist != nil && !read || t.kind() == event.TriggerEnableHist
	})
}

// remove takes away a trigger that is no histogram.
func (s *Triggers) remove(e *triggerEvent, def *event.Trigger) error {
	like := &trigger{def: def}
	var err error
	if like.target, err = s.targetOf(def); err != nil {
		return err
	}
	if i := slices.IndexFunc(e.triggers, like.collides); i >= 0 {
		s.removeAt(e, i)
	}
	return nil
}

// removeAll takes away the triggers that are chosen.
func (s *Triggers) removeAll(e *triggerEvent, chosen func(*trigger) bool) {
	for {
		i := slices.IndexFunc(e.triggers, chosen)
		if i < 0 {
			return
		}
		s.removeAt(e, i)
	}
}

func (s *Triggers) removeAt(e *triggerEvent, i int) {
	t := e.triggers[i]
	e.triggers = slices.Delete(e.triggers, i, i+1)
	e.judge()
	_ = s.reserve(t, -1) // less is needed
	if t.target != nil {
		s.release(t.target)
	}
	s.release(e)
	if t.hist == nil {
		return
	}
	s.hists.remove(t.hist)
	for _, h := range t.hist.made {
		s.removeMade(h)
	}
}

// removeMade takes away a histogram that was made for the actions of another one, unless others read it.
func (s *Triggers) removeMade(h *Histogram) {
	e := s.events[[2]string{h.ev.group, h.ev.name}]
	if e != nil && !s.hists.read(h) {
		s.removeAll(e, func(t *trigger) bool { return t.hist == h })
	}
}

// holdAll has a trigger of an event hold it, and the event that the trigger names, if it names one.
func (s *Triggers) holdAll(target, e *triggerEvent) error {
	if target != nil {
		if err := s.hold(target); err != nil {
			return err
		}
	}
	err := s.hold(e)
	if err != nil && target != nil {
		s.release(target)
	}
	return err
}

// reserve counts what needs snapshots: n is 1 of a trigger that comes, -1 of one that goes.
func (s *Triggers) reserve(t *trigger, n int) error {
	needs := t.def.Command == event.TriggerSnapshot || t.hist != nil && t.hist.snapshot() != nil
	if !needs {
		return nil
	}
	if s.host.Snapshot == nil {
		return t.def.Refuse(syscall.EINVAL, "", "this trace has no second buffer that could be swapped: traceoff keeps what came before a hit")
	}
	before := s.snapshots
	s.snapshots += n
	if (before == 0) == (s.snapshots == 0) || s.host.Reserve == nil {
		return nil
	}
	err := s.host.Reserve(s.snapshots > 0)
	if err != nil && n > 0 {
		s.snapshots = before
	}
	return err
}

// addHist adds, changes or takes away a histogram. One that is added acts behind all others (list_add_tail_rcu in hist_trigger_enable).
func (s *Triggers) addHist(e *triggerEvent, t *trigger) (*Histogram, error) {
	def := t.def.Hist
	m, err := s.hists.make(e.group, e.name, def)
	if err != nil {
		return nil, err
	}
	if t.filter, err = e.filterOf(def.Filter); err != nil {
		return nil, err
	}
	at := slices.IndexFunc(e.triggers, func(o *trigger) bool { return o.hist != nil && o.hist.same(m.h) })
	switch {
	case def.Remove:
		return nil, s.removeHist(e, at)
	case at >= 0 && (def.Paused || def.Continue || def.Clear):
		e.triggers[at].hist.change(def)
		return nil, nil
	case at >= 0:
		why := fmt.Sprintf("the event %s:%s has %s already: one of a kind is taken%s", e.group, e.name, e.triggers[at], kinds[event.TriggerHist])
		return nil, def.Refuse(event.HistTriggerExists, "", why)
	}
	if err := s.actions(e, m); err != nil {
		return nil, err
	}
	if def.Continue || def.Clear {
		m.undo()
		return nil, def.Refuse(event.HistNoSuchTrigger, "", "")
	}
	if err := m.join(); err != nil {
		m.undo()
		return nil, err
	}
	t.hist = m.h
	m.h.ev.hists = append(m.h.ev.hists, m.h)
	if err := s.insert(e, t, len(e.triggers)); err != nil {
		s.hists.remove(m.h)
		m.undo()
		return nil, err
	}
	return m.h, nil
}

// actions makes the actions of a histogram. In a set that is not live only save() can be one.
func (s *Triggers) actions(e *triggerEvent, m *histMaker) error {
	for i := range m.def.Actions {
		a := &m.def.Actions[i]
		switch {
		case s.host == nil && !a.Save:
			return m.def.Refuse(event.HistUnsupported, a.Name, "a synthetic event is traced by kprobe hist")
		case a.Snapshot && s.host.Snapshot == nil:
			return m.def.Refuse(event.HistUnsupported, a.Name, "this trace has no second buffer that a snapshot could be taken to; save(…) keeps values")
		case a.Snapshot && s.snapshotTaken():
			m.undo()
			return errno.Errorf(syscall.EBUSY, "histogram %q: there is a histogram with snapshot() already, and a trace takes one", m.def.Text)
		}
	}
	for i := range m.def.Actions {
		if err := m.action(&m.def.Actions[i]); err != nil {
			m.undo()
			return err
		}
	}
	return nil
}

// snapshotTaken says whether a histogram has the action snapshot().
func (s *Triggers) snapshotTaken() bool {
	return slices.ContainsFunc(s.order, func(e *triggerEvent) bool {
		return slices.ContainsFunc(e.triggers, func(t *trigger) bool { return t.hist != nil && t.hist.snapshot() != nil })
	})
}

func (s *Triggers) removeHist(e *triggerEvent, at int) error {
	if at < 0 {
		return nil
	}
	if h := e.triggers[at].hist; s.hists.read(h) {
		return errno.Errorf(syscall.EBUSY, "%s: another histogram reads its variables (%s): remove that first", e.triggers[at], strings.Join(h.varNames(), ", "))
	}
	s.removeAt(e, at)
	return nil
}

// madeHist is told of a histogram that was made for the actions of another one: the kernel makes a trigger of it.
func (s *Triggers) madeHist(h *Histogram) error {
	e, err := s.find(h.ev.group, h.ev.name)
	if err != nil {
		return err
	}
	def := &event.Trigger{Text: h.def.Text, Command: event.TriggerHist, Count: event.Unlimited, Filter: h.def.Filter, Hist: h.def}
	t := &trigger{def: def, left: def.Count, hist: h}
	if t.filter, err = e.filterOf(def.Filter); err != nil {
		return err
	}
	return s.insert(e, t, len(e.triggers))
}

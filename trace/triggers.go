package trace

import (
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// missing is what an event needs of the target for triggers, and has not.
type missing struct {
	e    *entry
	need hit.Need
}

// errMissing undoes what the set was doing: it is done again when the target has what is needed.
var errMissing = errors.New("the target does not have yet what triggers need")

// Triggers is the text of an event's file trigger.
func (in *Instance) Triggers(group, name string) (string, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, err := in.find(group, name); err != nil {
		return "", err
	}
	in.drain()
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	return in.set.List(group, name), nil
}

// WriteTrigger does what a write to an event's file trigger does: it adds a trigger, takes one away (with ! before it), or pauses,
// continues or clears a histogram. What it needs of the target is armed first. Errors, which are logged where the kernel does:
// *event.TriggerError, *event.FilterError, *event.HistError, EBUSY (another histogram needs the one to be taken away), and those of
// Enable.
func (in *Instance) WriteTrigger(group, name, text string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	es, err := in.find(group, name)
	if err != nil {
		return err
	}
	if in.life.Err() != nil {
		return errClosed
	}
	in.enliven(es[0])
	for _, e := range in.order {
		if named(text, e) {
			in.enliven(e)
		}
	}
	err = in.change(func() error { return in.set.Write(group, name, strings.TrimSuffix(text, "\n")) })
	in.note(err)
	return err
}

// named says whether a command may name an event.
func named(text string, e *entry) bool {
	return strings.Contains(text, e.group+":"+e.name) || strings.Contains(text, e.group+"."+e.name)
}

// ClearTriggers is what opening an event's file trigger with O_TRUNC does: histograms are taken away, unless others need them.
func (in *Instance) ClearTriggers(group, name string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, err := in.find(group, name); err != nil {
		return err
	}
	return in.change(func() error { in.set.Truncate(group, name); return nil })
}

// WriteHist writes an event's file hist: its histograms.
func (in *Instance) WriteHist(w io.Writer, group, name string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if _, err := in.find(group, name); err != nil {
		return err
	}
	in.drain()
	in.pollMu.Lock()
	text := in.set.AppendHist(nil, group, name, in.names.Symbol)
	in.pollMu.Unlock()
	_, err := w.Write(text)
	return err
}

// change changes triggers. What they need is put into the target first, so do is called again until it asks for no more; what nothing
// needs any more is taken out. Precondition: mu is held.
func (in *Instance) change(do func() error) error {
	for {
		in.drain()
		in.pollMu.Lock()
		in.missing = nil
		err := do()
		in.on.Store(in.set.Tracing())
		m := in.missing
		in.pollMu.Unlock()
		if m != nil {
			if err = in.provide(m); err == nil {
				continue
			}
		}
		return errors.Join(err, in.settle())
	}
}

// need is told by the set what an event needs. Precondition: mu and pollMu are held.
func (in *Instance) need(group, name string, n hit.Need) error {
	e := in.entries[key(group, name)]
	if e == nil || in.state(e).gives(n) {
		return nil
	}
	in.missing = &missing{e, n}
	return errMissing
}

// gives says whether the target has what an event needs.
func (s *state) gives(n hit.Need) bool {
	return !n.Hits || s.armed && (s.all || !n.All) && s.stack >= n.Stack
}

// provide puts what is missing into the target. Hits of an event that was not there are not shown before the set says so.
func (in *Instance) provide(m *missing) error {
	before := *in.state(m.e)
	return in.rearm(m.e, before.all || m.need.All, max(before.stack, m.need.Stack))
}

// rearm arms an event whose hits are to have another form. Between is a moment in which its hits are not seen. Where it can not be done
// the event is as before or, if that can not be done either, disabled.
func (in *Instance) rearm(e *entry, all bool, stack int) error {
	s := in.state(e)
	before := *s
	if s.armed {
		if err := in.disarm(e.probes); err != nil {
			return err
		}
	}
	s.all, s.stack = all, stack
	err := in.arm(e.probes)
	if err == nil {
		s.armed = true
		return nil
	}
	s.all, s.stack = before.all, before.stack
	if !before.armed {
		return err
	}
	return in.back(e, err)
}

// back arms an event again that was disarmed, since something failed. If that fails too the event is disabled.
func (in *Instance) back(e *entry, err error) error {
	again := in.arm(e.probes)
	if again == nil {
		return err
	}
	s := in.state(e)
	s.on, s.armed = false, false
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	if s.live {
		_ = in.set.SetEnabled(e.group, e.name, false) // it needs less
	}
	return errors.Join(err, errno.Errorf(unix.EAGAIN, "event %s/%s is disabled: %w", e.group, e.name, again))
}

// settle takes out of the target what triggers do not need any more.
func (in *Instance) settle() error {
	var out []*entry
	var err error
	for _, e := range in.order {
		s := in.state(e)
		if !s.live || !s.armed {
			continue
		}
		in.pollMu.Lock()
		n := in.set.Need(e.group, e.name)
		in.pollMu.Unlock()
		switch {
		case !n.Hits:
			out = append(out, e)
		case s.all && !n.All && s.filter != "", s.stack > n.Stack:
			err = errors.Join(err, in.rearm(e, n.All, n.Stack))
		}
	}
	if len(out) == 0 {
		return err
	}
	return errors.Join(err, in.takeOut(out))
}

// enliven has the set know an event, as it stands, so that triggers may be about it.
func (in *Instance) enliven(e *entry) {
	s := in.state(e)
	if e.synthetic != nil {
		return
	}
	for _, p := range e.probes {
		in.tell(p)
	}
	if s.live {
		return
	}
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	s.live, in.triggered = true, true
	_ = in.set.Filter(e.group, e.name, s.filter) // it was one of the event's before
	if s.on {
		_ = in.set.SetEnabled(e.group, e.name, true) // it is in the target
	}
}

// tell tells the set of an event's probe.
func (in *Instance) tell(p *probe) {
	core := engine.Of(in.core)
	prog, err := core.Compiled(p.aimed)
	if err != nil {
		prog = nil // what it is about has gone
	}
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	in.set.Event(p.group, p.name, prog, func(filter string) (*fetch.Filter, error) {
		if prog == nil {
			return nil, errno.Errorf(unix.ENODEV, "%s/%s: its object is not there: a filter of a trigger, or beside one, needs it", p.group, p.name)
		}
		return core.FilterFor(p.aimed, prog, filter)
	})
}

// take takes a hit. Precondition: the registry's pollMu is held.
func (a *arming) take(h *hit.Hit) {
	in := a.in
	switch {
	case !in.chosen(h.TID):
	case !a.state.live:
		if in.on.Load() {
			in.show(h, hit.Shown{Line: true})
		}
	case in.set.State(a.probe.group, a.probe.name).Enabled:
		shown := in.set.Hit(h, in.names)
		for o := range in.living { // synthetic events have triggers in each
			o.on.Store(o.set.Tracing())
		}
		in.show(h, shown)
	}
}

// show puts into the buffer what is shown of a hit: what triggers say, and its stack where the option stacktrace is on.
func (in *Instance) show(h *hit.Hit, shown hit.Shown) {
	was := h.NoStack
	if h.NoStack = true; shown.Line {
		in.put(h)
	}
	h.NoStack = was
	if shown.Stack || shown.Line && in.stacked.Load() {
		h.StackOnly = true
		in.put(h)
		h.StackOnly = false
	}
}

func (in *Instance) put(h *hit.Hit) {
	if !in.taken(h.CPU) {
		return
	}
	in.buf.Add(h)
	if !in.woken {
		in.woken = true
		in.registry.woken = append(in.registry.woken, in)
	}
}

// reserve is told by the set whether triggers need the snapshot.
func (in *Instance) reserve(snapshots bool) error {
	if snapshots && in.snap == nil {
		in.snap = newBuffer(in.buf.Size(AllCPUs))
	}
	return nil
}

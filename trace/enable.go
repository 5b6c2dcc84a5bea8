package trace

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// Enable arms or disarms an event; all of a group if name is "", all events if group is ""
// too: together, in one stop of the target, or none of them. The error for a definition
// that can not be armed is logged. An event that triggers hold stays in the target when it is disabled.
func (in *Instance) Enable(group, name string, on bool) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	es, err := in.find(group, name)
	if err != nil {
		return err
	}
	if !on {
		return in.disable(es)
	}
	if err := in.arm(probesOf(slices.DeleteFunc(slices.Clone(es), func(e *entry) bool { return in.state(e).armed }))); err != nil {
		in.note(err)
		return err
	}
	in.drain()
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	for _, e := range es {
		s := in.state(e)
		s.on, s.armed = true, e.synthetic == nil
		if s.live {
			err = errors.Join(err, in.set.SetEnabled(e.group, e.name, true))
		}
	}
	return err
}

// Enabled tells what the enable file of an event, a group or, without names, of all events
// holds: 0, 1, X where some are enabled and some not, ? where there are none. That of an event has a * behind the digit where triggers
// hold it.
func (in *Instance) Enabled(group, name string) (string, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	es, err := in.find(group, name)
	if err != nil || len(es) == 0 {
		return "?", err
	}
	in.drain() // triggers may switch events
	if s := in.state(es[0]); name != "" && s.live {
		in.pollMu.Lock()
		defer in.pollMu.Unlock()
		return in.set.State(group, name).String(), nil
	}
	on := in.enabled(es[0])
	for _, e := range es {
		if in.enabled(e) != on {
			return "X", nil
		}
	}
	if on {
		return "1", nil
	}
	return "0", nil
}

// enabled says whether an event's hits come.
func (in *Instance) enabled(e *entry) bool {
	s := in.state(e)
	if !s.live {
		return s.on
	}
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	return in.set.State(e.group, e.name).Enabled
}

// find gives an event, those of a group or, without names, all. A name that nothing
// has is ENOENT.
func (r *registry) find(group, name string) ([]*entry, error) {
	var out []*entry
	for _, e := range r.order {
		if (group == "" || e.group == group) && (name == "" || e.name == name) {
			out = append(out, e)
		}
	}
	if len(out) == 0 && name != "" {
		return nil, errno.Errorf(unix.ENOENT, "no event is called %q in group %q", name, group)
	}
	if len(out) == 0 && group != "" {
		return nil, errno.Errorf(unix.ENOENT, "no group is called %q", group)
	}
	return out, nil
}

// arm puts probes into the target, all or none, and sees to it that their records are read.
func (in *Instance) arm(ps []*probe) error {
	if in.life.Err() != nil {
		return errClosed
	}
	if len(ps) == 0 {
		return nil
	}
	if err := noCounters(ps); err != nil {
		return err
	}
	as := in.armingsOf(ps)
	var defs []*event.Def
	for _, a := range as {
		defs = append(defs, a.def)
	}
	made, err := in.core.Add(defs, lateToo)
	if err != nil {
		in.pollMu.Lock()
		defer in.pollMu.Unlock()
		for _, a := range as {
			delete(in.armings, a.def)
		}
		return err
	}
	for _, a := range as {
		i := slices.IndexFunc(made, func(e *kprobes.Event) bool { return e.Def == a.def })
		a.event = made[i]
		in.made = append(in.made, a)
		in.counted(a)
	}
	in.read()
	return nil
}

// armingsOf makes armings of probes, whose records are to be given to the instance from now on.
func (in *Instance) armingsOf(ps []*probe) (out []*arming) {
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	for _, p := range ps {
		s := in.state(p.entry)
		d := *p.aimed
		if !s.all {
			d.Filter = s.filter
		}
		d.Stack = in.stackOf(s)
		in.copies++
		d.Copy, d.User = in.copies, in.shared.User()
		a := &arming{in: in, probe: p, state: s, def: &d}
		in.armings[a.def] = a
		out = append(out, a)
	}
	return out
}

// disable disables events, and takes those out of the target that no trigger holds.
func (in *Instance) disable(es []*entry) error {
	var held []*entry
	off := slices.DeleteFunc(slices.Clone(es), func(e *entry) bool {
		s := in.state(e)
		if !s.live {
			return false
		}
		held = append(held, e)
		return true
	})
	in.drain()
	in.pollMu.Lock()
	var err error
	for _, e := range held {
		err = errors.Join(err, in.set.SetEnabled(e.group, e.name, false))
		if !in.set.Need(e.group, e.name).Hits {
			off = append(off, e)
		}
	}
	in.pollMu.Unlock()
	return errors.Join(err, in.takeOut(off))
}

// takeOut takes events out of the target.
func (in *Instance) takeOut(es []*entry) error {
	if err := in.disarm(probesOf(es)); err != nil {
		return err
	}
	was := false
	for _, e := range es {
		s := in.state(e)
		was = was || s.armed
		s.on, s.armed, s.all, s.stack = false, false, false, 0
	}
	if was && !in.readsOn() {
		in.stopReading()
	}
	return nil
}

// disarm takes those of some probes out of the target that are in it. One that is gone has
// none.
func (in *Instance) disarm(ps []*probe) error {
	var as []*arming
	var events []*kprobes.Event
	for _, p := range ps {
		if a := in.arming(p); a != nil {
			as, events = append(as, a), append(events, a.event)
		}
	}
	if len(as) == 0 {
		return nil
	}
	if err := in.core.Remove(events); err != nil && !errors.Is(err, target.ErrGone) {
		return err
	}
	for _, a := range as {
		a.ended = true
		in.uncounted(a)
	}
	return nil
}

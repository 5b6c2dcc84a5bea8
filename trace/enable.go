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
// that can not be armed is logged.
func (in *Instance) Enable(group, name string, on bool) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	ps, err := in.find(group, name)
	if err != nil {
		return err
	}
	if !on {
		return in.disable(ps)
	}
	ps = slices.DeleteFunc(ps, func(p *probe) bool { return in.state(p.entry).on })
	if err := in.arm(ps); err != nil {
		in.note(err)
		return err
	}
	for _, p := range ps {
		s := in.state(p.entry)
		s.on, s.armed = true, true
	}
	return nil
}

// Enabled tells what the enable file of an event, a group or, without names, of all events
// holds: 0, 1, X where some are enabled and some not, ? where there are none.
func (in *Instance) Enabled(group, name string) (string, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	ps, err := in.find(group, name)
	if err != nil || len(ps) == 0 {
		return "?", err
	}
	on := in.state(ps[0].entry).on
	for _, p := range ps {
		if in.state(p.entry).on != on {
			return "X", nil
		}
	}
	if on {
		return "1", nil
	}
	return "0", nil
}

// find gives the probes of an event, a group or, without names, all. A name that nothing
// has is ENOENT.
func (r *registry) find(group, name string) ([]*probe, error) {
	var out []*probe
	for _, p := range r.probes {
		if (group == "" || p.group == group) && (name == "" || p.name == name) {
			out = append(out, p)
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
	as := in.register(ps)
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

// register makes armings of probes, whose records are to be given to the instance from now on.
func (in *Instance) register(ps []*probe) (out []*arming) {
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	for _, p := range ps {
		d := *p.filtered(in.state(p.entry).filter)
		in.copies++
		d.Copy = in.copies
		a := &arming{in: in, probe: p, def: &d}
		in.armings[a.def] = a
		out = append(out, a)
	}
	return out
}

// disable takes probes out of the target, with all others of their events.
func (in *Instance) disable(ps []*probe) error {
	if err := in.disarm(ps); err != nil {
		return err
	}
	was := false
	for _, p := range ps {
		s := in.state(p.entry)
		was = was || s.armed
		s.on, s.armed = false, false
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

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
	ps = slices.DeleteFunc(ps, func(p *probe) bool { return p.on })
	if err := in.arm(ps); err != nil {
		in.note(err)
		return err
	}
	for _, p := range ps {
		p.on = true
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
	for _, p := range ps {
		if p.on != ps[0].on {
			return "X", nil
		}
	}
	if ps[0].on {
		return "1", nil
	}
	return "0", nil
}

// find gives the probes of an event, a group or, without names, all. A name that nothing
// has is ENOENT.
func (in *Instance) find(group, name string) ([]*probe, error) {
	var out []*probe
	for _, p := range in.probes {
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
		return errno.Errorf(unix.ESHUTDOWN, "the trace instance is closed")
	}
	if len(ps) == 0 {
		return nil
	}
	var defs []*event.Def
	for _, p := range ps {
		defs = append(defs, p.filtered(p.filter))
	}
	made, err := in.core.Add(defs, lateToo)
	if err != nil {
		return err
	}
	for k, p := range ps {
		i := slices.IndexFunc(made, func(e *kprobes.Event) bool { return e.Def == defs[k] })
		p.made = append(p.made, made[i])
	}
	in.read()
	return nil
}

// disable takes probes out of the target, with all others of their events.
func (in *Instance) disable(ps []*probe) error {
	if err := in.disarm(ps); err != nil {
		return err
	}
	was := false
	for _, p := range ps {
		was = was || p.on
		p.on = false
	}
	if was && !slices.ContainsFunc(in.probes, func(p *probe) bool { return p.on }) {
		in.stopReading()
	}
	return nil
}

// disarm takes those of some probes out of the target that are in it. One that is gone has
// none.
func (in *Instance) disarm(ps []*probe) error {
	var armed []*kprobes.Event
	for _, p := range ps {
		if p.on {
			armed = append(armed, p.made[len(p.made)-1])
		}
	}
	if len(armed) == 0 {
		return nil
	}
	if err := in.core.Remove(armed); err != nil && !errors.Is(err, target.ErrGone) {
		return err
	}
	return nil
}

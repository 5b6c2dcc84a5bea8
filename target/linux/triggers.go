package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/symbol"
)

// Trigger is a trigger of the event that a definition makes; of a pattern, of each of its events.
type Trigger struct {
	Def     *event.Def // one of those that Add is given
	Trigger *event.Trigger
}

// switched says how a trace begins: of all triggers that switch the same thing, the first that was given decides. What it
// switches on begins off, or it would have nothing to do.
type switched struct {
	tracing *event.Trigger
	events  map[*probed]*event.Trigger
}

// first notes a trigger, with the event that it names.
func (s *switched) first(d *event.Trigger, target *probed) {
	switch {
	case target != nil && s.events[target] == nil:
		s.events[target] = d
	case target == nil && d.Command != event.TriggerStacktrace && s.tracing == nil:
		s.tracing = d
	}
}

// tracingOff says whether tracing begins off.
func (s *switched) tracingOff() bool {
	return s.tracing != nil && s.tracing.Command == event.TriggerTraceOn
}

// off says whether an event begins disabled.
func (s *switched) off(p *probed) bool {
	d := s.events[p]
	return d != nil && d.Command == event.TriggerEnableEvent
}

// knows refuses triggers that this package takes to no kernel, and prepares for those that record stacks.
func (t *Target) knows(triggers []Trigger) error {
	for _, b := range triggers {
		switch c := b.Trigger.Command; c {
		case event.TriggerHist, event.TriggerEnableHist, event.TriggerDisableHist:
			why := "with -k histograms are not read: write the trigger into the event's file trigger in tracefs, and read its file hist; for the kernel of a guest take --guest"
			return b.Trigger.Refuse(unix.EOPNOTSUPP, c.String(), why)
		case event.TriggerStacktrace:
			if err := t.prepareStacks(); err != nil {
				return b.Trigger.Refuse(unix.EOPNOTSUPP, "", "this kernel records no stacks: "+err.Error())
			}
		}
	}
	return nil
}

// addTriggers gives the events their triggers, in the order in which they were given. No event is enabled yet.
func (t *Target) addTriggers(triggers []Trigger) (s switched, err error) {
	s.events = map[*probed]*event.Trigger{}
	for _, b := range triggers {
		var target *probed
		if b.Trigger.Command.HasTarget() {
			if target, err = t.named(b.Trigger); err != nil {
				return s, err
			}
		}
		for _, p := range t.events {
			if !slices.Contains(p.given, b.Def) {
				continue
			}
			if err := t.addTrigger(p, b.Trigger, target); err != nil {
				return s, err
			}
		}
		s.first(b.Trigger, target)
	}
	return s, nil
}

// named finds the event that a trigger names.
func (t *Target) named(d *event.Trigger) (*probed, error) {
	var all []string
	for _, p := range t.events {
		if p.group == d.Group && p.name == d.Name {
			return p, nil
		}
		all = append(all, p.group+":"+p.name)
	}
	name := d.Group + ":" + d.Name
	return nil, d.Refuse(unix.EINVAL, name, "this trace has no event "+name+symbol.DidYouMean(symbol.Nearest(name, all)))
}

// kernelTrigger is a trigger as the kernel gets it: what it does, without the count and the filter, and whole.
func kernelTrigger(d *event.Trigger, target *probed) (what, whole string) {
	what = d.Command.String()
	if target != nil {
		what += ":" + strings.Replace(target.ours, "/", ":", 1)
	}
	whole = what
	if d.Count != event.Unlimited {
		whole += fmt.Sprint(":", d.Count)
	}
	if d.Filter != "" {
		whole += " if " + d.Filter
	}
	return what, whole
}

// addTrigger writes a trigger into the event's file.
func (t *Target) addTrigger(p *probed, d *event.Trigger, target *probed) error {
	if len(p.triggers) == 0 {
		if err := t.offers(p, d); err != nil {
			return err
		}
	}
	what, whole := kernelTrigger(d, target)
	if slices.Contains(p.triggers, what) {
		return d.Refuse(unix.EEXIST, "", fmt.Sprintf("the event %s:%s has a trigger %s already: the kernel takes one", p.group, p.name, d.Command))
	}
	err := write(whole, t.inst, "events", p.ours, "trigger")
	if err == nil {
		p.triggers = append(p.triggers, what)
		return nil
	}
	if errors.Is(err, unix.EEXIST) {
		return d.Refuse(unix.EEXIST, "", fmt.Sprintf("the event %s:%s has a trigger already that switches the same: the kernel takes one", p.group, p.name))
	}
	if d.Filter != "" { // the file of filters says what is wrong with one
		if bad := write(d.Filter, t.inst, "events", p.ours, "filter"); bad != nil {
			shown, _ := read(t.inst, "events", p.ours, "filter")
			return refusedFilter(d.Filter, shown, bad)
		}
	}
	return fmt.Errorf("trigger %q of %s: the kernel gives no reason: %w", d.Text, p.name, err)
}

// availableTriggers begins the line of an event's file trigger that lists the commands, as long as the event has no trigger.
const availableTriggers = "# Available triggers:\n#"

// offers refuses a trigger that the kernel has not. The event has none yet.
func (t *Target) offers(p *probed, d *event.Trigger) error {
	text, err := read(t.inst, "events", p.ours, "trigger")
	if errors.Is(err, fs.ErrNotExist) {
		return d.Refuse(unix.EOPNOTSUPP, "", "this kernel's events have no triggers: they came with Linux 3.14")
	}
	if err != nil {
		return fmt.Errorf("triggers of %s: %w", p.name, err)
	}
	list, ok := strings.CutPrefix(text, availableTriggers)
	if has := strings.Fields(list); ok && !slices.Contains(has, d.Command.String()) {
		return d.Refuse(unix.EOPNOTSUPP, "", fmt.Sprintf("this kernel has no trigger %s: it has %s", d.Command, strings.Join(has, ", ")))
	}
	return nil
}

// removeTriggers takes the triggers out of the events: one that has any, or that one names, can not be removed.
func (t *Target) removeTriggers() error {
	var errs []error
	for _, p := range t.events {
		for _, what := range p.triggers {
			if err := write("!"+what, t.inst, "events", p.ours, "trigger"); err != nil {
				errs = append(errs, fmt.Errorf("trigger %s of %s stays: %w", what, p.name, err))
			}
		}
		p.triggers = nil
	}
	return errors.Join(errs...)
}

// begin gives the events their triggers and enables them, so that no trigger that switches tracing off acts before all are
// enabled.
func (t *Target) begin(triggers []Trigger) error {
	if len(triggers) == 0 {
		return t.enable("1")
	}
	if err := write("0", t.inst, "tracing_on"); err != nil {
		return fmt.Errorf("trace instance: %w", err)
	}
	s, err := t.addTriggers(triggers)
	if err != nil {
		return err
	}
	for _, p := range t.events {
		if s.off(p) {
			continue
		}
		if err := write("1", t.inst, "events", p.ours, "enable"); err != nil {
			return fmt.Errorf("event %s: %w", p.name, err)
		}
	}
	if s.tracingOff() || t.o.Count {
		return nil
	}
	return write("1", t.inst, "tracing_on")
}

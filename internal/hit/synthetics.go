package hit

import (
	"slices"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
)

// Synthetics are the synthetic events that instances of a trace share (kernel/trace/trace_events_synth.c, Linux 6.18): the file
// synthetic_events. Each live set that uses them has triggers and switches of its own for them, under the group event.SyntheticGroup. It
// has no lock: one must be held for it and all its sets together. The zero value is ready.
type Synthetics struct {
	defs []*event.Synthetic // in the order of their making
	sets []*Triggers
}

// maxSyntheticLine is the most bytes of a line (trace_parse_run_command in kernel/trace/trace.c, Linux 6.18).
const maxSyntheticLine = 4094

// Write is a write to synthetic_events: a line defines an event, or deletes one (!NAME). What stands behind # is not read. It ends with the
// first line that is refused; those before it stay done. Errors: *event.SyntheticError (EINVAL, EEXIST), which is logged; ENOENT of a
// deletion: there is no such event; EBUSY: it is enabled, has triggers, or is traced by a histogram; EINVAL: a line has more than 4,094
// bytes.
func (y *Synthetics) Write(text string) error {
	for line := range strings.SplitSeq(text, "\n") {
		if len(line) > maxSyntheticLine {
			return errno.Errorf(syscall.EINVAL, "a line of %d bytes: a line has at most %d", len(line), maxSyntheticLine)
		}
		line, _, _ = strings.Cut(line, "#")
		def, remove, err := event.ParseSyntheticCommand(line, func(name string) bool { return y.Event(name) != nil })
		switch {
		case err != nil:
			return err
		case def != nil:
			err = y.Define(def)
		case strings.TrimSpace(line) != "":
			err = y.Delete(remove)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Truncate is what opening synthetic_events with O_TRUNC does: all events are deleted. EBUSY: one can not be, and none is.
func (y *Synthetics) Truncate() error {
	for _, d := range y.defs {
		if err := y.Busy(d.Name); err != nil {
			return err
		}
	}
	for len(y.defs) > 0 {
		y.drop(0)
	}
	return nil
}

// Define makes an event. The error is an *event.SyntheticError: EEXIST, there is one of the name.
func (y *Synthetics) Define(def *event.Synthetic) error {
	if y.Event(def.Name) != nil {
		return def.Exists()
	}
	y.defs = append(y.defs, def)
	for _, s := range y.sets {
		s.addSynthetic(def)
	}
	return nil
}

// Delete deletes an event. Errors are those of a deletion by Write.
func (y *Synthetics) Delete(name string) error {
	i := slices.IndexFunc(y.defs, func(d *event.Synthetic) bool { return d.Name == name })
	if i < 0 {
		return errno.Errorf(syscall.ENOENT, "there is no synthetic event %q", name)
	}
	if err := y.Busy(name); err != nil {
		return err
	}
	y.drop(i)
	return nil
}

// Busy says why an event can not be deleted: EBUSY.
func (y *Synthetics) Busy(name string) error {
	for _, s := range y.sets {
		if s.hists.traces(name) {
			return errno.Errorf(syscall.EBUSY, "synthetic event %s: a histogram traces it: remove that first", name)
		}
		if err := s.Busy(event.SyntheticGroup, name); err != nil {
			return err
		}
	}
	return nil
}

// drop deletes an event that is not busy.
func (y *Synthetics) drop(i int) {
	for _, s := range y.sets {
		_ = s.Forget(event.SyntheticGroup, y.defs[i].Name) // it is not busy
	}
	y.defs = slices.Delete(y.defs, i, i+1)
}

// Event finds an event; nil: there is none of the name.
func (y *Synthetics) Event(name string) *event.Synthetic {
	for _, d := range y.defs {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// All gives all events in the order of their making. The slice is the caller's.
func (y *Synthetics) All() []*event.Synthetic { return slices.Clone(y.defs) }

// String is the text of synthetic_events. A line of dynamic_events has s:synthetic/ before it.
func (y *Synthetics) String() string {
	var b strings.Builder
	for _, d := range y.defs {
		b.WriteString(d.String() + "\n")
	}
	return b.String()
}

func (y *Synthetics) join(s *Triggers) {
	y.sets = append(y.sets, s)
	for _, d := range y.defs {
		s.addSynthetic(d)
	}
}

func (y *Synthetics) leave(s *Triggers) {
	y.sets = slices.DeleteFunc(y.sets, func(o *Triggers) bool { return o == s })
}

// addSynthetic tells the set of a synthetic event.
func (s *Triggers) addSynthetic(def *event.Synthetic) {
	s.hists.Synthetic(def)
	prog := &s.hists.event(event.SyntheticGroup, def.Name).prog
	s.add(&triggerEvent{
		group: event.SyntheticGroup, name: def.Name, synth: def, known: true,
		compile: func(filter string) (*fetch.Filter, error) {
			return prog.Filter(filter, fetch.FilterEnv{Comm: true, Synthetic: true})
		},
	})
}

// trace makes a synthetic event of variables: in all sets where it is enabled.
func (s *Triggers) trace(of *histEvent, args []*histRef, o *occurrence) {
	vs := of.traced(args, o)
	for _, set := range s.synthetics.sets {
		set.traced(of.name, vs, o)
	}
}

// traced runs the triggers of a synthetic event, and has it shown. While it is being traced it is not traced anew.
func (s *Triggers) traced(name string, vs []fetch.Value, o *occurrence) {
	e := s.events[[2]string{event.SyntheticGroup, name}]
	if e == nil || !e.state.Enabled || e.busy {
		return
	}
	e.busy = true
	defer func() { e.busy = false }()
	if shown := s.run(e, &occurrence{hit: o.hit, values: vs, comm: o.comm}); shown != (Shown{}) && s.host.Traced != nil {
		s.host.Traced(e.synth, o.hit, vs, shown)
	}
}

// traces says whether an action traces a synthetic event.
func (s *Histograms) traces(name string) bool {
	return slices.ContainsFunc(s.order, func(e *histEvent) bool {
		return slices.ContainsFunc(e.hists, func(h *Histogram) bool {
			return slices.ContainsFunc(h.actions, func(a *histAction) bool { return a.synth != nil && a.synth.name == name })
		})
	})
}

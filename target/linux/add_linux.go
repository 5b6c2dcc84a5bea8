package linux

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/hit"
)

// AddOptions are the choices of Add; nil means the defaults.
type AddOptions struct {
	// Skip leaves out functions of a pattern on which the kernel takes no probe; each is
	// told to it with the reason. Nil: the first such function is an error.
	Skip func(name string, why error)
	// Triggers are written into the events' trigger files, in their order, before the events are enabled. The first that switches
	// tracing or an event says how that begins: before a traceon or enable_event it is off.
	Triggers []Trigger
}

// Add makes the probes and enables them: all or none. The errors of definitions are
// *event.Error, with the kernel's own text and the column that its caret marks; those of triggers are *event.TriggerError and
// *event.FilterError.
func (t *Target) Add(defs []*event.Def, o *AddOptions) error {
	if o == nil {
		o = &AddOptions{}
	}
	if err := t.knows(o.Triggers); err != nil {
		return err
	}
	for _, d := range defs {
		if d.Name != "" {
			t.namer.Reserve(d.Name)
		}
	}
	var errs []error
	for _, d := range defs {
		errs = append(errs, t.define(d, o))
	}
	err := errors.Join(errs...)
	if err == nil {
		err = t.begin(o.Triggers)
	}
	if err != nil {
		return errors.Join(err, t.undefine())
	}
	return nil
}

// define makes the probes of a definition.
func (t *Target) define(d *event.Def, o *AddOptions) error {
	if err := foreign(d); err != nil {
		return err
	}
	if m := d.Place.Module; m != "" {
		if err := findModule(os.DirFS("/"), release(), m); err != nil {
			return d.Refuse(event.BadProbeAddr, d.Place.Pos, "", err)
		}
	}
	if !d.Place.Glob {
		return t.defineOne(d, d)
	}
	funcs, err := Funcs("*")
	if err != nil {
		return err
	}
	all, err := expand(d, funcs)
	if err != nil {
		return err
	}
	made := 0
	for _, one := range all {
		switch err := t.defineOne(one, d); {
		case err == nil:
			made++
		case o.Skip == nil:
			return err
		default:
			o.Skip(one.Place.Symbol, err)
		}
	}
	if made == 0 {
		return d.Refuse(event.FailRegProbe, d.Place.Pos, "of the functions that match none takes a probe", nil)
	}
	return nil
}

// defineOne makes one probe of a definition that was given, and reads its format.
func (t *Target) defineOne(d, given *event.Def) error {
	name := d.Name
	if name == "" {
		name = t.namer.Name(d, d.Place)
	}
	group := t.group(d.Group)
	cmd := command(d, group, name)
	if err := write(cmd, t.dir, "kprobe_events"); err != nil {
		if d.Name == "" {
			t.namer.Release(name)
		}
		log, _ := read(t.dir, "error_log")
		return t.explain(d, refused(d, cmd, log, err))
	}
	ours := group + "/" + name
	if i := slices.IndexFunc(t.events, func(p *probed) bool { return p.ours == ours }); i >= 0 {
		if had := t.events[i].filter; had != d.Filter { // another probe of an event that is there
			return errno.Errorf(unix.EINVAL, "filter %q: an event has one filter, and %s has %q", d.Filter, name, had)
		}
		t.events[i].given = append(t.events[i].given, given)
		return nil
	}
	p := &probed{group: d.Group, name: name, ours: ours, ret: d.Kind == event.Return, filter: d.Filter, given: []*event.Def{given}, at: map[uint64]*hit.Event{}}
	t.events = append(t.events, p) // so that it is taken out whatever follows
	text, err := read(t.inst, "events", ours, "format")
	if err != nil {
		return err
	}
	if p.format, err = parseFormat(text); err != nil {
		return err
	}
	t.byID[p.id] = p
	return t.filter(p)
}

// filter gives an event its filter.
func (t *Target) filter(p *probed) error {
	if p.filter == "" {
		return nil
	}
	err := write(p.filter, t.inst, "events", p.ours, "filter")
	if err == nil {
		return nil
	}
	shown, _ := read(t.inst, "events", p.ours, "filter")
	return refusedFilter(p.filter, shown, err)
}

// group is our group for one of the user's.
func (t *Target) group(name string) string {
	n := slices.Index(t.groups, name)
	if n < 0 {
		n = len(t.groups)
		t.groups = append(t.groups, name)
	}
	return t.holder.group(n)
}

// explain says why the kernel takes no probe on a function, where it does not itself.
func (t *Target) explain(d *event.Def, err error) error {
	var e *event.Error
	if d.Place.Kind != event.PlaceSymbol || !errors.As(err, &e) || e.Code != event.FailRegProbe {
		return err
	}
	syms, bad := loadSymbols()
	if bad != nil || !slices.ContainsFunc(syms, func(k ksym) bool { return k.name == d.Place.Symbol }) {
		return err
	}
	if funcs, bad := Funcs(d.Place.Symbol); bad == nil && len(funcs) == 0 {
		e.Text = d.Place.Symbol + " is on the kernel's blacklist, or notrace: kprobe funcs -k lists what can be probed"
	}
	return err
}

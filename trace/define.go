package trace

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/ringpage"
)

// maxEvents is how many events there can be at once: their numbers have 16 bits in the
// kernel's records.
const maxEvents = 1<<16 - 1

// Write does what a write to kprobe_events does: it carries out commands, one a line,
// up to the first that is refused; those before it stay done. The error is an *event.Error
// with a column for a definition, and is logged then; for a deletion it answers ENOENT or
// EBUSY.
func (in *Instance) Write(commands string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.write(commands, kprobeLines)
}

// Replace is Write to a file that is truncated first: all events that it lists are deleted. If one is
// enabled that is EBUSY, and nothing is done.
func (in *Instance) Replace(commands string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := in.deleteAll(kprobeLines); err != nil {
		return err
	}
	return in.write(commands, kprobeLines)
}

// language is what a file of definitions takes.
type language struct {
	event.Parser
	has func(*probe) bool // the file lists the probe
}

var (
	kprobeLines = language{has: func(p *probe) bool { return !p.def.Uprobe }}
	allLines    = language{has: func(*probe) bool { return true }}
)

// deleteAll deletes the events that a file lists. EBUSY: one is enabled, and none is deleted.
func (in *Instance) deleteAll(l language) error {
	ps := in.listed(l)
	if err := in.disarmSpareable(ps); err != nil {
		return err
	}
	in.drop(ps)
	return nil
}

// listed are the probes that a file lists.
func (in *Instance) listed(l language) (out []*probe) {
	for _, p := range in.probes {
		if l.has(p) {
			out = append(out, p)
		}
	}
	return out
}

func (in *Instance) write(commands string, l language) error {
	n := 0
	for line := range strings.SplitSeq(commands, "\n") {
		n++
		if err := in.command(line, n, l); err != nil {
			in.note(err)
			return err
		}
	}
	return nil
}

// command carries out one line.
func (in *Instance) command(line string, n int, l language) error {
	d, err := l.Parse(line)
	var bad *event.Error
	switch {
	case errors.As(err, &bad):
		bad.Line = n
		return bad
	case d == nil:
		return nil
	case d.Kind == event.Delete:
		return in.remove(d, l)
	}
	d.Line = n
	err = in.define(d)
	d.Line = 0 // what is said of it later has nothing to do with these lines
	return err
}

// lateToo accepts definitions in objects that are not loaded yet.
var lateToo = &kprobes.AddOptions{Late: true}

// define adds a definition: a new event, or one more probe of an event. EINVAL: its group is one of events that are no probes.
func (in *Instance) define(d *event.Def) error {
	if d.Group == event.SyntheticGroup || d.Group == markEvent.Group {
		return errno.Errorf(unix.EINVAL, "%q: the group %s has events of its own: take another name for the group", d.Text, d.Group)
	}
	aimed, err := in.aim(d)
	if err != nil {
		return err
	}
	var e *entry
	if d.Name != "" {
		e = in.entries[key(d.Group, d.Name)]
	}
	if e != nil {
		for _, p := range e.probes {
			if err := aimed.Appends(p.aimed); err != nil {
				return err
			}
		}
	}
	if err := in.core.Check(aimed, lateToo); err != nil {
		return err
	}
	if e == nil {
		if e, err = in.newEntry(d); err != nil {
			return err
		}
	}
	p := &probe{entry: e, def: d, aimed: aimed}
	if err := in.join(p); err != nil {
		return err
	}
	e.probes = append(e.probes, p)
	in.probes = append(in.probes, p)
	for _, o := range in.each() {
		if o.state(e).live {
			o.tell(p)
		}
	}
	return nil
}

// join puts a probe that comes to an event into the target where the event is.
func (in *Instance) join(p *probe) error {
	var done []*Instance
	for _, o := range in.each() {
		if !o.state(p.entry).armed {
			continue
		}
		if err := o.arm([]*probe{p}); err != nil {
			for _, o := range done {
				err = errors.Join(err, o.disarm([]*probe{p}))
			}
			return err
		}
		done = append(done, o)
	}
	return nil
}

// newEntry makes the event of a definition, with a name and a number.
func (in *Instance) newEntry(d *event.Def) (*entry, error) {
	id, err := in.newID()
	if err != nil {
		return nil, err
	}
	if d.Name == "" {
		d.Name = in.namer.Name(d, d.Place)
	} else {
		in.namer.Reserve(d.Name)
	}
	e := &entry{group: d.Group, name: d.Name, id: id}
	in.enter(e)
	return e, nil
}

// enter lists an event.
func (in *Instance) enter(e *entry) {
	in.entries[key(e.group, e.name)] = e
	in.order = append(in.order, e)
}

// newID gives a number out: that of an event that has just gone only when all others have been given out.
func (in *Instance) newID() (int, error) {
	if len(in.ids) == maxEvents-ringpage.FirstID {
		return 0, errno.Errorf(unix.ENOSPC, "events %d: no more are possible, delete some", maxEvents)
	}
	id := (in.lastID + 1) % (maxEvents + 1)
	for id < ringpage.FirstID || in.ids[id] {
		id = (id + 1) % (maxEvents + 1)
	}
	in.ids[id], in.lastID = true, id
	return id, nil
}

// remove carries out a deletion, of events that the file lists.
func (in *Instance) remove(d *event.Def, l language) error {
	var hit []*probe
	for _, p := range in.listed(l) {
		if d.Deletes(p.def) {
			hit = append(hit, p)
		}
	}
	if len(hit) == 0 {
		return errno.Errorf(unix.ENOENT, "%q matches no event", d.Text)
	}
	if err := in.disarmSpareable(hit); err != nil {
		return err
	}
	in.drop(hit)
	return nil
}

// disarmSpareable takes probes out of the target that their events can do without: an event that is
// enabled keeps one.
func (in *Instance) disarmSpareable(ps []*probe) error {
	left := map[*entry]int{}
	for _, p := range ps {
		left[p.entry]++
	}
	whole := slices.DeleteFunc(slices.Clone(ps), func(p *probe) bool { return left[p.entry] < len(p.probes) })
	if err := in.idle(whole); err != nil {
		return err
	}
	back := map[*Instance][]*probe{}
	for _, o := range in.each() {
		armed := slices.DeleteFunc(slices.Clone(ps), func(p *probe) bool { return o.arming(p) == nil })
		err := o.disarm(armed)
		if err == nil {
			back[o] = armed
			continue
		}
		for o, ps := range back {
			err = errors.Join(err, o.arm(ps))
		}
		return err
	}
	return nil
}

// idle says which event keeps probes from being deleted.
func (in *Instance) idle(ps []*probe) error {
	for _, p := range ps {
		for _, o := range in.each() {
			if err := o.inUse(p.entry); err != nil {
				return err
			}
		}
	}
	return nil
}

// drop deletes probes that are disabled, and empties the buffers of instances that have had an event enabled which is deleted with them:
// its records would be without it.
func (in *Instance) drop(ps []*probe) {
	if len(ps) == 0 {
		return
	}
	gone := map[*probe]bool{}
	for _, p := range ps {
		gone[p] = true
	}
	went := func(p *probe) bool { return gone[p] }
	in.probes = slices.DeleteFunc(slices.Clone(in.probes), went)
	had := map[*Instance]bool{}
	for p := range gone {
		e := p.entry
		if e.probes = slices.DeleteFunc(e.probes, went); len(e.probes) > 0 || !in.ids[e.id] {
			continue
		}
		in.namer.Release(e.name)
		in.takeAway(e)
		for _, o := range in.instances {
			had[o] = had[o] || slices.ContainsFunc(o.made, func(a *arming) bool { return a.probe.entry == e })
		}
	}
	in.forget(gone)
	for o := range had {
		if had[o] {
			o.clear()
			o.ClearSnapshot(false)
		}
	}
}

// takeAway takes an event away, and what instances know of it.
func (in *Instance) takeAway(e *entry) {
	delete(in.ids, e.id)
	delete(in.entries, key(e.group, e.name))
	in.order = slices.DeleteFunc(slices.Clone(in.order), func(o *entry) bool { return o == e })
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	for _, o := range in.instances {
		if o.state(e).live && e.synthetic == nil {
			_ = o.set.Forget(e.group, e.name) // it is not in use
		}
		delete(o.states, e)
	}
}

// inUse says why an event can not be deleted: EBUSY.
func (in *Instance) inUse(e *entry) error {
	s := in.state(e)
	if s.live {
		in.pollMu.Lock()
		defer in.pollMu.Unlock()
		return in.set.Busy(e.group, e.name)
	}
	if s.on {
		return errno.Errorf(unix.EBUSY, "event %s/%s is enabled: disable it first", e.group, e.name)
	}
	return nil
}

// forget drops the armings of probes that are gone.
func (in *Instance) forget(gone map[*probe]bool) {
	for _, o := range in.instances {
		o.made = slices.DeleteFunc(o.made, func(a *arming) bool {
			if gone[a.probe] {
				o.gone += in.core.Counts(a.event).Lost
			}
			return gone[a.probe]
		})
	}
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	maps.DeleteFunc(in.armings, func(_ *event.Def, a *arming) bool { return gone[a.probe] })
}

// WriteDefinitions writes kprobe_events: the definitions in the order of their making.
func (in *Instance) WriteDefinitions(w io.Writer) error { return in.writeListed(w, kprobeLines) }

func (in *Instance) writeListed(w io.Writer, l language) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	var b strings.Builder
	for _, p := range in.listed(l) {
		fmt.Fprintln(&b, p.def)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

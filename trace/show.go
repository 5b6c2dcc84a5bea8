package trace

import (
	"io"
	"slices"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
)

// WriteProfile writes kprobe_profile: hits and misses of each probe since it was
// defined, records that were lost included.
func (in *Instance) WriteProfile(w io.Writer) error {
	in.drain()
	in.mu.Lock()
	defer in.mu.Unlock()
	var b strings.Builder
	for _, p := range in.listed(kprobeLines) {
		n := in.counts(p)
		b.WriteString(hit.ProfileLine(p.name, n.Hits, n.Missed))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// List writes kprobes/list: all probes of the Core, those without an event too, and behind them
// the instance's events that are not enabled.
func (in *Instance) List(w io.Writer) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	var off []*event.Def
	for _, p := range in.probes {
		if !in.busy(p.entry) {
			off = append(off, p.aimed)
		}
	}
	if err := in.core.List(w); err != nil {
		return err
	}
	return in.core.ListDisabled(w, off)
}

// Groups lists the groups of events by name.
func (in *Instance) Groups() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return sorted(in.order, func(e *entry) string { return e.group })
}

// Names lists the events of a group by name. A group without events is ENOENT.
func (in *Instance) Names(group string) ([]string, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	es, err := in.find(group, "")
	return sorted(es, func(e *entry) string { return e.name }), err
}

func sorted(es []*entry, name func(*entry) string) []string {
	var out []string
	for _, e := range es {
		out = append(out, name(e))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ID is the number of an event.
func (in *Instance) ID(group, name string) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	es, err := in.find(group, name)
	if err != nil {
		return 0, err
	}
	return es[0].id, nil
}

// Format is an event's format file. Arguments by name have the types that they have in the target, while it has the place.
func (in *Instance) Format(group, name string) (string, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	es, err := in.find(group, name)
	if err != nil {
		return "", err
	}
	if d := es[0].synthetic; d != nil {
		return hit.SyntheticFormat(d, es[0].id), nil
	}
	def := es[0].probes[0].aimed
	prog, err := engine.Of(in.core).Compiled(def)
	if err != nil {
		prog = nil // what it is about has gone
	}
	return hit.Format(def, prog, es[0].id), nil
}

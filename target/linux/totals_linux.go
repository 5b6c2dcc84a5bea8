package linux

import (
	"errors"
	"slices"
	"strings"
)

// Total sums up an event.
type Total struct {
	Group, Name  string
	Return       bool
	Hits, Missed uint64
	Lost         uint64 // hits that the ring had no room for
	// Tactic is how a hit comes: ftrace, jump or int3, of several probes the different
	// ones with commas; "kprobe" where the kernel does not tell (debugfs is not mounted).
	Tactic string
}

// Totals sums up the events, in the order of the definitions; after Leave.
func (t *Target) Totals() []Total { return t.totals }

// sum counts what the events did.
func (t *Target) sum(tactics map[string]string) error {
	profile, err := readProfile(t.dir)
	if err != nil {
		return err
	}
	lost, err := t.reader.lost()
	if err != nil {
		return err
	}
	over := make([]uint64, len(t.events))
	for i, p := range t.events {
		n := profile[p.ours]
		s := Total{Group: p.group, Name: p.name, Return: p.ret, Hits: p.read, Missed: n.missed, Tactic: tactics[p.ours]}
		if t.o.Count {
			s.Hits = n.hits
		} else if n.hits > p.read {
			over[i] = n.hits - p.read
		}
		t.totals = append(t.totals, s)
	}
	if t.stacked() { // stacks are lost too
		lost = min(lost, total(over))
	}
	for i, n := range share(lost, over) {
		t.totals[i].Lost = n
		t.totals[i].Hits += n
	}
	return nil
}

func total(ns []uint64) (all uint64) {
	for _, n := range ns {
		all += n
	}
	return all
}

// profileTries is how often the files of counts and of events are read until they agree:
// others may define probes meanwhile.
const profileTries = 10

// readProfile reads the counts of all events, by GROUP/NAME.
func readProfile(dir string) (p map[string]profiled, err error) {
	for range profileTries {
		events, err1 := read(dir, "kprobe_events")
		text, err2 := read(dir, "kprobe_profile")
		if err = errors.Join(err1, err2); err != nil {
			return nil, err
		}
		if p, err = parseProfile(text, parseEvents(events)); err == nil {
			return p, nil
		}
	}
	return nil, err
}

// tactics tells by our GROUP/NAME how the hits of an event come.
func (t *Target) tactics() map[string]string {
	out := map[string]string{}
	for _, p := range t.events {
		out[p.ours] = "kprobe"
	}
	file, err := debugfs("list")
	if err != nil {
		return out
	}
	list, err1 := read(file)
	text, err2 := read(t.dir, "kprobe_events")
	if errors.Join(err1, err2) != nil {
		return out
	}
	t.names.load()
	seen := map[string][]string{}
	standing, events := parseList(list), parseEvents(text)
	at := placesOf(events, t.names.syms)
	for _, e := range events {
		key := e.group + "/" + e.name
		i := slices.IndexFunc(standing, func(p placed) bool { return p.stands(&e, at) })
		if _, ours := out[key]; !ours || i < 0 {
			continue
		}
		if s := standing[i].tactic(); !slices.Contains(seen[key], s) {
			seen[key] = append(seen[key], s)
			out[key] = strings.Join(seen[key], ",")
		}
	}
	return out
}

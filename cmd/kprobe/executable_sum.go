package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/target/process"
)

// maxProcesses bounds the processes of which the sums are remembered one by one.
const maxProcesses = 1 << 16

// maxErrs bounds the errors that the command ends with.
const maxErrs = 8

// add takes in a process that is being left: it counts no more.
func (s *executableSums) add(m *executableMember, errs []error) {
	one := processSum{PID: m.p.s.proc.PID(), Comm: m.comm}
	all := m.p.Totals()
	for _, t := range all {
		one.Hits, one.Missed, one.Lost = one.Hits+t.Hits, one.Missed+t.Missed, one.Lost+t.Lost
		if len(all) > 1 && t.Hits > 0 {
			if one.Events == nil {
				one.Events = map[string]uint64{}
			}
			one.Events[t.Event] = t.Hits
		}
		s.join(t)
	}
	for i, n := range m.final {
		addCounts(&s.counts[s.byName[m.p.evs[i].Group+"/"+m.p.evs[i].Name]], n)
	}
	if len(s.processes) < maxProcesses {
		s.processes = append(s.processes, one)
	} else {
		s.others++
	}
	for _, r := range m.p.Remarks() {
		s.remark(r)
	}
	for _, err := range errs {
		if !errors.Is(err, process.ErrNoProcess) && len(s.errs) < maxErrs {
			s.errs = append(s.errs, err)
		}
	}
}

func (s *executableSums) remark(text string) {
	if s.remarks == nil {
		s.remarks = map[string]int{}
	}
	if s.remarks[text] > 0 || len(s.remarks) < maxReasons {
		s.remarks[text]++
	}
}

// join adds the total of a process to that of all.
func (s *executableSums) join(t *total) {
	at := s.index(t.Event)
	if s.totals[at] == nil {
		s.totals[at] = t
		return
	}
	s.totals[at].join(t)
}

// index is the place of an event in totals and counts.
func (s *executableSums) index(event string) int {
	at, ok := s.byName[event]
	if !ok {
		if s.byName == nil {
			s.byName = map[string]int{}
		}
		at = len(s.totals)
		s.byName[event] = at
		s.totals = append(s.totals, nil)
		s.counts = append(s.counts, kprobes.Counts{})
	}
	return at
}

func (s *executableSums) err() error { return errors.Join(s.errs...) }

// join adds the sums of the same event in another process.
func (s *total) join(o *total) {
	n := kprobes.Counts{Hits: o.Hits, Missed: o.Missed, Lost: o.Lost}
	if o.Filtered != nil {
		n.Filtered = *o.Filtered
	}
	if o.Unwound != nil {
		n.Unwound, n.Active = *o.Unwound, *o.Active
	}
	s.add(n, o.Tactic)
	s.Returns = cmp.Or(s.Returns, o.Returns)
	if room := maxReasons - len(s.bugs); room > 0 {
		s.bugs = append(s.bugs, o.bugs[:min(room, len(o.bugs))]...)
	}
}

func addCounts(sum *kprobes.Counts, n kprobes.Counts) {
	sum.Hits += n.Hits
	sum.Filtered += n.Filtered
	sum.Missed += n.Missed
	sum.Lost += n.Lost
	sum.Over += n.Over
}

// eventCounts are the sums of all processes by event, those that run among them. Events keep their places.
func (x *tracedExecutable) eventCounts() (names []string, counts []kprobes.Counts) {
	x.mu.Lock()
	members := slices.Clone(x.members)
	places := make([][]int, len(members))
	for i, m := range members {
		for _, e := range m.p.evs {
			places[i] = append(places[i], x.sums.index(e.Group+"/"+e.Name))
		}
	}
	counts = slices.Clone(x.sums.counts)
	names = make([]string, len(counts))
	for name, at := range x.sums.byName {
		names[at] = name
	}
	x.mu.Unlock()
	for i, m := range members { // those that are left meanwhile are not in counts yet
		for j, n := range m.counts() {
			addCounts(&counts[places[i][j]], n)
		}
	}
	return names, counts
}

// Totals are the sums over all processes.
func (x *tracedExecutable) Totals() []*total {
	return slices.DeleteFunc(slices.Clone(x.sums.totals), func(t *total) bool { return t == nil })
}

// Remarks say how processes were met, and what went wrong in them.
func (x *tracedExecutable) Remarks() (out []string) {
	if x.set == nil {
		return nil
	}
	c := x.set.Counts()
	met := fmt.Sprintf("%d processes of %s: %d probed before their first instruction, %d that ran already, %d that came and were probed later",
		c.Probed(), x.every.file.Path(), c.First, c.Running, c.Late)
	if c.Forked > 0 {
		met += fmt.Sprintf(", %d that were forked and whose parent has ended", c.Forked)
	}
	out = append(out, met)
	if c.Refused+c.Short+c.Unseen > 0 {
		out = append(out, fmt.Sprintf("without probes: %d processes that could not be probed, %d that ended before they could, %d of which the kernel did not tell", c.Refused, c.Short, c.Unseen))
	}
	out = append(out, x.told.list()...)
	for _, text := range slices.Sorted(maps.Keys(x.sums.remarks)) {
		if n := x.sums.remarks[text]; n > 1 {
			text = fmt.Sprintf("%s (in %d processes)", text, n)
		}
		out = append(out, text)
	}
	return out
}

// maxShownProcesses is how many processes the summary shows, those with the most hits. JSON has all.
const maxShownProcesses = 20

// processes writes what each process has counted.
func (x *tracedExecutable) processes(w io.Writer, format string) {
	all := slices.Clone(x.sums.processes)
	slices.SortStableFunc(all, func(a, b processSum) int { return cmp.Compare(b.Hits, a.Hits) })
	if format == "json" {
		for _, p := range all {
			b, _ := json.Marshal(p) // it has numbers and strings
			fmt.Fprintf(w, "%s\n", b)
		}
		return
	}
	for _, p := range all[:min(len(all), maxShownProcesses)] {
		fmt.Fprintf(w, "process %d (%s) hits=%d missed=%d lost=%d", p.PID, p.Comm, p.Hits, p.Missed, p.Lost)
		for _, name := range slices.Sorted(maps.Keys(p.Events)) {
			fmt.Fprintf(w, " %s=%d", name, p.Events[name])
		}
		fmt.Fprintln(w)
	}
	if rest := uint64(max(0, len(all)-maxShownProcesses)) + x.sums.others; rest > 0 {
		fmt.Fprintf(w, "and %d processes with fewer hits\n", rest)
	}
}

// Bounds of what is told of processes one by one.
const (
	maxReasons = 16
	maxSkips   = 1 << 16
)

// now tells what has waited, and has nothing wait any more.
func (o *tellOnce) now() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, tell := range o.untold {
		tell()
	}
	o.waits, o.untold = false, nil
}

// once calls tell if the thing is new.
func (o *tellOnce) once(thing string, tell func()) { o.failed(thing, nil, tell) }

// failed is once for an error.
func (o *tellOnce) failed(thing string, err error, tell func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.first == nil {
		o.first = err
	}
	if o.seen == nil {
		o.seen = map[string]int{}
	}
	if o.seen[thing] == 0 {
		if len(o.seen) >= o.most {
			return
		}
		o.order = append(o.order, thing)
		if o.waits {
			o.untold = append(o.untold, tell)
		} else {
			tell()
		}
	}
	o.seen[thing]++
}

func (o *tellOnce) firstError() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.first
}

// list says how often each thing was so that was so more than once.
func (o *tellOnce) list() (out []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, thing := range o.order {
		if n := o.seen[thing]; n > 1 {
			out = append(out, fmt.Sprintf("%d processes: %s", n, thing))
		}
	}
	return out
}

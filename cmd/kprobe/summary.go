package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
)

// total is the summary of an event, which JSON names as its lines do. A return probe's hits
// are returns, and its entries are hits + missed + unwound + active.
type total struct {
	Event  string `json:"event"` // group and name
	name   string
	Hits   uint64 `json:"hits"`
	Missed uint64 `json:"missed"`
	Lost   uint64 `json:"lost"`
	// Filtered are hits that did not pass the filter; nil: it has none.
	Filtered *uint64 `json:"filtered,omitempty"`
	// Over are hits beyond the budget, and Disabled is why that has disabled the event. nil: there is no budget.
	Over     *uint64 `json:"over,omitempty"`
	Disabled string  `json:"disabled,omitempty"`
	Tactic   string  `json:"tactic"`
	Unwound  *uint64 `json:"unwound,omitempty"`
	Active   *uint64 `json:"active,omitempty"`
	Returns  string  `json:"returns,omitempty"` // how they are seen, if not at the exits
	// Aggregated is who counts the hits in the event's histogram, if it is not the code at the hit.
	Aggregated string `json:"aggregated,omitempty"`
	bugs       []string
}

// aggregatedByReader: the hits make records, which kprobe counts.
const aggregatedByReader = "reader"

// totals sums the events up; probes that share a name are one event. form tells how an event is, or was last, armed.
func totals(core *kprobes.Core, evs []*kprobes.Event, form func(*kprobes.Event) string) []*total {
	var out []*total
	byName := map[string]*total{}
	for _, e := range evs {
		n := core.Counts(e)
		tactic := form(e)
		key := e.Group + "/" + e.Name
		s := byName[key]
		if s == nil {
			s = &total{Event: key, name: e.Name, Tactic: tactic}
			byName[key] = s
			out = append(out, s)
			if e.Def.Filter != "" {
				s.Filtered = new(uint64)
			}
			if engine.OfEvent(e).Budgeted() {
				s.Over = new(uint64)
			}
			if e.Def.Kind == event.Return {
				s.Unwound, s.Active = new(uint64), new(uint64)
			}
		}
		s.add(n, tactic)
		if why := engine.OfEvent(e).Exceeded(); why != nil {
			s.Disabled = why.Error()
		}
		s.returns(n, e)
	}
	return out
}

func (s *total) add(n kprobes.Counts, tactic string) {
	s.Hits += n.Hits
	s.Missed += n.Missed
	s.Lost += n.Lost
	if s.Filtered != nil {
		*s.Filtered += n.Filtered
	}
	if s.Over != nil {
		*s.Over += n.Over
	}
	if s.Unwound != nil {
		*s.Unwound += n.Unwound
		*s.Active += n.Active
	}
	if !slices.Contains(strings.Split(s.Tactic, ","), tactic) {
		s.Tactic += "," + tactic
	}
}

// returns tells how the returns are seen, and whether one came that no call belongs to: in the
// kernel's words, with the place on the stack where its return address was.
func (s *total) returns(n kprobes.Counts, e *kprobes.Event) {
	if how, _ := e.Returns(); how == kprobes.ReturnsTrampoline {
		s.Returns = string(how)
	}
	if n.Strays > 0 {
		s.bugs = append(s.bugs, fmt.Sprintf("kretprobe BUG!: Processing kretprobe %016x @ %016x (%s: %d returns belong to no call)", n.StraySlot, e.Place().Addr, e.Name, n.Strays))
	}
}

func (s *total) print(w io.Writer) {
	tactic := s.Tactic
	if tactic == "" {
		tactic = "none" // its object was never there, or it was taken out
	}
	fmt.Fprintf(w, "%s hits=%d missed=%d lost=%d tactic=%s", s.name, s.Hits, s.Missed, s.Lost, tactic)
	if s.Filtered != nil {
		fmt.Fprintf(w, " filtered=%d", *s.Filtered)
	}
	if s.Over != nil {
		fmt.Fprintf(w, " over=%d", *s.Over)
	}
	if s.Unwound != nil {
		fmt.Fprintf(w, " unwound=%d active=%d", *s.Unwound, *s.Active)
	}
	if s.Returns != "" {
		fmt.Fprintf(w, " returns=%s", s.Returns)
	}
	if s.Aggregated != "" {
		fmt.Fprintf(w, " aggregated=%s", s.Aggregated)
	}
	if s.Disabled != "" {
		fmt.Fprintf(w, " disabled=%q", s.Disabled)
	}
	fmt.Fprintln(w)
}

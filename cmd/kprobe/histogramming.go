package main

import (
	"slices"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/metrics"
)

// histogramming is a run of the verb hist.
type histogramming struct {
	f      traceFlags
	given  []given
	set    *hit.Histograms
	shown  []shown
	values []fetch.Value
	core   *engine.Core
	format string
	begun  time.Time // when the probes were added
	err    error     // why the histograms of a process could not be made that came (-x)
	metered
}

// given is a PROBE with its HIST, as the command line has them.
type given struct {
	def   *event.Def
	synth *event.Synthetic // in place of def
	hist  *event.Hist      // nil: of a synthetic event whose lines are printed
}

// shown is a histogram that is printed.
type shown struct {
	name string
	hist *hit.Histogram
	def  *event.Hist
	evs  []*engine.Event // the event's probes; none: a synthetic event
	many bool            // its definition has made several events
	// synth is the synthetic event; nil: it is a probe's.
	synth *event.Synthetic
}

// needsStack says whether the callers are a key of a histogram, a variable, or what an action traces; nil is no histogram.
func needsStack(h *event.Hist) bool {
	return h != nil && (slices.ContainsFunc(h.Keys, func(k event.HistField) bool { return k.Mod == event.HistStack }) ||
		slices.ContainsFunc(h.Vars, func(v event.HistVar) bool { return v.Is.Mod == event.HistStack }) ||
		slices.ContainsFunc(h.Actions, func(a event.HistAction) bool { return slices.ContainsFunc(a.Params, event.IsHistStack) }))
}

// metered is how the histograms of a run are shown as metrics.
type metered struct {
	shownAs exposition
	listen  string
	every   time.Duration
	series  int
	counted []*metrics.Counted // of each of histogramming.shown; nil: it shares that of one before it
}

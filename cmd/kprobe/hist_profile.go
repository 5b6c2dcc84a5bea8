package main

import (
	"slices"
	"strings"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/profile"
)

// The forms of kprobe hist.
const (
	histText   = "text"
	histPProf  = "pprof"
	histFolded = "folded"
)

// checkProfile says whether the histograms that are asked for can be given as a profile.
func (g *histogramming) checkProfile() error {
	if g.format == histText {
		return nil
	}
	if g.format != histPProf && g.format != histFolded {
		return usagef("format %q: %s, %s or %s", g.format, histText, histPProf, histFolded)
	}
	var hists []*event.Hist
	for _, one := range g.given {
		if one.hist != nil {
			hists = append(hists, one.hist)
		} else if one.synth != nil {
			return usagef("--format %s: synthetic event %s has no histogram, and its lines have no place in a profile", g.format, one.synth.Name)
		}
	}
	isStack := func(k event.HistField) bool { return k.Mod == event.HistStack }
	if len(hists) != 1 || !slices.ContainsFunc(hists[0].Keys, isStack) {
		return usagef("--format %s: a profile is made of one histogram with common_stacktrace among its keys", g.format)
	}
	g.begun = time.Now()
	return nil
}

// oneProfile says whether the events that have come share one histogram.
func (g *histogramming) oneProfile() error {
	if g.format == histText || len(g.shown) < 2 {
		return nil
	}
	for _, s := range g.shown[1:] {
		if !s.hist.Shares(g.shown[0].hist) {
			return usagef("--format %s: a profile is made of one histogram, and there are %d: have them share it, by name=NAME in the HIST", g.format, len(g.shown))
		}
	}
	return nil
}

// profile writes the profile.
func (g *histogramming) profile(l *lines) {
	s := g.shown[0]
	src := &profile.Source{Hist: s.hist, Def: s.def, Names: g.core, Mappings: g.mappings(), Unit: g.unit, End: time.Now(), Duration: time.Since(g.begun)}
	if len(s.evs) == 1 && s.evs[0].Def.Kind == event.Return {
		src.Returned = s.evs[0].Place.Addr
	}
	if g.format == histFolded {
		l.failed(src.Folded(l.out))
		return
	}
	l.failed(src.PProf().Write(l.out))
}

// unit is that of a value: of times it is known.
func (g *histogramming) unit(field string) string {
	if strings.Contains(field, "common_timestamp") {
		return "nanoseconds"
	}
	for _, one := range g.given {
		if one.def == nil {
			continue
		}
		for _, a := range one.def.Args {
			if a.Name == field && a.Expr.Kind == event.ExprDuration {
				return "nanoseconds"
			}
		}
	}
	return "count"
}

// mappings are the target's files, as far as there is code in them.
func (g *histogramming) mappings() (out []profile.Mapping) {
	for _, m := range g.core.Target().Space().Modules() {
		for _, s := range m.Image.Segments() {
			if s.Exec {
				out = append(out, profile.Mapping{Start: m.Runtime(s.Vaddr), End: m.Runtime(s.Vaddr + s.Memsz), Offset: s.Off, File: m.Image.Path(), BuildID: m.Image.BuildID()})
			}
		}
	}
	return out
}

package main

import (
	"net/http"
	"slices"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/httpaccess"
	"kprobes.dev/kprobes/internal/httpprofile"
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
	if g.format == histText || isExposition(g.format) {
		return nil
	}
	if g.format != histPProf && g.format != histFolded {
		return usagef("format %q: %s, %s, %s, %s or %s", g.format, histText, histPProf, histFolded, formPrometheus, formOpenMetrics)
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
	return nil
}

// oneProfile says whether the events that have come share one histogram.
func (g *histogramming) oneProfile() error {
	if g.format != histPProf && g.format != histFolded || len(g.shown) < 2 {
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
	src := g.source(&g.shown[0], g.shown[0].hist, g.begun)
	if g.format == histFolded {
		l.failed(src.Folded(l.out))
		return
	}
	l.failed(src.PProf().Write(l.out))
}

// source is what a profile is made of: what a histogram has counted since a time.
func (g *histogramming) source(s *shown, h *hit.Histogram, since time.Time) *profile.Source {
	src := &profile.Source{Hist: h, Def: s.def, Names: g.core, Mappings: profile.Mappings(g.core.Target().Space()), Unit: g.unit, End: time.Now(), Duration: time.Since(since)}
	if len(s.evs) == 1 && s.evs[0].Def.Kind == event.Return {
		src.Returned = s.evs[0].Place.Addr
	}
	return src
}

// answerProfile answers a request for a profile of a histogram by callers: of all that it has counted, or of what it counts in so many seconds.
func (g *histogramming) answerProfile(w http.ResponseWriter, r *http.Request) error {
	s, err := g.profiled(r.URL.Query().Get("event"))
	if err != nil {
		return err
	}
	seconds, err := httpprofile.Seconds(r, 0)
	if err != nil {
		return err
	}
	copied := func() (*hit.Histogram, error) {
		g.shownAs.mu.Lock()
		defer g.shownAs.mu.Unlock()
		return g.snapshot(s)
	}
	since, before := g.begun, (*hit.Histogram)(nil)
	if seconds > 0 {
		since = time.Now()
		if before, err = copied(); err != nil {
			return err
		}
	}
	httpprofile.Answer(w, r, seconds, func() (*pprof.Profile, error) {
		now, err := copied()
		if err != nil {
			return nil, err
		}
		if before != nil {
			now.Since(before)
		}
		return g.source(s, now, since).PProf(), nil
	})
	return nil
}

// profiled finds the histogram by callers of an event that a request names; "": the only one.
func (g *histogramming) profiled(name string) (*shown, error) {
	var found []*shown
	var names []string
	for i := range g.shown {
		s := &g.shown[i]
		_, short, _ := strings.Cut(s.name, "/")
		if s.hist.StackKey() < 0 {
			continue
		}
		if names = append(names, s.name); name == "" || name == s.name || name == short {
			found = append(found, s)
		}
	}
	switch {
	case len(found) > 0 && !slices.ContainsFunc(found, func(s *shown) bool { return !s.hist.Shares(found[0].hist) }):
		return found[0], nil
	case len(names) == 0:
		return nil, httpaccess.Refuse(http.StatusNotFound, "no histogram has common_stacktrace among its keys, of which profiles are made")
	}
	return nil, httpaccess.Refuse(http.StatusNotFound, "event %q: say which, as in /profile?event=%s; there are profiles of %s", name, names[0], strings.Join(names, ", "))
}

// unit is that of a value: of times it is known.
func (g *histogramming) unit(field string) string {
	if strings.Contains(field, "common_timestamp") || g.timeUnit(field) != 0 {
		return "nanoseconds"
	}
	return "count"
}

package debughttp

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/httpaccess"
	"kprobes.dev/kprobes/internal/httpprofile"
	"kprobes.dev/kprobes/internal/profile"
)

// profilePath is where profiles are, below Prefix.
const profilePath = "profile"

// defaultTime is how long a profile takes if the request does not say: as those of net/http/pprof.
const defaultTime = 30 * time.Second

// profileKeys is the histogram that a profile is made of.
const profileKeys = "keys=common_stacktrace:size=65536"

// asked is what a request for a profile asks for.
type asked struct {
	group, name string
	vals        []string // arguments of the event that are summed up
	given       bool     // the request names them
	hist        *event.Hist
	nanos       map[string]bool // which values are nanoseconds
}

// profile answers with a profile of the hits of an event in the time of the request: GET profile?event=[GROUP/]EVENT[&seconds=N][&vals=ARG,ARG].
func (c *call) profile() error {
	if err := allows(c.w, c.r.Method, []string{http.MethodGet}); err != nil {
		return err
	}
	q := c.r.URL.Query()
	for name := range q {
		if !slices.Contains([]string{"event", "seconds", "vals"}, name) {
			return httpaccess.Refuse(http.StatusBadRequest, "parameter %q: profile takes event, seconds and vals", name)
		}
	}
	a := &asked{nanos: map[string]bool{}}
	var ok bool
	if a.group, a.name, ok = strings.Cut(q.Get("event"), "/"); !ok {
		a.group, a.name = event.DefaultGroup, a.group
	}
	if a.name == "" {
		return httpaccess.Refuse(http.StatusBadRequest, "event=[GROUP/]EVENT is missing: the event whose callers are wanted; GET %sevents tells the groups", Prefix)
	}
	if a.given = q.Has("vals"); q.Get("vals") != "" {
		a.vals = strings.Split(q.Get("vals"), ",")
	}
	seconds, err := httpprofile.Seconds(c.r, defaultTime)
	if err != nil {
		return err
	}
	begun := time.Now()
	counting, err := c.in.Count(a.group, a.name, a.prepare)
	if err != nil {
		return err
	}
	core := engine.Of(c.in.Core())
	if _, err := a.source(core, counting.Events); err != nil { // it would fail at the end too
		return errors.Join(err, counting.Stop())
	}
	httpprofile.Answer(c.w, c.r, seconds, func() (*pprof.Profile, error) {
		end := time.Now()
		if err := counting.Stop(); err != nil {
			return nil, err
		}
		src, err := a.source(core, counting.Events)
		if err != nil {
			return nil, err
		}
		src.End, src.Duration = end, end.Sub(begun)
		return src.PProf(), nil
	})
	return nil
}

// prepare has a copy of the event's definition count by callers. At a return it also takes the time that the call took, if the request names no values.
func (a *asked) prepare(d *event.Def) error {
	d.Args = slices.Clone(d.Args)
	if d.Kind == event.Return && !a.given {
		if err := a.addDuration(d); err != nil {
			return err
		}
	}
	var names []string
	for _, arg := range d.Args {
		names = append(names, arg.Name)
		a.nanos[arg.Name] = arg.Expr != nil && arg.Expr.Kind == event.ExprDuration
	}
	for _, v := range a.vals {
		if !slices.Contains(names, v) {
			return httpaccess.Refuse(http.StatusBadRequest, "vals: %q is no argument of %s/%s, which has: %s", v, a.group, a.name, strings.Join(names, " "))
		}
	}
	text := profileKeys
	if len(a.vals) > 0 {
		text += ":vals=" + strings.Join(a.vals, ",")
	}
	hist, err := event.ParseHist(text)
	if err != nil {
		return err
	}
	a.hist = hist
	d.Hist, d.Stack = hist, event.HistCallers
	return nil
}

// addDuration gives a definition the argument $duration, if it has none, and sums it up.
func (a *asked) addDuration(d *event.Def) error {
	name := "duration"
	for _, arg := range d.Args {
		if arg.Expr != nil && arg.Expr.Kind == event.ExprDuration {
			a.vals = []string{arg.Name}
			return nil
		}
		for arg.Name == name {
			name += "_"
		}
	}
	of, err := event.Parse("r:duration duration " + name + "=$duration")
	if err != nil {
		return err
	}
	d.Args = append(d.Args, of.Args[0])
	a.vals = []string{name}
	return nil
}

// source is what the profile is made of: what has been counted of all probes of the event.
func (a *asked) source(core *engine.Core, evs []*kprobes.Event) (*profile.Source, error) {
	var all *hit.Histogram
	for _, ev := range evs {
		e := engine.OfEvent(ev)
		entries, dropped, ok, err := core.Histogram(e)
		if err == nil && !ok {
			err = httpaccess.Refuse(http.StatusNotImplemented, "event %s/%s: the code at its hits can not count them, since they are traps of the kernel, or of a guest: record them with their stacks instead", a.group, a.name)
		}
		if err == nil && all == nil {
			all, err = core.NewHistogram(e)
		}
		if err != nil {
			return nil, err
		}
		all.Load(entries, dropped)
	}
	if all == nil {
		return nil, errors.New("the event has no probe")
	}
	src := &profile.Source{Hist: all, Def: a.hist, Names: core, Mappings: profile.Mappings(core.Target().Space()), Unit: a.unit}
	if len(evs) == 1 && evs[0].Def.Kind == event.Return {
		src.Returned = evs[0].Place().Addr
	}
	return src, nil
}

func (a *asked) unit(name string) string {
	if a.nanos[name] {
		return "nanoseconds"
	}
	return "count"
}

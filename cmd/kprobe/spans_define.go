package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/goabi"
	"kprobes.dev/kprobes/internal/otlp"
)

// spanned is a definition whose calls become spans.
type spanned struct {
	given      *event.Def
	names      map[string]string      // the attributes of arguments, by the arguments' names, where they differ
	kind       otlp.Kind              // --kind; 0: none
	failing    string                 // --error
	set        string                 // of --set that it comes from; "": it was given
	where      string                 // of set: FILE:LINE
	or         map[string][]event.Arg // of set: what stands for an argument that the program does not know
	entry, ret *event.Def             // what is added for it; entry may be nil
}

// attribute is the attribute that an argument becomes.
func (c *spanned) attribute(arg string) string { return cmp.Or(c.names[arg], arg) }

// Names of arguments that the spans need; the language of definitions takes them too, and a probe that has one is refused.
const (
	argDepth   = "__depth"
	argFailed  = "__failed"
	argEntered = "__entered"
	argTook    = "__took"
)

// argRemote is the argument that has the header of this name, if a definition has one.
const argRemote = "traceparent"

// spanGroup is the group of the probes on the Go runtime.
const spanGroup = "kprobe_spans"

// probedCore is a tracee that the engine probes.
type probedCore interface {
	Events() []*kprobes.Event
	Core() *kprobes.Core
}

// define makes the definitions that are added: of each call its entry and its return; where most calls are stopped at their return, that
// alone; and probes on the runtime of Go.
func (g *spanning) define(s tracee, defs []*event.Def) ([]*event.Def, error) {
	p, ok := s.(probedCore)
	if !ok {
		return nil, usagef("there are no spans of this target")
	}
	g.core = engine.Of(p.Core())
	g.takeContexts()
	if err := g.choose(); err != nil {
		return nil, err
	}
	var out []*event.Def
	for _, c := range g.calls {
		if err := c.reserved(); err != nil {
			return nil, err
		}
		if g.filtered() {
			g.defineReturn(c)
			out = append(out, c.ret)
			continue
		}
		g.defineBoth(c)
		out = append(out, c.entry, c.ret)
	}
	if g.filtered() {
		return out, nil
	}
	out = append(out, g.defineRuntime()...)
	g.chooseTraces()
	return out, nil
}

// chooseTraces has the probes choose which traces are kept, where they can: else that is decided when their hits have come. Calls with a
// header of another program have hits in any case: what the header says is not known before. Where calls have contexts nothing is chosen at
// the hit: such a call may be in a trace that the program keeps, and in a call of one that is not kept.
func (g *spanning) chooseTraces() {
	if g.sample <= 1 || g.core.CanSample() != nil {
		return
	}
	if g.contexts() {
		g.tell("which traces are kept is decided when their records have come: a context may carry a span whose trace is kept, or not")
		return
	}
	s := &engine.Sampling{Every: g.sample, Roles: map[*event.Def]arch.SampleRole{}, Always: map[*event.Def]bool{}}
	for _, c := range g.calls {
		s.Roles[c.entry], s.Roles[c.ret] = arch.SampleEnter, arch.SampleLeave
		s.Always[c.entry] = slices.ContainsFunc(c.entry.Args, func(a event.Arg) bool { return a.Name == argRemote && a.Type.IsString() })
	}
	for d, r := range g.runtime {
		s.Roles[d] = map[role]arch.SampleRole{roleCreated: arch.SampleCreated, roleEnded: arch.SampleEnded, roleRecovered: arch.SampleRecovered}[r]
	}
	g.sampling = s
	g.core.Sample(s)
}

// reserved refuses arguments with names that are needed.
func (c *spanned) reserved() error {
	for i := range c.given.Args {
		a := &c.given.Args[i]
		if slices.Contains([]string{argDepth, argFailed, argEntered, argTook}, a.Name) {
			return c.given.Refuse(event.UsedArgName, a.Pos, "kprobe spans has an argument of this name itself", nil)
		}
	}
	return nil
}

// needed is an argument that the spans need.
func needed(name string, kind event.ExprKind) event.Arg {
	return event.Arg{Name: name, Text: name, Expr: &event.Expr{Kind: kind}, Type: event.DefaultType}
}

// defineReturn makes the definition of a call whose return alone is recorded.
func (g *spanning) defineReturn(c *spanned) {
	ret := *c.given
	ret.Args = append(slices.Clone(ret.Args), needed(argEntered, event.ExprEntered), needed(argTook, event.ExprDuration), needed(argFailed, event.ExprFailed))
	add := func(filter string) {
		if ret.Filter != "" {
			filter = "(" + ret.Filter + ") && (" + filter + ")"
		}
		ret.Filter = filter
	}
	if g.slower > 0 {
		add(fmt.Sprintf("%s >= %d", argTook, g.slower.Nanoseconds()))
	}
	if g.errors {
		failed := argFailed + " != 0"
		if c.failing != "" {
			failed += " || (" + c.failing + ")"
		}
		add(failed)
	}
	c.ret = &ret
}

// defineBoth makes the definitions of a call's entry and of its return. Arguments are recorded at the entry, results at the return. A
// filter is tested at both, and --error at the return: the arguments that they name are there then too.
func (g *spanning) defineBoth(c *spanned) {
	entry, ret := g.split(c, c.given)
	if entry.Name != "" {
		entry.Name = entry.Name[:min(len(entry.Name), event.MaxName-len(entrySuffix))] + entrySuffix
	}
	for _, a := range entry.Args {
		if mayName(ret.Filter, &a) || mayName(c.failing, &a) {
			ret.Args = append(ret.Args, a)
		}
	}
	depth := needed(argDepth, event.ExprDepth)
	entry.Args = append(entry.Args, depth)
	ret.Args = append(ret.Args, depth, needed(argFailed, event.ExprFailed))
	c.entry, c.ret = &entry, &ret
}

// mayName says whether a condition names an argument, or perhaps one of those that it stands for.
func mayName(condition string, a *event.Arg) bool {
	all := a.Expr.Kind == event.ExprAllArgs || a.Expr.Kind == event.ExprAllVars
	return condition != "" && (all || slices.Contains(identifier.FindAllString(condition, -1), a.Name))
}

var identifier = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// split makes the definitions of a call's entry, with the arguments, and of its return, with the results, and with what is told of a
// response, which the call has made by then.
func (g *spanning) split(c *spanned, given *event.Def) (entry, ret event.Def) {
	entry, ret = *given, *given
	entry.Kind, entry.MaxActive, entry.Place.Return = event.Probe, 0, false
	entry.Args, ret.Args = nil, nil
	for _, a := range given.Args {
		if ofReturn(a.Expr) || strings.Contains(c.attribute(a.Name), ".response.") {
			ret.Args = append(ret.Args, a)
		} else {
			entry.Args = append(entry.Args, a)
		}
	}
	g.results(&entry, &ret)
	return entry, ret
}

// entrySuffix ends the name of the probe at the entry of a call that has a name.
const entrySuffix = "_entry"

// ofReturn says whether an expression is known at the return alone.
func ofReturn(e *event.Expr) bool {
	switch {
	case e == nil:
		return false
	case e.Kind == event.ExprRetVal || e.Kind == event.ExprDuration:
		return true
	}
	return ofReturn(e.Sub) || e.Cast != nil && ofReturn(e.Cast.Address)
}

// results moves arguments that are results of a Go function, by their names, from the entry to the return: the entry does not know them.
func (g *spanning) results(entry, ret *event.Def) {
	for !entry.Place.Glob && slices.ContainsFunc(entry.Args, func(a event.Arg) bool { return named(a.Expr) }) {
		_, err := g.core.Compiled(entry)
		var bad *event.Error
		if !errors.As(err, &bad) || bad.Code != event.NoBTFArg {
			return // any other mistake is told when the probes are added
		}
		at := -1
		for i := range entry.Args {
			if entry.Args[i].Pos <= bad.Pos {
				at = i
			}
		}
		if at < 0 || !named(entry.Args[at].Expr) {
			return
		}
		ret.Args = append(ret.Args, entry.Args[at])
		entry.Args = slices.Delete(entry.Args, at, at+1)
	}
}

// named says whether an expression has a name of the program.
func named(e *event.Expr) bool {
	return e != nil && (e.Kind == event.ExprName || named(e.Sub))
}

// runtimeProbe is a probe on the runtime of Go.
type runtimeProbe struct {
	role role
	text string
	what string // is not seen without it
}

// defineRuntime makes the probes on the runtime of a Go program that can be had. It is told which can not.
func (g *spanning) defineRuntime() (out []*event.Def) {
	main := g.core.Target().Space().Main()
	if main == nil || !main.Image.IsGo() {
		return nil
	}
	layouts := goabi.Layouts(main.Image.GoVersion())
	if len(layouts) == 0 {
		return nil // it is told why the program can not be probed
	}
	g.runtime = map[*event.Def]role{}
	id := layouts[0].GoID
	for _, r := range []runtimeProbe{
		{roleEnded, "p:" + spanGroup + "/ended runtime.goexit1", "which goroutines end in a call, and which call one was created in"},
		{roleCreated, fmt.Sprintf("r:%s/created runtime.newproc1 by=+%d($arg2):u64 new=+%d($retval):u64", spanGroup, id, id), "which call a goroutine was created in"},
		{roleRecovered, "p:" + spanGroup + "/recovered runtime.recovery id=gp.goid to=gp._panic.sp high=gp.stack.hi", "at once which calls a panic has left"},
	} {
		d, err := event.Parse(r.text)
		if err == nil {
			err = g.core.Check(d, &engine.AddOptions{})
		}
		if err != nil {
			if !g.f.quiet {
				g.say("it is not seen %s: %v", r.what, plainReason(err))
			}
			continue
		}
		g.runtime[d] = r.role
		out = append(out, d)
	}
	if len(out) > 0 && g.runtime[out[0]] == roleCreated { // what is remembered of goroutines would never be forgotten
		delete(g.runtime, out[0])
		out = out[1:]
	}
	return out
}

// plainReason is why a definition that the user has not written is refused, without its column.
func plainReason(err error) error {
	var bad *event.Error
	if errors.As(err, &bad) {
		if bad.Err != nil {
			return bad.Err
		}
		return errors.New(bad.Text)
	}
	return err
}

package spanmaker

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/goabi"
)

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

// Define makes the definitions that are to be added: of each call its entry and its return; where most calls are stopped at their return, that
// alone; and behind these probes on the runtime of Go. It leaves out what of sets the program has not. An *AskedError says that what is asked for
// is wrong.
func (m *Maker) Define() (out []*event.Def, err error) {
	m.takeContexts()
	if err := m.choose(); err != nil {
		return nil, err
	}
	for _, c := range m.calls {
		if err := c.reserved(); err != nil {
			return nil, err
		}
		if m.o.filtered() {
			m.defineReturn(c)
			out = append(out, c.Return)
			continue
		}
		m.defineBoth(c)
		out = append(out, c.Entry, c.Return)
	}
	out = append(out, m.defineRuntime()...)
	if m.o.filtered() {
		m.seeLeft()
	} else {
		m.chooseTraces()
	}
	return out, nil
}

// seeLeft has the probe on what recovers from panics tell of the calls that these leave: they have no entry that has been recorded.
func (m *Maker) seeLeft() {
	for d, r := range m.runtime {
		if r != roleRecovered {
			continue
		}
		l := &engine.Leaving{At: d, Calls: map[*event.Def]bool{}}
		for _, c := range m.calls {
			l.Calls[c.Return] = true
		}
		m.core.Leave(l)
	}
}

// chooseTraces has the probes choose which traces are kept, where they can: else that is decided when their hits have come. Calls with a
// header of another program have hits in any case: what the header says is not known before. Where calls have contexts nothing is chosen at
// the hit: such a call may be in a trace that the program keeps, and in a call of one that is not kept.
//
// Where all traces are kept, they see to it that goroutines which are in no call have no records.
func (m *Maker) chooseTraces() {
	if m.o.Sample <= 1 && !m.followsFew() || m.core.CanSample() != nil {
		return
	}
	if m.o.Sample > 1 && Contexts(m.calls) {
		m.detail("which traces are kept is decided when their records have come: a context may carry a span whose trace is kept, or not")
		return
	}
	s := &engine.Sampling{Every: max(m.o.Sample, 1), Roles: map[*event.Def]arch.SampleRole{}, Always: map[*event.Def]bool{}}
	for _, c := range m.calls {
		s.Roles[c.Entry], s.Roles[c.Return] = arch.SampleEnter, arch.SampleLeave
		s.Always[c.Entry] = slices.ContainsFunc(c.Entry.Args, func(a event.Arg) bool { return a.Name == argRemote && a.Type.IsString() })
	}
	for d, r := range m.runtime {
		s.Roles[d] = map[role]arch.SampleRole{roleCreated: arch.SampleCreated, roleEnded: arch.SampleEnded, roleRecovered: arch.SampleRecovered}[r]
	}
	m.sampling = s
	m.core.Sample(s)
}

// followsFew says whether most goroutines may be in no call: then it pays that calls write down what their goroutine is in. Where goroutines are hidden
// those that they create must be known, which are in no call.
func (m *Maker) followsFew() bool {
	for _, r := range m.runtime {
		if r == roleCreated {
			return len(m.hidden) == 0 && !slices.ContainsFunc(m.calls, func(c *Call) bool { return c.Def.Place.Glob })
		}
	}
	return false
}

// reserved refuses arguments with names that are needed.
func (c *Call) reserved() error {
	for i := range c.Def.Args {
		a := &c.Def.Args[i]
		if slices.Contains([]string{argDepth, argFailed, argEntered, argTook}, a.Name) {
			return c.Def.Refuse(event.UsedArgName, a.Pos, "kprobe spans has an argument of this name itself", nil)
		}
	}
	return nil
}

// needed is an argument that the spans need.
func needed(name string, kind event.ExprKind) event.Arg {
	return event.Arg{Name: name, Text: name, Expr: &event.Expr{Kind: kind}, Type: event.DefaultType}
}

// defineReturn makes the definition of a call whose return alone is recorded.
func (m *Maker) defineReturn(c *Call) {
	ret := *c.Def
	ret.Args = append(slices.Clone(ret.Args), needed(argEntered, event.ExprEntered), needed(argTook, event.ExprDuration), needed(argFailed, event.ExprFailed))
	add := func(filter string) {
		if ret.Filter != "" {
			filter = "(" + ret.Filter + ") && (" + filter + ")"
		}
		ret.Filter = filter
	}
	if m.o.Slower > 0 {
		add(fmt.Sprintf("%s >= %d", argTook, m.o.Slower.Nanoseconds()))
	}
	if m.o.Errors {
		failed := argFailed + " != 0"
		if c.Failing != "" {
			failed += " || (" + c.Failing + ")"
		}
		add(failed)
	}
	c.Return = &ret
}

// defineBoth makes the definitions of a call's entry and of its return. Arguments are recorded at the entry, results at the return. A
// filter is tested at both, and --error at the return: the arguments that they name are there then too.
func (m *Maker) defineBoth(c *Call) {
	entry, ret := m.split(c, c.Def)
	if entry.Name != "" {
		entry.Name = entry.Name[:min(len(entry.Name), event.MaxName-len(entrySuffix))] + entrySuffix
	}
	for _, a := range entry.Args {
		if mayName(ret.Filter, &a) || mayName(c.Failing, &a) {
			ret.Args = append(ret.Args, a)
		}
	}
	depth := needed(argDepth, event.ExprDepth)
	entry.Args = append(entry.Args, depth)
	ret.Args = append(ret.Args, depth, needed(argFailed, event.ExprFailed))
	c.Entry, c.Return = &entry, &ret
}

// mayName says whether a condition names an argument, or perhaps one of those that it stands for.
func mayName(condition string, a *event.Arg) bool {
	all := a.Expr.Kind == event.ExprAllArgs || a.Expr.Kind == event.ExprAllVars
	return condition != "" && (all || slices.Contains(identifier.FindAllString(condition, -1), a.Name))
}

var identifier = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// split makes the definitions of a call's entry, with the arguments, and of its return, with the results, and with what is told of a
// response, which the call has made by then.
func (m *Maker) split(c *Call, given *event.Def) (entry, ret event.Def) {
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
	m.results(&entry, &ret)
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
func (m *Maker) results(entry, ret *event.Def) {
	for !entry.Place.Glob && slices.ContainsFunc(entry.Args, func(a event.Arg) bool { return named(a.Expr) }) {
		_, err := m.core.Compiled(entry)
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
func (m *Maker) defineRuntime() (out []*event.Def) {
	main := m.core.Target().Space().Main()
	if main == nil || !main.Image.IsGo() {
		return nil
	}
	layouts := goabi.Layouts(main.Image.GoVersion())
	if len(layouts) == 0 {
		return nil // it is told why the program can not be probed
	}
	m.runtime = map[*event.Def]role{}
	l := &layouts[0]
	id := l.GoID
	recovers := fmt.Sprintf("id=+%d($arg1):u64 from=+%d($arg1):u64 to=+%d(+%d($arg1)):u64 high=+%d($arg1):u64", id, l.SchedSP, l.PanicSP, l.Panic, l.StackHi)
	of := []runtimeProbe{
		{roleEnded, "p:" + spanGroup + "/ended runtime.goexit1", "which goroutines end in a call, and which call one was created in"},
		{roleCreated, fmt.Sprintf("r:%s/created runtime.newproc1 by=+%d($arg2):u64 new=+%d($retval):u64", spanGroup, id, id), "which call a goroutine was created in"},
		{roleRecovered, "p:" + spanGroup + "/recovered runtime.recovery " + recovers, "at once which calls a panic has left"},
	}
	if m.o.filtered() {
		if of[2].what = "which calls a panic has left"; len(m.hidden) == 0 {
			of = of[2:]
		}
	}
	for _, r := range of {
		d, err := event.Parse(r.text)
		if err == nil {
			err = m.core.Check(d, &engine.AddOptions{})
		}
		if err != nil {
			m.tell(Remark, "it is not seen %s: %v", r.what, Reason(err))
			continue
		}
		m.runtime[d] = r.role
		out = append(out, d)
	}
	if len(out) > 0 && m.runtime[out[0]] == roleCreated { // what is remembered of goroutines would never be forgotten
		delete(m.runtime, out[0])
		out = out[1:]
	}
	return out
}

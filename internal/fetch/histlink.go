package fetch

import (
	"slices"
	"strings"

	"kprobes.dev/kprobes/event"
)

// HistEvent is an event with a histogram, for LinkHists.
type HistEvent struct {
	Group, Name string
	Prog        *Program // nil: generated code can not count the event's hits
	Def         *event.Hist

	// Linked is set by LinkHists: the histogram reads variables of another event's, or others read its own. If Hist is nil then, whoever
	// reads the records has to make it.
	Linked bool
	Hist   *Hist
	Of     *HistEvent // whose variable Hist.Since reads
	Traces []HistTrace
}

// HistTrace is the histogram of a synthetic event that each hit makes which counts. Its numbers are those of the hit.
type HistTrace struct {
	Of   *event.Synthetic
	Hist *Hist
}

// LinkHists compiles histograms that refer to each other: all of them, or none. One sets variables of its entries to the clock or to a
// number. Another, with the same keys, takes what its own clock or number is beyond that: as a value, or as a parameter of synthetic
// events that are counted. The events come in the order of their definitions.
func LinkHists(evs []*HistEvent) {
	l := &histLinker{evs: evs, words: map[wordOf]int{}}
	for _, e := range evs {
		refers := len(e.Def.Vars) > 0 || len(e.Def.Actions) > 0 || strings.Contains(e.Def.Text, "$")
		e.Linked = refers || slices.ContainsFunc(evs, func(o *HistEvent) bool { return o.names(e) })
	}
	for _, e := range evs {
		if e.Linked && !l.compile(e) {
			for _, e := range evs {
				e.Hist, e.Of, e.Traces = nil, nil, nil
			}
			return
		}
	}
}

// names says whether an action, or a variable, names another event.
func (e *HistEvent) names(o *HistEvent) bool {
	matches := func(a event.HistAction) bool { return a.System == o.Group && a.Event == o.Name }
	return slices.ContainsFunc(e.Def.Actions, matches) || strings.Contains(e.Def.Text, o.Group+"."+o.Name+".")
}

// declares finds a variable of an event's histogram; nil: it has none of the name.
func (e *HistEvent) declares(name string) *event.HistVar {
	for i := range e.Def.Vars {
		if v := &e.Def.Vars[i]; v.Name == name {
			return v
		}
	}
	return nil
}

// histLinker compiles histograms that refer to each other.
type histLinker struct {
	evs   []*HistEvent
	words map[wordOf]int // the numbers among Hist.Sets
}

// wordOf is a variable of an event's histogram.
type wordOf struct {
	e    *HistEvent
	name string
}

// compile compiles the histogram of an event. Those that it refers to have been compiled.
func (l *histLinker) compile(e *HistEvent) bool {
	d := e.Def
	if e.Prog == nil || d.Paused || d.Name != "" {
		return false
	}
	e.Hist = &Hist{Size: d.Size}
	number := func(f event.HistField) (HistNumber, bool) {
		if f.Expr != nil {
			return HistNumber{From: HistSince}, l.since(e, f.Expr)
		}
		return e.Prog.histNumber(f)
	}
	if !e.Hist.take(d, number) {
		return false
	}
	for i := range d.Vars {
		if v := &d.Vars[i]; !event.HistSimple(v.Text) && !l.since(e, v.Is.Expr) { // a simple one is set if another event reads it
			return false
		}
	}
	for i := range d.Actions {
		if !l.trace(e, &d.Actions[i]) {
			return false
		}
	}
	return true
}

// take compiles keys and values, none of which may be a string.
func (h *Hist) take(d *event.Hist, number func(event.HistField) (HistNumber, bool)) bool {
	for _, f := range d.Keys {
		k, ok := histKey(f, number)
		if !ok || k.Text {
			return false
		}
		h.Keys = append(h.Keys, k)
	}
	for _, f := range d.Vals {
		n, ok := number(f)
		if !ok || n.Text {
			return false
		}
		h.Vals = append(h.Vals, n)
	}
	return true
}

// since compiles the difference between the clock, or a number, and a variable of another histogram. A hit reads one variable only: so it
// can not meet what two threads are setting in the same entry.
func (l *histLinker) since(e *HistEvent, x *event.HistExpr) bool {
	if x.Op != event.HistSub || x.X.Op != event.HistAtom || x.Y.Op != event.HistAtom {
		return false
	}
	of, v := l.variable(e, x.Y.Text)
	if of == nil || of.Hist == nil || len(of.Def.Keys) != len(e.Def.Keys) {
		return false
	}
	s := HistVar{From: HistNumber{From: HistClock}, Usecs: e.Def.Usecs}
	set, ok := HistNumber{From: HistClock}, of.Def.Usecs == e.Def.Usecs && x.X.Text == v.Text
	if v.Is.Name != event.HistTimestamp {
		var from bool
		set, ok = of.Prog.histNumber(v.Is)
		s.From, from = e.Prog.histNumber(event.HistField{Name: x.X.Text})
		s.Usecs, ok = false, ok && from && v.Is.Expr == nil && v.Is.Mod != event.HistExecname && of.Prog.sure(set, 4) && e.Prog.sure(s.From, 8)
	}
	if !ok {
		return false
	}
	s.Word = l.word(wordOf{of, v.Name}, set)
	if e.Hist.Since != nil && (e.Of != of || *e.Hist.Since != s) {
		return false
	}
	e.Of, e.Hist.Since = of, &s
	return true
}

// sure says whether a number is known at each hit, and has so many bytes at most.
func (p *Program) sure(n HistNumber, size int) bool {
	return !n.Text && (n.From != HistArg || n.Size <= size && !p.Args[n.Arg].Result)
}

// word gives a variable its number, and has hits set it.
func (l *histLinker) word(v wordOf, to HistNumber) int {
	n, ok := l.words[v]
	if !ok {
		n = len(v.e.Hist.Sets)
		l.words[v], v.e.Hist.Sets = n, append(v.e.Hist.Sets, to)
	}
	return n
}

// variable finds the variable of another event that a text names; nil: it is none, or there are several.
func (l *histLinker) variable(e *HistEvent, text string) (of *HistEvent, v *event.HistVar) {
	group, name, rest := event.HistParts(text)
	variable, ok := strings.CutPrefix(rest, "$")
	if !ok || e.declares(variable) != nil {
		return nil, nil
	}
	for _, o := range l.evs {
		is := o.declares(variable)
		if is == nil || group != "" && (o.Group != group || o.Name != name) {
			continue
		}
		if of != nil {
			return nil, nil
		}
		of, v = o, is
	}
	return of, v
}

// trace compiles an action that makes a synthetic event of the difference, and of fields.
func (l *histLinker) trace(e *HistEvent, a *event.HistAction) bool {
	s := a.Traced
	if a.Handler != event.HistOnMatch || a.Save || e.Of == nil || a.System != e.Of.Group || a.Event != e.Of.Name || s == nil || s.Hist == nil {
		return false
	}
	if len(a.Params) != len(s.Fields) || !s.Hist.Plain() || s.Hist.Filter != "" || s.Hist.Name != "" {
		return false
	}
	h, ok := &Hist{Size: s.Hist.Size}, true
	is := make([]HistNumber, len(s.Fields))
	for i := range s.Fields {
		is[i], ok = e.param(a.Params[i], &s.Fields[i])
		if !ok {
			return false
		}
	}
	number := func(f event.HistField) (HistNumber, bool) {
		if n, ok := (&Program{}).histNumber(f); ok { // what all events have
			return n, true
		}
		i := slices.IndexFunc(s.Fields, func(o event.SyntheticField) bool { return o.Name == f.Name })
		if i < 0 {
			return HistNumber{}, false
		}
		return is[i], true
	}
	e.Traces = append(e.Traces, HistTrace{s, h})
	return h.take(s.Hist, number)
}

// param compiles a parameter of a synthetic event: the number has the field's size and sign.
func (e *HistEvent) param(text string, f *event.SyntheticField) (HistNumber, bool) {
	if v, ok := strings.CutPrefix(text, "$"); ok {
		is := e.declares(v)
		return HistNumber{From: HistSince}, is != nil && !event.HistSimple(is.Text) && f.Size == 8 && !f.Signed && !f.Text
	}
	n, ok := e.Prog.histNumber(event.HistField{Name: text})
	size := 4
	if n.From == HistArg {
		size, n.Signed = n.Size, f.Signed
	}
	return n, ok && !n.Text && !f.Text && f.Size == size && e.declares(text) == nil && e.Prog.sure(n, 8)
}

package hit

import (
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// Histograms is a set of histograms: they may refer to each other's variables, and trace synthetic events, which may have histograms
// of their own. It is not safe for use by several goroutines.
type Histograms struct {
	// Traced gets each synthetic event that has no histogram, at the hit that it is made of; nil: nobody does. The values are valid
	// while it runs.
	Traced func(*event.Synthetic, *Hit, []fetch.Value)

	made     func(*Histogram) error   // is told of one that was made for the actions of another; nil: nobody is
	undo     func(*Histogram)         // and that the other one was refused then
	snapshot func()                   // what snapshot() does; nil: it is refused
	events   map[[2]string]*histEvent // by group and name
	order    []*histEvent
	named    map[string]*Histogram
}

// histEvent is an event that may have histograms.
type histEvent struct {
	group, name string
	fields      []eventField
	hists       []*Histogram
	synth       *event.Synthetic // nil: a probe
	prog        fetch.Program    // of a synthetic event, for its values
	busy        bool             // it is being traced
}

// tracer traces a synthetic event, with values of variables, at a hit.
type tracer func(*histEvent, []*histRef, *occurrence)

// NewHistograms makes an empty set.
func NewHistograms() *Histograms {
	return &Histograms{events: map[[2]string]*histEvent{}, named: map[string]*Histogram{}}
}

// Event tells of an event with a program of arguments. All events that histograms name are to be told of before them. An event of several
// probes is told of with each. false: its fields are not those that it had with the first.
func (s *Histograms) Event(group, name string, prog *fetch.Program) bool {
	fields := fieldsOf(prog)
	if e := s.event(group, name); e != nil {
		return slices.Equal(e.fields, fields)
	}
	s.add(&histEvent{group: group, name: name, fields: fields})
	return true
}

// Synthetic tells of a synthetic event.
func (s *Histograms) Synthetic(def *event.Synthetic) {
	e := &histEvent{group: event.SyntheticGroup, name: def.Name, synth: def}
	for i := range def.Fields {
		f := &def.Fields[i]
		a := fetch.Arg{Name: f.Name, Size: f.Size, Type: fetch.Type{Kind: event.Unsigned, Size: f.Size}, Store: fetch.StoreValue}
		switch {
		case f.Text:
			a.Type, a.Store = fetch.Type{Kind: event.String}, fetch.StoreString
		case f.Stack:
			a.Store = fetch.StoreArray
		case f.Signed:
			a.Type.Kind = event.Signed
		}
		e.prog.Args = append(e.prog.Args, a)
		e.fields = append(e.fields, eventField{name: f.Name, typ: f.Type, size: f.Size, signed: f.Signed, text: f.Text, stack: f.Stack})
	}
	s.add(e)
}

func (s *Histograms) add(e *histEvent) {
	s.events[[2]string{e.group, e.name}] = e
	s.order = append(s.order, e)
}

// event finds an event; nil: it is not there.
func (s *Histograms) event(group, name string) *histEvent { return s.events[[2]string{group, name}] }

// variable finds a variable of an event's histograms; nil: it is not there, or the event is not.
func (e *histEvent) variable(name string) *histVar {
	if e == nil {
		return nil
	}
	for _, h := range e.hists {
		if v := h.declared(name); v != nil {
			return v
		}
	}
	return nil
}

// Add makes the histogram of an event, which may refer to those that were added before. The filter of a probe's is left to whoever
// calls Hit. Its error is an *event.HistError, or an *event.FilterError.
func (s *Histograms) Add(group, name string, def *event.Hist) (*Histogram, error) {
	m, err := s.make(group, name, def)
	if err != nil {
		return nil, err
	}
	if err := m.join(); err != nil {
		return nil, err
	}
	h := m.h
	if h.ev.synth != nil && def.Filter != "" {
		if h.filter, err = h.ev.prog.Filter(def.Filter, fetch.FilterEnv{Comm: true, Synthetic: true}); err != nil {
			return nil, err
		}
	}
	for i := range m.def.Actions {
		if err := m.action(&m.def.Actions[i]); err != nil {
			return nil, err
		}
	}
	h.ev.hists = append(h.ev.hists, h)
	return h, nil
}

// make makes a histogram with its fields, and neither actions nor entries that it shares with others.
func (s *Histograms) make(group, name string, def *event.Hist) (*histMaker, error) {
	own := *def
	own.Keys, own.Vals, own.Vars = slices.Clone(def.Keys), slices.Clone(def.Vals), slices.Clone(def.Vars)
	h := &Histogram{def: &own, paused: def.Paused, ev: s.event(group, name), histTable: &histTable{entries: map[string]*histEntry{}}}
	m := &histMaker{set: s, h: h, def: &own}
	if h.ev == nil {
		return nil, own.Refuse(event.HistEventFileNotFound, "", "there is no event "+group+"/"+name)
	}
	for i := range own.Actions {
		if a := &own.Actions[i]; a.Handler == event.HistOnMatch && s.event(a.System, a.Event) == nil {
			return nil, own.Refuse(event.HistInvalidSubsysEvent, a.Event, "")
		}
	}
	return m, m.fields()
}

// join has the histogram share its entries with those of its name.
func (m *histMaker) join() error {
	if m.def.Name == "" {
		return nil
	}
	first := m.set.named[m.def.Name]
	switch {
	case first == nil:
		m.set.named[m.def.Name] = m.h
		return nil
	case len(m.def.Actions) > 0 || len(m.def.Vars) > 0:
		return m.def.Refuse(event.HistUnsupported, m.def.Name, "a histogram that events share has neither variables nor actions here")
	}
	a, b := *m.def, *first.def
	a.Filter, b.Filter = "", ""
	same := a.String() == b.String() && m.h.sameKeys(first)
	for i := range m.h.vals {
		same = same && m.h.vals[i].typ == first.vals[i].typ
	}
	if !same {
		return m.def.Refuse(event.HistNamedMismatch, "name="+m.def.Name, "")
	}
	m.h.histTable = first.histTable
	return nil
}

// Shares says whether both histograms are the same one, by their name.
func (h *Histogram) Shares(o *Histogram) bool { return h.histTable == o.histTable }

// Hit counts a hit of an event in its histograms. Hits are to come in the order of their times. comm is the thread's name.
func (s *Histograms) Hit(h *Hit, vs []fetch.Value, comm string) {
	e := s.event(h.Event.Group, h.Event.Name)
	if e == nil {
		return
	}
	for _, hist := range e.hists {
		hist.count(&occurrence{hit: h, values: vs, comm: comm}, s.trace)
	}
}

// trace makes a synthetic event of variables. While it does so it is not made anew.
func (s *Histograms) trace(e *histEvent, args []*histRef, o *occurrence) {
	if e.busy {
		return
	}
	e.busy = true
	defer func() { e.busy = false }()
	vs := e.traced(args, o)
	for _, hist := range e.hists {
		hist.count(&occurrence{hit: o.hit, values: vs, comm: o.comm}, s.trace)
	}
	if len(e.hists) == 0 && s.Traced != nil {
		s.Traced(e.synth, o.hit, vs)
	}
}

// traced gives the values of a synthetic event that is made of variables.
func (e *histEvent) traced(args []*histRef, o *occurrence) []fetch.Value {
	vs := make([]fetch.Value, len(args))
	for i, r := range args {
		a := &e.prog.Args[i]
		is := &o.refs[r.idx]
		vs[i] = fetch.Value{Arg: a, Num: is.num, Str: []byte(is.text), Stack: is.stack}
		if a.Store == fetch.StoreValue {
			vs[i].Num &= 1<<(8*a.Size-1)<<1 - 1
		}
		if n := e.synth.Fields[i].Size; len(vs[i].Str) >= n {
			vs[i].Str = vs[i].Str[:n-1]
		}
	}
	return vs
}

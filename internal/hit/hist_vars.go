package hit

import (
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// histValue is the value of a variable.
type histValue struct {
	num   uint64
	text  string
	stack []fetch.StackFrame
}

// histSlot is where an entry has a variable.
type histSlot struct {
	set bool
	histValue
}

// histVar is a variable of a histogram.
type histVar struct {
	name string
	of   *Histogram
	idx  int       // in an entry
	is   histField // what it is set to; of one that an action keeps, its type
}

// histRef is a variable that a histogram refers to, of its own or another's.
type histRef struct {
	*histVar
	idx  int  // among the histogram's
	once bool // it is read once: it is an operand
}

// histVars are the variables of a histogram, those that it refers to, and its actions.
type histVars struct {
	vars    []*histVar // of an entry: first those of the definition
	refs    []*histRef
	actions []*histAction
	fields  []*histVar // what actions trace of the event itself: set at each hit
	saved   []*histVar // what save() keeps
}

// declared finds a variable that the definition has.
func (h *Histogram) declared(name string) *histVar {
	for _, v := range h.vars[:min(len(h.def.Vars), len(h.vars))] {
		if v.name == name {
			return v
		}
	}
	return nil
}

// addVar gives entries another variable; nil: there are too many.
func (h *Histogram) addVar(name string, is histField) *histVar {
	if len(h.vars) == event.MaxHistVars {
		return nil
	}
	v := &histVar{name: name, of: h, idx: len(h.vars), is: is}
	h.vars = append(h.vars, v)
	return v
}

// refer has the histogram refer to a variable.
func (h *Histogram) refer(v *histVar) *histRef {
	for _, r := range h.refs {
		if r.histVar == v {
			return r
		}
	}
	r := &histRef{histVar: v, idx: len(h.refs)}
	h.refs = append(h.refs, r)
	h.values = append(h.values, histValue{})
	return r
}

// resolve reads the variables that the histogram refers to: its own, or those of others, in the entries that have the key which was
// taken. It says whether all are set. An operand's variable is not set any more when it has been read.
func (h *Histogram) resolve(o *occurrence, own bool) bool {
	for i, r := range h.refs {
		if (r.of == h) != own {
			continue
		}
		e := r.of.entries[string(h.key)]
		if e == nil || !e.vars[r.histVar.idx].set {
			return false
		}
		slot := &e.vars[r.histVar.idx]
		o.refs[i] = slot.histValue
		slot.set = own || !r.once
	}
	return true
}

// update sets the variables of an entry. A value that is not known is not set.
func (h *Histogram) update(e *histEntry, o *occurrence) {
	for _, v := range h.vars[:len(h.def.Vars)] {
		e.set(v, o)
	}
	for _, v := range h.fields {
		e.set(v, o)
	}
}

func (e *histEntry) set(v *histVar, o *occurrence) {
	o.unknown = false
	value := v.is.value(o)
	e.vars[v.idx] = histSlot{set: !o.unknown, histValue: value}
}

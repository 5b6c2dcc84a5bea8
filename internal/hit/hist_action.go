package hit

import (
	"fmt"
	"strings"

	"kprobes.dev/kprobes/event"
)

// histAction is an action of a histogram.
type histAction struct {
	def   *event.HistAction
	of    *histRef // onmax, onchange: the variable
	track *histVar // and where an entry has what it was
	synth *histEvent
	args  []*histRef // what is traced
	// Of snapshot(): whether one was taken, at which value of the variable and which keys.
	taken bool
	value uint64
	keys  []histKey
	take  func()
}

// action makes an action.
func (m *histMaker) action(def *event.HistAction) error {
	a := &histAction{def: def}
	if def.Handler != event.HistOnMatch {
		if err := m.tracked(a); err != nil {
			return err
		}
	}
	create := m.traces
	switch {
	case def.Save:
		create = m.saves
	case def.Snapshot:
		create = m.snapshots
	}
	if err := create(a); err != nil {
		return err
	}
	m.h.actions = append(m.h.actions, a)
	return nil
}

// tracked finds the variable of onmax and onchange.
func (m *histMaker) tracked(a *histAction) error {
	name, ok := strings.CutPrefix(a.def.Var, "$")
	if !ok {
		return m.def.Refuse(event.HistOnxNotVar, a.def.Var, "")
	}
	v := m.h.declared(name)
	if v == nil {
		return m.def.Refuse(event.HistOnxVarNotFound, name, "")
	}
	if v.is.stack {
		return m.def.Refuse(event.HistUnsupported, name, "a stack is no number")
	}
	a.of = m.h.refer(v)
	if a.track = m.h.addVar("", number(0)); a.track == nil {
		return m.def.Refuse(event.HistOnxVarCreateFail, "", tooManyVars)
	}
	return nil
}

var tooManyVars = fmt.Sprintf("there are %d variables at most, with those that actions need", event.MaxHistVars)

// snapshots checks that snapshots can be taken.
func (m *histMaker) snapshots(a *histAction) error {
	if m.set.snapshot == nil {
		return m.def.Refuse(event.HistUnsupported, a.def.Name, "there is no second buffer that a snapshot could be taken to")
	}
	a.take = m.set.snapshot
	return nil
}

// saves makes the variables of save().
func (m *histMaker) saves(a *histAction) error {
	if len(m.h.saved) > 0 {
		return m.def.Refuse(event.HistTooManySaveActions, "", "")
	}
	for _, p := range a.def.Params {
		v, err := m.fieldVar(p)
		switch {
		case err != nil:
			return err
		case v.is.stack:
			return m.def.Refuse(event.HistUnsupported, p, "save() keeps no stack: trace it to a synthetic event")
		}
		m.h.saved = append(m.h.saved, v)
	}
	return nil
}

// fieldVar makes a variable of a field of the event, for an action.
func (m *histMaker) fieldVar(name string) (*histVar, error) {
	f, err := m.atom(name)
	if err != nil {
		return nil, err
	}
	if m.h.declared(name) != nil || m.h.ev.variable(name) != nil {
		return nil, m.def.Refuse(event.HistVarCreateFindFail, name, "a variable has the name already")
	}
	f.text = f.text || f.Mod == event.HistExecname
	v := m.h.addVar(name, f)
	if v == nil {
		return nil, m.def.Refuse(event.HistVarCreateFindFail, name, tooManyVars)
	}
	v.is.signed = false // as in the kernel, which compares types by their names first
	return v, nil
}

// traces finds the synthetic event, and the variables that it is made of.
func (m *histMaker) traces(a *histAction) error {
	a.synth = m.set.event(event.SyntheticGroup, a.def.Synth)
	if a.synth == nil || a.synth.synth == nil {
		return m.def.Refuse(event.HistSynthEventNotFound, a.def.Synth, "define it: 's:"+a.def.Synth+" TYPE FIELD; …'")
	}
	fields := a.synth.synth.Fields
	for i, p := range a.def.Params {
		system, name, rest := "", "", p
		if strings.Contains(p, ".") {
			if system, name, rest = event.HistParts(p); system == "" {
				return m.def.Refuse(event.HistErrno, p, "a parameter is FIELD, $VAR or GROUP.EVENT.$VAR")
			}
		}
		v, err := m.param(a, system, name, rest)
		if err != nil {
			return err
		}
		if i >= len(fields) || !fits(&fields[i], &v.is) {
			return m.def.Refuse(event.HistSynthTypeMismatch, rest, mismatch(fields, i, &v.is))
		}
		a.args = append(a.args, m.h.refer(v))
	}
	if len(a.args) != len(fields) {
		return m.def.Refuse(event.HistSynthCountMismatch, a.def.Synth, fmt.Sprintf("it has %d fields", len(fields)))
	}
	return nil
}

// param finds a parameter: a variable, or a field for which one is made.
func (m *histMaker) param(a *histAction, system, name, text string) (*histVar, error) {
	onMatch := a.def.Handler == event.HistOnMatch
	own := system == "" || system == m.h.ev.group && name == m.h.ev.name
	variable, isVar := strings.CutPrefix(text, "$")
	if isVar && own {
		if v := m.h.declared(variable); v != nil {
			return v, nil
		}
	}
	var bad error
	if !isVar && own {
		v, err := m.fieldVar(text)
		if err == nil {
			m.h.fields = append(m.h.fields, v)
			return v, nil
		}
		bad = err
	}
	if system == "" && onMatch {
		system, name = a.def.System, a.def.Event
	}
	if !isVar {
		if name == "" {
			return nil, bad
		}
		v, err := m.otherField(system, name, text)
		if bad != nil && err != nil {
			err = bad
		}
		return v, err
	}
	v, err := m.find(system, name, variable)
	if err == nil && v == nil {
		err = m.def.Refuse(event.HistParamNotFound, variable, "")
	}
	return v, err
}

// otherField makes a variable of a field of another event, in a histogram of that event which has the same keys as one that is there.
func (m *histMaker) otherField(system, name, field string) (*histVar, error) {
	e := m.set.event(system, name)
	if e == nil {
		return nil, m.def.Refuse(event.HistEventFileNotFound, field, "")
	}
	var like *Histogram
	for _, h := range e.hists {
		if m.h.sameKeys(h) {
			like = h
			break
		}
	}
	if like == nil {
		return nil, m.def.Refuse(event.HistHistNotFound, field, system+"."+name+" needs a histogram with the same keys")
	}
	const prefix = "synthetic_"
	if v := e.variable(prefix + field); v != nil {
		return v, nil
	}
	var keys []string
	for i := range like.keys {
		keys = append(keys, like.keys[i].Name)
	}
	def, err := event.ParseHist("keys=" + strings.Join(keys, ",") + ":" + prefix + field + "=" + field)
	var made *Histogram
	if err == nil {
		def.Filter = like.def.Filter
		made, err = m.set.Add(system, name, def)
	}
	if err == nil && m.set.made != nil {
		if err = m.set.made(made); err != nil {
			m.set.remove(made)
		} else {
			m.h.made = append(m.h.made, made)
		}
	}
	if err != nil {
		return nil, m.def.Refuse(event.HistHistCreateFail, field, err.Error())
	}
	return e.variable(prefix + field), nil
}

// sameKeys says whether the keys of two histograms are of the same types.
func (h *Histogram) sameKeys(o *Histogram) bool {
	if len(h.keys) != len(o.keys) {
		return false
	}
	for i := range h.keys {
		if h.keys[i].typ != o.keys[i].typ || h.keys[i].signed != o.keys[i].signed {
			return false
		}
	}
	return true
}

// fits says whether a synthetic event's field takes a value: of the same type, a number of the same size and sign, or any stack.
func fits(f *event.SyntheticField, is *histField) bool {
	switch {
	case f.Stack || is.stack:
		return f.Stack == is.stack
	case is.text && f.Text && f.Dynamic(), f.Type == is.typ:
		return true
	}
	return f.Size == is.size && f.Text == is.text && (f.Text || f.Signed == is.signed)
}

func mismatch(fields []event.SyntheticField, i int, is *histField) string {
	if i >= len(fields) {
		return fmt.Sprintf("the event has %d fields", len(fields))
	}
	return fmt.Sprintf("it is %s, the field %s %s", is.typ, fields[i].Type, fields[i].Name)
}

// act does the actions of a hit.
func (h *Histogram) act(e *histEntry, o *occurrence, traced tracer) {
	for _, a := range h.actions {
		if a.of != nil {
			v, last := o.refs[a.of.idx].num, e.vars[a.track.idx].num
			if a.def.Handler == event.HistOnMax && v <= last || a.def.Handler == event.HistOnChange && v == last {
				continue
			}
			e.vars[a.track.idx].num = v
			if a.def.Snapshot {
				a.snapshot(e, v)
			}
		}
		switch {
		case a.def.Save:
			for _, s := range h.saved {
				e.set(s, o)
			}
		case a.synth != nil:
			traced(a.synth, a.args, o)
		}
	}
}

// snapshot takes one, if the value beats that of the last one, in whatever entry (cond_snapshot_update in
// kernel/trace/trace_events_hist.c, Linux 6.18).
func (a *histAction) snapshot(e *histEntry, v uint64) {
	if a.def.Handler == event.HistOnMax && v <= a.value || v == a.value {
		return
	}
	a.taken, a.value, a.keys = true, v, e.keys
	a.take()
}

// appendTracked appends what onmax and onchange have kept in an entry.
func (h *Histogram) appendTracked(dst []byte, e *histEntry) []byte {
	for _, a := range h.actions {
		switch a.def.Handler {
		case event.HistOnMatch:
			continue
		case event.HistOnMax:
			dst = append(dst, "\n\tmax:"...)
		case event.HistOnChange:
			dst = append(dst, "\n\tchanged:"...)
		}
		dst = fmt.Appendf(dst, " %10d", e.vars[a.track.idx].num)
		if a.def.Snapshot { // as in the kernel, which says more below (track_data_print in kernel/trace/trace_events_hist.c, Linux 6.18)
			continue
		}
		for _, s := range h.saved {
			if s.is.text {
				dst = fmt.Appendf(dst, "  %s: %-32s", s.name, clean(e.vars[s.idx].text))
			} else {
				dst = fmt.Appendf(dst, "  %s: %10d", s.name, e.vars[s.idx].num)
			}
		}
	}
	return dst
}

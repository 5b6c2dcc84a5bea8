package hit

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/event"
)

// histMaker makes a histogram of a definition. Its steps, and so the first error, are those of the kernel.
type histMaker struct {
	set *Histograms
	h   *Histogram
	def *event.Hist
}

// fields finds values, variables and keys, in this order.
func (m *histMaker) fields() error {
	for i := range m.def.Vals {
		written := m.def.Vals[i]
		v, err := m.expr(&m.def.Vals[i])
		if err != nil {
			return err
		}
		switch {
		case v.stack:
			return m.def.Refuse(event.HistBadFieldModifier, m.stackAs(&written), "a value is a number")
		case v.text:
			return m.def.Refuse(event.HistErrno, v.Name, "a value is a number")
		}
		m.h.vals = append(m.h.vals, v)
	}
	for i := range m.def.Vars {
		if err := m.variable(&m.def.Vars[i]); err != nil {
			return err
		}
	}
	for i := range m.def.Keys {
		written := m.def.Keys[i]
		k, err := m.expr(&m.def.Keys[i])
		const instead = "a key takes no variable: trace it to a synthetic event, and give that a histogram"
		if bad := (*event.HistError)(nil); errors.As(err, &bad) && bad.Code == event.HistVarNotFound {
			bad.Why = instead
		}
		switch {
		case err != nil:
			return err
		case k.refers():
			return m.def.Refuse(event.HistInvalidRefKey, written.String(), instead)
		case k.text && k.Mod != event.HistPlain && (k.Mod != event.HistHex || m.set.made == nil):
			return m.def.Refuse(event.HistBadFieldModifier, k.Mod.String(), "a string is shown as it is")
		}
		m.h.keys = append(m.h.keys, k)
	}
	return m.def.CheckSort()
}

// variable makes a variable of the definition.
func (m *histMaker) variable(v *event.HistVar) error {
	if m.h.declared(v.Name) != nil || m.h.ev.variable(v.Name) != nil && !m.def.Remove {
		return m.def.Refuse(event.HistDuplicateVar, v.Name, "")
	}
	f, err := m.expr(&v.Is)
	if err != nil {
		return err
	}
	if v.Is.Mod == event.HistStacktrace {
		v.Is.Mod = event.HistPlain
	}
	if f.Mod == event.HistExecname {
		f.text, f.typ, f.size, f.signed = true, "char[]", event.MaxHistText, false
	}
	if m.h.addVar(v.Name, f) == nil {
		return m.def.Refuse(event.HistTooManyVars, v.Name, "")
	}
	return nil
}

// expr finds a field, or what an expression is made of. The definition's field gets the name that is shown.
func (m *histMaker) expr(f *event.HistField) (histField, error) {
	if f.Expr == nil {
		out, err := fieldOf(m.def, m.h.ev, *f)
		if err == nil && out.stack {
			f.Mod = out.Mod
		}
		return out, err
	}
	out, err := m.tree(f.Expr)
	if err == nil {
		*f = out.HistField
	}
	return out, err
}

func (m *histMaker) tree(x *event.HistExpr) (histField, error) {
	if x.Op == event.HistAtom {
		return m.atom(x.Text)
	}
	a, err := m.operand(x.X)
	if err != nil {
		return a, err
	}
	out := histField{from: fromOp, op: x.Op, x: &a, typ: a.typ, size: a.size, signed: a.signed, usecs: a.usecs}
	out.Expr = x
	if x.Op == event.HistNeg {
		out.Name = "-(" + a.shown() + ")"
		return out, nil
	}
	b, err := m.operand(x.Y)
	if err != nil {
		return b, err
	}
	out.y = &b
	va, vb := a.variable(), b.variable()
	if va.usecs != vb.usecs {
		return out, m.def.Refuse(event.HistTimestampMismatch, "", "common_timestamp is in nanoseconds, common_timestamp.usecs in microseconds")
	}
	a.once()
	b.once()
	if x.Op == event.HistDiv && vb.from == fromConst && vb.num == 0 {
		return out, m.def.Refuse(event.HistDivisionByZero, x.Y.Text, "")
	}
	if va.from == fromConst && vb.from == fromConst {
		folded := histField{from: fromOp, op: x.Op, x: va, y: vb}
		return number(folded.number(&occurrence{})), nil
	}
	out.Name = a.shown() + string(x.Op.Sign()) + b.shown()
	return out, nil
}

// operand is a part of an expression.
func (m *histMaker) operand(x *event.HistExpr) (histField, error) {
	f, err := m.tree(x)
	switch {
	case err != nil:
		return f, err
	case f.text:
		return f, m.def.Refuse(event.HistInvalidStrOperand, x.Text, "")
	case f.stack:
		return f, m.def.Refuse(event.HistErrno, x.Text, "a stack is no number")
	}
	return f, nil
}

// stackAs is how the definition has written a field that is a stack.
func (m *histMaker) stackAs(f *event.HistField) string {
	text := f.String()
	if f.Mod == event.HistStack && !strings.Contains(m.def.Text, text) {
		return "stacktrace"
	}
	return text
}

// number is a field that is a constant.
func number(n uint64) histField {
	text := strconv.FormatUint(n, 10)
	f := histField{from: fromConst, num: n, typ: "u64", size: 8}
	f.Name, f.Expr = text, &event.HistExpr{Text: text}
	return f
}

// variable is what a variable is set to, of a field that refers to one; else the field.
func (f *histField) variable() *histField {
	if f.from == fromRef {
		return &f.ref.is
	}
	return f
}

// once has a variable read once.
func (f *histField) once() {
	if f.from == fromRef {
		f.ref.once = true
	}
}

// refers says whether a field refers to a variable.
func (f *histField) refers() bool {
	return f != nil && (f.from == fromRef || f.x.refers() || f.y.refers())
}

// shown is how an expression shows its operand.
func (f *histField) shown() string {
	switch {
	case f.from == fromRef || f.from == fromConst:
		return f.String()
	case f.usecs:
		return f.Name + ".usecs"
	case f.Mod.String() != "":
		return f.Name + "." + f.Mod.String()
	}
	return f.Name
}

// atom finds a number, a field, or a variable. A variable of the own definition that is a field alone stands for the field.
func (m *histMaker) atom(text string) (histField, error) {
	if n, ok := event.HistConst(text); ok {
		return number(n), nil
	}
	system, name, rest := event.HistParts(text)
	variable, isVar := strings.CutPrefix(rest, "$")
	if !isVar || variable == "" {
		return m.field(rest)
	}
	if system == m.h.ev.group && name == m.h.ev.name || system == "" {
		if own, ok := m.simple(variable); ok {
			return m.field(own)
		}
	}
	v, err := m.find(system, name, variable)
	if err == nil && v == nil {
		why := ""
		if slices.ContainsFunc(m.def.Vars, func(v event.HistVar) bool { return v.Name == variable }) {
			why = "it is the event's own: name what it is set to, for a variable is read at another event, or by an action"
		}
		err = m.def.Refuse(event.HistVarNotFound, variable, why)
	}
	if err != nil {
		return histField{}, err
	}
	return m.reference(v, system, name), nil
}

func (m *histMaker) field(text string) (histField, error) {
	f, err := m.def.Field(text, false)
	if err != nil {
		return histField{}, err
	}
	return fieldOf(m.def, m.h.ev, f)
}

// reference is a field that refers to a variable.
func (m *histMaker) reference(v *histVar, system, name string) histField {
	f := histField{from: fromRef, ref: m.h.refer(v), typ: v.is.typ, size: v.is.size, signed: v.is.signed, text: v.is.text, stack: v.is.stack, usecs: v.is.usecs}
	f.Name, f.Expr = v.name, &event.HistExpr{Text: "$" + v.name}
	if system != "" {
		f.Expr.Text = system + "." + name + ".$" + v.name
		f.Name = f.Expr.Text
	}
	return f
}

// simple gives the text of what a variable of the definition is set to, if that is a field alone.
func (m *histMaker) simple(name string) (text string, ok bool) {
	for _, v := range m.def.Vars {
		if v.Name == name && event.HistSimple(v.Text) {
			return v.Text, true
		}
	}
	return "", false
}

// find finds a variable of another histogram: of the event that is named, of those that actions match, or of the only event that has
// one of this name. It is nil if there is none.
func (m *histMaker) find(system, name, variable string) (*histVar, error) {
	notUnique := func() error { return m.def.Refuse(event.HistVarNotUnique, variable, "write GROUP.EVENT.$"+variable) }
	if system != "" {
		return m.set.event(system, name).variable(variable), nil
	}
	var found *histVar
	for i := range m.def.Actions {
		a := &m.def.Actions[i]
		if a.Handler != event.HistOnMatch {
			continue
		}
		if v := m.set.event(a.System, a.Event).variable(variable); v != nil {
			if found != nil && found != v { // the kernel refuses one that two actions lead to
				return nil, notUnique()
			}
			found = v
		}
	}
	if found != nil {
		return found, nil
	}
	for _, e := range m.set.order {
		if v := e.variable(variable); v != nil {
			if found != nil {
				return nil, notUnique()
			}
			found = v
		}
	}
	return found, nil
}

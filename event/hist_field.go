package event

import (
	"fmt"
	"strings"
)

// Field takes a field with its modifier. Its errors are *HistError.
func (h *Hist) Field(text string, value bool) (HistField, error) {
	name, mod, has := strings.Cut(text, ".")
	f := HistField{Name: name}
	switch {
	case name == "":
		return f, h.Refuse(HistFieldNotFound, "", "")
	case IsHistStack(name):
		f.Name, f.Mod = commonStack, HistStack
	case name == HistTimestamp:
		h.Timestamps = true
	}
	if !has {
		return f, nil
	}
	bad := func(why string) (HistField, error) { return f, h.Refuse(HistBadFieldModifier, mod, why) }
	if f.Mod == HistStack {
		return f, h.Refuse(HistBadFieldModifier, text, "a stack is shown as it is")
	}
	for m, word := range histMods {
		if word == mod {
			f.Mod = HistMod(m)
		}
	}
	switch f.Mod {
	case HistExecname:
		if name != "common_pid" {
			return bad("common_pid.execname is the thread's name; others have none")
		}
	case HistPercent, HistGraph:
		if !value {
			return bad("a value is shown so")
		}
	case HistUsecs:
		h.Usecs = h.Usecs || name == HistTimestamp
	case HistPlain, HistBuckets:
		size, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimPrefix(mod, "bucket"), "s"), "=")
		if !strings.HasPrefix(mod, "bucket") {
			return bad("hex, sym, sym-offset, execname, log2, buckets=N, usecs, percent or graph")
		}
		n, number := parseUint(size)
		if !ok || !number || n == 0 {
			return f, h.Refuse(HistBadFieldModifier, size, "buckets=N, the size of one")
		}
		f.Mod, f.Buckets = HistBuckets, n
	}
	return f, nil
}

// String is the field with its modifier.
func (f *HistField) String() string {
	switch {
	case f.Mod == HistBuckets:
		return fmt.Sprintf("%s.buckets=%d", f.Name, f.Buckets)
	case f.Expr != nil && f.Expr.unqualified():
		return "$" + f.Name
	case f.Mod.String() != "":
		return f.Name + "." + f.Mod.String()
	}
	return f.Name
}

// String is the histogram as the kernel prints it for its trigger.
func (h *Hist) String() string {
	var b strings.Builder
	b.WriteString("hist:")
	if h.Name != "" {
		b.WriteString("name=" + h.Name + ":")
	}
	b.WriteString("keys=" + fieldList(h.Keys))
	b.WriteString(":vals=")
	if !h.NoHitcount {
		b.WriteString(HistHitcount)
		if len(h.Vals) > 0 {
			b.WriteByte(',')
		}
	}
	b.WriteString(fieldList(h.Vals))
	for i := range h.Vars {
		b.WriteByte(":,"[min(i, 1)])
		b.WriteString(h.Vars[i].Name + "=" + h.Vars[i].Is.String())
	}
	b.WriteString(":sort=" + h.sorts())
	fmt.Fprintf(&b, ":size=%d", h.Size)
	if h.Timestamps {
		b.WriteString(":clock=" + onlyClock)
	}
	if h.NoHitcount {
		b.WriteString(":nohitcount")
	}
	for i := range h.Actions {
		b.WriteString(":" + h.Actions[i].String())
	}
	if h.Filter != "" {
		b.WriteString(" if " + h.Filter)
	}
	return b.String()
}

func fieldList(fs []HistField) string {
	var all []string
	for i := range fs {
		all = append(all, fs[i].String())
	}
	return strings.Join(all, ",")
}

// sorts is what entries are sorted by, with the modifiers of the keys and values.
func (h *Hist) sorts() string {
	var all []string
	for _, s := range h.Sort {
		text := s.Name
		if n := s.Column(h); n >= len(h.Keys) {
			text = h.Vals[n-len(h.Keys)].String()
		} else if n >= 0 && h.Keys[n].Mod != HistStacktrace {
			text = h.Keys[n].String()
		}
		if s.Descending {
			text += ".descending"
		}
		all = append(all, text)
	}
	return strings.Join(all, ",")
}

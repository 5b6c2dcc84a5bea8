package event

import (
	"fmt"
	"strings"
)

// String is the definition in the form of a listing: p|r[MAXACTIVE]:GRP/EVENT PLACE
// NAME=ARG ..., f[MAXACTIVE]:GRP/EVENT FUNC[%return] NAME=ARG ..., or w:GRP/EVENT ACCESS@PLACE[:LEN] NAME=ARG ... An event without a name has the one that a
// Namer would try first.
func (d *Def) String() string {
	if d.Kind == Delete {
		return d.Text
	}
	var b strings.Builder
	letter := "pr-w"[d.Kind]
	if d.Function {
		letter = 'f'
	}
	b.WriteByte(letter)
	if d.MaxActive > 0 {
		fmt.Fprint(&b, d.MaxActive)
	}
	name := d.Name
	if name == "" {
		name = cut(d.BaseName(d.Place), MaxName)
	}
	fmt.Fprintf(&b, ":%s/%s %s", d.Group, name, d.place())
	for i := range d.Args {
		b.WriteByte(' ')
		b.WriteString(d.Args[i].listing())
	}
	return b.String()
}

// place is the place as a listing has it: of f with %return, of a watchpoint with the access and the length.
func (d *Def) place() string {
	switch {
	case d.Uprobe:
		return d.uprobeText()
	case d.Function && d.Kind == Return:
		return d.Place.String() + returnSuffix
	case d.Kind != Watch:
		return d.Place.String()
	}
	s := d.Watched.Access.String() + "@" + d.Place.String()
	if d.Watched.Len > 0 {
		s += fmt.Sprintf(":%d", d.Watched.Len)
	}
	return s
}

// listing is NAME=ARG; $arg* takes no name.
func (a *Arg) listing() string {
	if a.all() {
		return a.Text
	}
	return a.Name + "=" + a.Text
}

// Deletes says whether a deletion means the event: its name and group as far as they are
// given, its place and the first of its arguments if they are.
func (d *Def) Deletes(o *Def) bool {
	switch {
	case d.Kind != Delete || o.Kind == Delete:
		return false
	case d.Name != "" && d.Name != o.Name || d.Group != "" && d.Group != o.Group:
		return false
	case len(d.match) == 0:
		return true
	case len(d.match)-1 > len(o.Args):
		return false
	}
	if !o.standsAt(d.match[0]) {
		return false
	}
	for i, m := range d.match[1:] {
		if m != o.Args[i].listing() {
			return false
		}
	}
	return true
}

// standsAt says whether the definition's place is the one that a word names.
func (d *Def) standsAt(word string) bool {
	_, words := split(word)
	if d.Uprobe {
		return d.uprobeAt(words[0])
	}
	if d.Kind == Watch {
		p, watched, bad := parseWatch(words[0])
		return bad == nil && p.same(d.Place) && watched == d.Watched
	}
	p, bad := parsePlace(words[0])
	return bad == nil && p.same(d.Place)
}

// same compares places, however they were written.
func (p Place) same(q Place) bool {
	p.Pos, p.Return = q.Pos, q.Return
	return p == q
}

// Appends checks that the definition can join an event that exists under its name: the
// same kind, the same names and types of arguments, another place or other expressions, unless Copy tells them apart.
func (d *Def) Appends(o *Def) error {
	if d.Uprobe != o.Uprobe {
		return d.Refuse(EventExist, 0, "one is of kprobe_events, the other of uprobe_events: take another name", nil)
	}
	if d.Kind != o.Kind || d.Function != o.Function {
		return d.Refuse(DiffProbeType, 0, fmt.Sprintf("%s/%s is a %s", o.Group, o.Name, o.Kind), nil)
	}
	for i := range max(len(d.Args), len(o.Args)) {
		if i >= len(d.Args) {
			return d.Refuse(DiffArgType, len(d.Text)+1, "the event has more arguments", nil)
		}
		if i >= len(o.Args) || !d.Args[i].sameType(&o.Args[i]) {
			return d.Refuse(DiffArgType, d.Args[i].Pos, "", nil)
		}
	}
	if d.Copy != o.Copy || !d.Place.same(o.Place) || d.Watched != o.Watched {
		return nil
	}
	for i := range d.Args {
		if d.Args[i].Text != o.Args[i].Text {
			return nil
		}
	}
	return d.Refuse(SameProbe, 0, "", nil)
}

func (a *Arg) sameType(b *Arg) bool {
	return a.Name == b.Name && a.Type.stored() == b.Type.stored()
}

// stored is the type as the kernel's records and format files have it: bits are an unsigned
// number of their container's size there.
func (t TypeSpec) stored() TypeSpec {
	t.Pos, t.Text = 0, ""
	if t.Kind == Bits {
		t.Kind, t.Width, t.Shift = Unsigned, 0, 0
	}
	return t
}

// String names the kind.
func (k Kind) String() string {
	switch k {
	case Probe:
		return "probe"
	case Return:
		return "return probe"
	case Delete:
		return "deletion"
	case Watch:
		return "watchpoint"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

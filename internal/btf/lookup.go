package btf

import (
	"fmt"
	"strings"
)

// Bounds of the search for a member.
const (
	maxNesting = 16      // members without a name in each other (BTF_ANON_STACK_MAX)
	maxMembers = 1 << 17 // that are looked at: two of the longest lists
)

// search finds a member of a struct or union by its name.
type search struct {
	spec *Spec
	name string
	left int // members that may be looked at
}

// find looks through a type, and then through its members that have no name, whose members are as if they were its own.
func (q *search) find(t *typ, depth int) (m member, ok bool) {
	if !t.hasMembers() || depth > maxNesting {
		return member{}, false
	}
	q.left -= t.count
	if q.left < 0 {
		return member{}, false
	}
	for i := range t.count {
		if m := q.spec.member(t, i); m.name == q.name {
			return m, true
		}
	}
	for i := range t.count {
		m := q.spec.member(t, i)
		if m.name != "" {
			continue
		}
		inner, _ := q.spec.plain(m.id)
		if in, ok := q.find(&inner, depth+1); ok {
			in.off += m.off
			return in, true
		}
		if q.left < 0 {
			break
		}
	}
	return member{}, false
}

// lookup finds a member of a type.
func (s *Spec) lookup(t *typ, name string) (member, bool) {
	q := search{spec: s, name: name, left: maxMembers}
	return q.find(t, 0)
}

// members says which members a type has.
func (s *Spec) members(t *typ) string {
	var names []string
	for i := range min(t.count, maxMembers) {
		if m := s.member(t, i); m.name != "" {
			names = append(names, m.name)
		}
		if len(names) == 12 {
			names = append(names, "…")
			break
		}
	}
	return fmt.Sprintf("%s has %s", s.title(t), strings.Join(names, ", "))
}

// title names a type for messages.
func (s *Spec) title(t *typ) string {
	name := s.name(t.name)
	if name == "" && t.hasMembers() {
		name = "without a name"
	}
	switch t.kind {
	case kindVoid:
		return "void"
	case kindPointer:
		if to, _ := s.plain(ID(t.size)); to.kind != kindPointer {
			return s.title(&to) + " *"
		}
		return "a pointer to a pointer"
	case kindArray:
		return "an array"
	case kindStruct, kindForward:
		return "struct " + name
	case kindUnion:
		return "union " + name
	case kindEnum, kindEnum64:
		return strings.TrimSuffix("enum "+name, " ")
	case kindFuncProto:
		return "a function"
	}
	return name
}

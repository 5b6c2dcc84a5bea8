package btf

import (
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// structure finds a struct, or else a union, by its name: in the types of a module first, then in those of the kernel.
func (s *Spec) structure(name string) (ID, bool) {
	for ; s != nil; s = s.base {
		union := ID(0)
		for i, off := range s.at {
			t, _, _ := s.decode(int(off)) // index has read it
			if !t.hasMembers() || s.name(t.name) != name {
				continue
			}
			if id := s.first + ID(i); t.kind == kindStruct {
				return id, true
			} else if union == 0 {
				union = id
			}
		}
		if union != 0 {
			return union, true
		}
	}
	return 0, false
}

// Cast implements fetch.Caster.
func (s *Scope) Cast(e *event.Expr) (*fetch.Var, error) {
	to := e.Cast
	if s.spec == nil {
		return nil, refuse(event.NosupBTFArg, to.Pos-1, "%v", s.why)
	}
	id, ok := s.spec.structure(to.Struct)
	if !ok {
		return nil, refuse(event.BadBTFTid, to.Pos, "the kernel's types (BTF) have no struct or union %s", to.Struct)
	}
	c := &cursor{spec: s.spec, at: arch.Placement{Parts: []arch.ValuePart{{Size: 8}}}}
	if to.Field != "" {
		if err := c.container(id, to); err != nil {
			return nil, err
		}
	}
	c.loaded = true
	_, steps := e.Path()
	steps[0].Arrow = false // the address is not that of a pointer
	return c.find(e, id, steps)
}

// container has the value begin in front of where its address leads to: at the struct that the field is in (container_of).
func (c *cursor) container(id ID, to *event.Cast) error {
	pos := to.Pos + len(to.Struct) + 1
	if err := c.become(id, to.Pos); err != nil {
		return err
	}
	for name := range strings.SplitSeq(to.Field, ".") {
		if err := c.step(&event.Step{Field: name, Pos: pos}); err != nil {
			return err
		}
		pos += len(name) + 1
	}
	if c.bit != 0 || c.width != 0 {
		return refuse(event.TypecastNotAligned, to.Pos+len(to.Struct)+1, "%s is a bit field", to.Field)
	}
	c.off = -c.off
	return nil
}

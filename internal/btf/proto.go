package btf

import (
	"fmt"
	"strings"
)

// maxDeclarator bounds what is written of one type: pointers, arrays and qualifiers around a name.
const maxDeclarator = 16

// Prototype gives the function of a name as C declares it, without qualifiers: ssize_t vfs_read(struct file *file, …). "": the types do
// not tell of it.
func (s *Spec) Prototype(name string) string {
	t := s.typ(s.funcs[name])
	if t.kind != kindFuncProto || t.count > maxParams {
		return ""
	}
	params := make([]string, t.count)
	for i := range params {
		p := s.param(&t, i)
		if params[i] = s.declare(p.id, p.name); p.id == 0 && p.name == "" {
			params[i] = "..."
		}
	}
	if len(params) == 0 {
		params = []string{"void"}
	}
	return s.declare(ID(t.size), name) + "(" + strings.Join(params, ", ") + ")"
}

// declare declares a variable of a type.
func (s *Spec) declare(id ID, name string) string {
	for range maxDeclarator {
		t := s.typ(id)
		word := s.name(t.name)
		switch t.kind {
		case kindVolatile, kindConst, kindRestrict, kindTypeTag:
			id = ID(t.size)
			continue
		case kindPointer:
			if to, _ := s.plain(ID(t.size)); to.kind == kindFuncProto || to.kind == kindArray {
				name = "(*" + name + ")"
			} else {
				name = "*" + name
			}
			id = ID(t.size)
			continue
		case kindArray:
			elem, n := t.array()
			name, id = fmt.Sprintf("%s[%d]", name, n), elem
			continue
		case kindFuncProto:
			name, id = name+"(...)", ID(t.size)
			continue
		case kindVoid:
			word = "void"
		case kindTypedef, kindInt, kindFloat:
		default:
			word = s.title(&t)
		}
		return strings.TrimSuffix(word+" "+name, " ")
	}
	return strings.TrimSuffix("... "+name, " ")
}

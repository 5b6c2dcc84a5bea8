package btf

import (
	"fmt"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
)

// maxParams bounds a function's parameters: the kernel takes as many arguments of a probe (MAX_TRACE_ARGS).
const maxParams = 128

// Scope is what can be named at the entry and at the returns of a function.
type Scope struct {
	why    error // nothing is known of the function
	spec   *Spec
	params []param
	ret    ID
	result fetch.Base
}

// param is a parameter, and where it is when the function is entered.
type param struct {
	member
	at arch.Placement
}

var (
	_ fetch.Caster     = (*Scope)(nil)
	_ fetch.Namer      = (*Scope)(nil)
	_ fetch.ResultType = (*Scope)(nil)
)

const notInside = "names are those of parameters, at a function's entry and returns"

// None is the Scope of a function of which nothing is known, beside types that are there, or nil.
func None(spec *Spec, why error) *Scope { return &Scope{spec: spec, why: why} }

// HasFunc says whether the types tell of a function of a name: of the kernel's or of the module's alone, not of both.
func (s *Spec) HasFunc(name string) bool {
	_, ok := s.funcs[name]
	return ok
}

// Scope describes the function of a name, whose arguments are passed as abi says.
func (s *Spec) Scope(name string, abi arch.ABI) *Scope {
	t := s.typ(s.funcs[name])
	if t.kind != kindFuncProto || t.count > maxParams {
		return None(s, fmt.Errorf("%w: those of function %s", errDamaged, name))
	}
	sc := &Scope{spec: s, ret: ID(t.size)}
	shapes := make([]arch.Shape, t.count)
	for i := range t.count {
		p := s.param(&t, i)
		shapes[i] = s.shape(p.id)
		sc.params = append(sc.params, param{member: p})
	}
	var results []arch.Shape
	if t.size != 0 {
		results = []arch.Shape{s.shape(ID(t.size))}
	}
	places, _, err := abi.Place(shapes, results)
	if err == nil {
		sc.result, err = abi.RetVal(0)
	}
	if err != nil {
		return None(s, err)
	}
	for i := range places {
		sc.params[i].at = places[i]
	}
	return sc
}

// shape is what the calling convention asks of a type: a kernel passes no floating-point numbers.
func (s *Spec) shape(id ID) arch.Shape {
	size := s.sizeof(id)
	out := arch.Shape{Size: size, Align: 8}
	if t, _ := s.plain(id); !t.hasMembers() && size <= 16 {
		out.Scalars = []arch.Scalar{{Size: max(size, 1)}}
		out.Size = max(size, 1)
		return out
	}
	for off := int64(0); off < min(size, 24); off += 8 {
		out.Scalars = append(out.Scalars, arch.Scalar{Off: off, Size: 1})
	}
	return out
}

// refuse is an error at a column.
func refuse(code event.Code, pos int, format string, args ...any) *fetch.NameError {
	return &fetch.NameError{Code: code, Pos: pos, Why: fmt.Sprintf(format, args...)}
}

// Name implements fetch.Namer.
func (s *Scope) Name(e *event.Expr, at fetch.Point) (*fetch.Var, error) {
	name, steps := e.Path()
	if len(steps) > 0 && steps[0].Field != "" && !steps[0].Arrow {
		return nil, refuse(event.NosupDatArg, steps[0].Pos, "members of a parameter that is no pointer are not taken")
	}
	if at == fetch.PointInside {
		return nil, refuse(event.NosupBTFArg, e.Pos, "%s: name the register or the word of the stack, %%REG, $stackN", notInside)
	}
	if s.why != nil {
		return nil, refuse(event.NoBTFEntry, e.Pos, "%v", s.why)
	}
	if len(s.params) == 0 {
		return nil, refuse(event.NoBTFEntry, e.Pos, "the function has no parameters")
	}
	for i := range s.params {
		if p := &s.params[i]; p.name == name {
			c := &cursor{spec: s.spec, at: p.at, entry: at == fetch.PointReturn}
			return c.find(e, p.id, steps)
		}
	}
	names, _ := s.Params(at, false)
	return nil, refuse(event.NoBTFArg, e.Pos, "%q: the function's parameters are %s", name, strings.Join(names, ", "))
}

// Result implements fetch.ResultType.
func (s *Scope) Result(e *event.Expr) (*fetch.Var, error) {
	_, steps := e.Path()
	switch {
	case len(steps) > 0 && !steps[0].Arrow:
		return nil, refuse(event.NosupDatArg, steps[0].Pos, "members of a result that is no pointer are not taken")
	case s.why != nil && len(steps) > 0:
		return nil, refuse(event.NoBTFEntry, steps[0].Pos, "%v", s.why)
	case s.why != nil:
		return nil, nil
	case s.ret == 0:
		return nil, refuse(event.NoRetval, e.Pos, "it has no result")
	}
	c := &cursor{spec: s.spec, at: arch.Placement{Parts: []arch.ValuePart{{At: s.result, Size: 8}}}, result: true}
	return c.find(e, s.ret, steps)
}

// Params implements fetch.Namer.
func (s *Scope) Params(at fetch.Point, _ bool) ([]string, error) {
	switch {
	case at == fetch.PointInside:
		return nil, errno.Errorf(syscall.EINVAL, notInside)
	case s.why != nil:
		return nil, errno.Errorf(syscall.EOPNOTSUPP, "%w", s.why)
	case len(s.params) == 0:
		return nil, errno.Errorf(syscall.EOPNOTSUPP, "the function has no parameters")
	}
	var names []string
	for i := range s.params {
		if n := s.params[i].name; n != "" { // the last of a function with variable arguments has none
			names = append(names, n)
		}
	}
	return names, nil
}

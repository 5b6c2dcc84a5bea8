package vars

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/fetch"
)

// An interface of Go is two words (runtime.iface, runtime.eface; internal/abi.ITab; Go 1.25 and 1.26):
//
//	with methods   itab ──► +0 its type, +8 the value's type    value
//	without        the value's type                             value
//
// The second word is the value if that is one pointer, else the value's address. The type is told by the address of its descriptor,
// of which a program has one for each type.
const itabType = 8

// assert goes behind an interface of Go, to the value, if it has the type that the step names.
func (c *cursor) assert(st *event.Step, sh *debuginfo.Shape) error {
	refuse := func(code event.Code, format string, args ...any) error {
		return &fetch.NameError{Code: code, Pos: st.Pos, Why: fmt.Sprintf(format, args...)}
	}
	is, methods, err := c.typ.Interface()
	switch {
	case err != nil:
		return refuse(event.BadBTFTid, "%v", err)
	case !is:
		return refuse(event.NosupDatArg, "a type assertion goes behind an interface of Go; what stands before it is of type %s", typeName(sh))
	}
	t, err := c.goType(st)
	if err != nil {
		return err
	}
	want, err := c.s.symbol("runtime.types")
	if err != nil {
		return refuse(event.NoBTFArg, "where the program has its types is not known: %v", err)
	}
	direct, err := t.Direct()
	if errors.Is(err, debuginfo.ErrUnsure) {
		return refuse(event.NosupDatArg, "%s is %v: versions of Go differ in what an interface has of it; assert another type", st.Type, err)
	} else if err != nil {
		return refuse(event.BadBTFTid, "%v", err)
	}
	check := fetch.Check{Want: want + t.Descriptor}
	if check.Base, check.Derefs, err = c.word(st.Pos); err != nil {
		return err
	}
	if methods {
		check.Derefs = append(check.Derefs, itabType)
	}
	c.checks = append(c.checks, check)
	c.off += wordSize
	if !direct {
		if err := c.load(st.Pos); err != nil {
			return err
		}
	}
	c.typ = t.Type
	return nil
}

// goType finds the type that a step names.
func (c *cursor) goType(st *event.Step) (t debuginfo.GoType, err error) {
	t, err = c.s.file.GoType(st.Type)
	var none *debuginfo.NoTypeError
	switch {
	case errors.As(err, &none) && st.Type == "data":
		err = errors.New("an argument has one type, and can not take the one that the value has at the hit: name it, as in .(*net/http.response)")
	case err == nil:
		var sh *debuginfo.Shape
		if sh, err = t.Shape(); err == nil && sh.GoKind == reflect.Interface {
			err = fmt.Errorf("%s is an interface, which no value has as its type: name the type of the value", st.Type)
		}
	}
	if err != nil {
		return t, &fetch.NameError{Code: event.NoBTFField, Pos: st.Pos, Why: err.Error()}
	}
	return t, nil
}

// word is the first word of the value, as a check reads it.
func (c *cursor) word(pos int) (fetch.Base, []int64, error) {
	switch {
	case c.loaded:
		return c.base, append(slices.Clone(c.derefs), c.off), nil
	case c.at.Memory:
		return c.at.Parts[0].At, []int64{c.at.Off + c.off}, nil
	}
	p, err := c.part(pos, wordSize)
	if err == nil && p.Off != c.off {
		err = &fetch.NameError{Code: event.NoBTFArg, Pos: pos, Why: debuginfo.ErrLocation.Error()}
	}
	return p.At, nil, err
}

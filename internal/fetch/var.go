package fetch

import (
	"errors"
	"fmt"
	"slices"

	"kprobes.dev/kprobes/event"
)

// Namer is an Env that knows the names of a program.
type Namer interface {
	// Name gives what an ExprName stands for. Errors that are a *NameError say where in it.
	Name(e *event.Expr, at Point) (*Var, error)
	// Params lists the names of the function's parameters that can be taken, of a call that was inlined where one begins; with vars,
	// inside of a function, those of all variables there.
	Params(at Point, vars bool) ([]string, error)
}

// Caster is an Env that knows the types of a program by their names.
type Caster interface {
	// Cast gives what the path of an expression with a typecast leads to, from the address on; nil: no types are known by their names.
	// Errors that are a *NameError say where in it.
	Cast(e *event.Expr) (*Var, error)
}

// Var is what a name stands for. Base, Derefs, Checks, AtEntry and Result are those of an Arg.
type Var struct {
	Base            Base
	Derefs          []int64
	Checks          []Check
	AtEntry, Result bool
	Next            Base // Str is StrGo or StrContext, without Derefs: where the second word is
	Type            Type // how the value is shown
	Count           int  // elements of an array
	Str             StrKind
	TypeName        string // as the program calls it
}

// StrKind says how a string is taken of a value.
type StrKind uint8

// Kinds of strings.
const (
	StrNone    StrKind = iota // it is none
	StrPointer                // the value is the address of one
	StrHere                   // it is an array of characters
	StrGo                     // a string of Go
	StrContext                // it is none, but a context.Context of Go
)

// NameError says what is wrong with a name.
type NameError struct {
	Code event.Code
	Pos  int // column
	Why  string
}

func (e *NameError) Error() string { return e.Why }

// typed gives the argument the type that the program's variable has, or has the type that was asked for taken of it.
func (c *compiler) typed(v *Var) error {
	t := c.src.Type
	if v.Str == StrContext {
		return c.carried(v)
	}
	if t.Text == "" {
		c.arg.Type, c.arg.Count = v.Type, v.Count
		return nil
	}
	is := c.src.Type.IsString()
	switch {
	case !is && t.Count > 0 && len(v.Derefs) == 0:
		return c.def.Refuse(event.BadString, t.Pos, fmt.Sprintf("an array stands in memory: +0(%s)", c.src.Expr.Name), nil)
	case t.Kind == event.GoString && v.Str != StrGo, is && t.Kind != event.GoString && v.Str != StrPointer && v.Str != StrHere:
		return c.def.Refuse(event.BadType4Str, c.src.Expr.Pos, fmt.Sprintf("%s is of type %s", c.src.Text, v.TypeName), nil)
	case is && v.Str == StrPointer && t.Count == 0:
		c.arg.Derefs = append(c.arg.Derefs, 0)
	case is || v.Type.Width == 0 || len(v.Derefs) > 0:
	default: // a part of a register
		c.arg.Type.Width, c.arg.Type.Shift, c.arg.Type.Size = min(8*t.Size, v.Type.Width), v.Type.Shift, v.Type.Size
	}
	return nil
}

// take makes a variable the argument's value.
func (c *compiler) take(v *Var) {
	c.v = v
	c.arg.Base, c.arg.Derefs, c.arg.AtEntry, c.arg.Result = v.Base, slices.Clone(v.Derefs), v.AtEntry, v.Result
	c.arg.Checks = v.Checks
}

// unnamed refuses a name that stands for nothing.
func (c *compiler) unnamed(e *event.Expr, err error) error {
	var bad *NameError
	if errors.As(err, &bad) {
		return c.def.Refuse(bad.Code, bad.Pos, bad.Why, nil)
	}
	return c.refuse(event.NoBTFArg, e, fmt.Sprintf("%q: use $argN, %%REG or @SYMBOL", e.Name), err)
}

// returned finds the result, or what is in it.
func (c *compiler) returned(e *event.Expr) (err error) {
	if t, ok := c.env.(ResultType); ok && c.at == PointReturn {
		v, err := t.Result(e)
		if err != nil {
			return c.unnamed(e, err)
		}
		if v != nil {
			c.take(v)
			return nil
		}
	}
	t := &c.src.Type
	switch {
	case e.Name != "":
		return c.refuse(event.NosupBTFArg, e, "the types of results are known in the kernel of a guest: use +OFFSET($retval), of Go a result's name, or ~r0, ~r1 of those that have none", nil)
	case c.src.Expr == e && (t.Kind == event.String || t.Kind == event.UString):
		return c.def.Refuse(event.BadString, t.Pos, "a string stands in memory: +0($retval):string", nil)
	}
	c.arg.Base, err = c.result(e, 0)
	return err
}

// cast reads what a typecast leads to, from its address on.
func (c *compiler) cast(e *event.Expr) error {
	var v *Var
	var err error
	if n, ok := c.env.(Caster); ok {
		v, err = n.Cast(e)
	}
	switch {
	case err != nil:
		return c.unnamed(e, err)
	case v == nil:
		return c.def.Refuse(event.NosupBTFArg, e.Cast.Pos-1, "a typecast needs the types of a guest's kernel: use +OFFSET(...)", nil)
	}
	if err := c.pointer(e.Cast.Address); err != nil {
		return err
	}
	c.arg.Derefs = append(c.arg.Derefs, v.Derefs...)
	v.Derefs, c.v = c.arg.Derefs, v
	return nil
}

// pointer finds an address, which may be a variable.
func (c *compiler) pointer(e *event.Expr) error {
	if err := c.expr(e); err != nil {
		return err
	}
	if v := c.v; v != nil && (v.Type.Width > 0 || v.Count > 0 || v.Str == StrGo || v.Str == StrHere) {
		return c.refuse(event.BadFetchArg, e, fmt.Sprintf("%s is of type %s, and no address", e.Name, v.TypeName), nil)
	}
	c.v = nil
	return nil
}

// deref reads memory at an address, which may be a variable.
func (c *compiler) deref(e *event.Expr) error {
	if err := c.pointer(e.Sub); err != nil {
		return err
	}
	if e.User {
		c.arg.User |= 1 << len(c.arg.Derefs)
	}
	c.arg.Derefs = append(c.arg.Derefs, e.Off)
	return nil
}

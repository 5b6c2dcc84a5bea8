package fetch

import (
	"fmt"

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

// Var is what a name stands for. Base, Derefs, AtEntry and Result are those of an Arg.
type Var struct {
	Base            Base
	Derefs          []int64
	AtEntry, Result bool
	Next            Base // Str is StrGo, without Derefs: where the length is
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
	if t.Text == "" {
		c.arg.Type, c.arg.Count = v.Type, v.Count
		return nil
	}
	is := c.src.Type.IsString()
	switch {
	case t.Kind == event.GoString && v.Str != StrGo, is && t.Kind != event.GoString && v.Str != StrPointer && v.Str != StrHere:
		return c.def.Refuse(event.BadType4Str, t.Pos, fmt.Sprintf("%s is of type %s", c.src.Text, v.TypeName), nil)
	case is && v.Str == StrPointer && t.Count == 0:
		c.arg.Derefs = append(c.arg.Derefs, 0)
	case is || v.Type.Width == 0 || len(v.Derefs) > 0:
	default: // a part of a register
		c.arg.Type.Width, c.arg.Type.Shift, c.arg.Type.Size = min(8*t.Size, v.Type.Width), v.Type.Shift, v.Type.Size
	}
	return nil
}

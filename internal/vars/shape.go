package vars

import (
	"fmt"
	"strings"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/debuginfo"
)

// isClone says whether the compiler has made a copy of a function whose arguments may differ from the source's.
func isClone(name string) bool {
	for _, s := range []string{".isra.", ".constprop.", ".part.", ".specialized."} {
		if strings.Contains(name, s) {
			return true
		}
	}
	return false
}

// Limits of a shape: a value larger than that is in memory, and its members do not matter.
const (
	maxScalars = 64
	maxDepth   = 16
	inRegs     = 256 // bytes
)

// shapesOf gives what a calling convention asks of parameters or results.
func shapesOf(ps []debuginfo.Param) ([]arch.Shape, error) {
	out := make([]arch.Shape, len(ps))
	for i := range ps {
		var err error
		if out[i], err = shapeOf(ps[i].Type); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// shapeOf gives what a calling convention asks of a type.
func shapeOf(t debuginfo.Type) (arch.Shape, error) {
	var s arch.Shape
	sh, err := t.Shape()
	if err != nil {
		return s, err
	}
	s.Size = sh.Size
	if sh.Kind == debuginfo.Struct || sh.Kind == debuginfo.Union {
		if s.ByRef, err = t.ByReference(); s.ByRef || err != nil {
			return s, err
		}
	}
	if sh.Kind == debuginfo.Array && sh.Count > 0 {
		e, err := sh.Elem.Shape()
		if err != nil {
			return s, err
		}
		s.Size = sh.Count * e.Size
	}
	if s.Size > inRegs {
		s.Scalars, s.Align, s.Array = []arch.Scalar{{Size: 8}}, 8, true
		return s, nil
	}
	if err := scalars(&s, t, 0, 0); err != nil {
		return s, err
	}
	s.Align = 1
	for _, c := range s.Scalars {
		s.Align = max(s.Align, c.Size)
	}
	return s, nil
}

// scalars adds those of a type that lies off bytes into the value.
func scalars(out *arch.Shape, t debuginfo.Type, off int64, depth int) error {
	sh, err := t.Shape()
	if err != nil {
		return err
	}
	if depth > maxDepth || len(out.Scalars) >= maxScalars {
		return fmt.Errorf("type %q is too deep", sh.Name)
	}
	switch sh.Kind {
	case debuginfo.Void:
		return nil
	case debuginfo.Struct, debuginfo.Union:
		if sh.Decl {
			return fmt.Errorf("type %q is only declared in this file", sh.Name)
		}
		fs, err := t.Fields()
		if err != nil {
			return err
		}
		for i := range fs {
			f := &fs[i]
			if f.BitSize > 0 {
				out.Scalars = append(out.Scalars, arch.Scalar{Off: off + f.Off + int64(f.BitOff/8), Size: 1})
				continue
			}
			if err := scalars(out, f.Type, off+f.Off, depth+1); err != nil {
				return err
			}
		}
		return nil
	case debuginfo.Array:
		e, err := sh.Elem.Shape()
		if err != nil || e.Size == 0 {
			return err
		}
		out.Array = out.Array || sh.Count > 1
		for i := range sh.Count {
			if err := scalars(out, sh.Elem, off+i*e.Size, depth+1); err != nil {
				return err
			}
		}
		return nil
	case debuginfo.Complex:
		out.Scalars = append(out.Scalars, arch.Scalar{Off: off, Size: sh.Size / 2, Float: true}, arch.Scalar{Off: off + sh.Size/2, Size: sh.Size / 2, Float: true})
		return nil
	case debuginfo.Other:
		return fmt.Errorf("type %q is not known here", sh.Name)
	}
	out.Scalars = append(out.Scalars, arch.Scalar{Off: off, Size: sh.Size, Float: sh.Kind == debuginfo.Float})
	return nil
}

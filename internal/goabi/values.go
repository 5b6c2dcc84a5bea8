package goabi

import "reflect"

// Scalar is a part of a value that a register passes.
type Scalar struct {
	Off, Size int // bytes within the value
	Float     bool
	Reg       int // the nth register for its kind
}

// Value is where a value is passed: its scalars in registers, or without any Size bytes on the stack, Off bytes behind the return
// address.
type Value struct {
	Scalars   []Scalar
	Off, Size int
}

// Call says where the arguments and results of a func are passed. Stack and Spill are what a caller must have behind the return
// address: see entryArgs.
type Call struct {
	In, Out      []Value
	Stack, Spill int
}

// CallOf lays out the calls of a func type.
func CallOf(t reflect.Type) (*Call, error) {
	f, err := frameOf(t)
	if err != nil {
		return nil, err
	}
	c := &Call{In: make([]Value, len(f.in)), Out: make([]Value, len(f.out))}
	if c.Stack, c.Spill, err = entryArgs(t); err != nil {
		return nil, err
	}
	var s scalars
	for i, at := range f.in {
		c.In[i] = s.value(t.In(i), at)
	}
	s = scalars{}
	for i, at := range f.out {
		c.Out[i] = s.value(t.Out(i), at)
	}
	return c, nil
}

// scalars assigns registers.
type scalars struct {
	ints, floats int
	out          []Scalar
}

func (s *scalars) value(t reflect.Type, at slot) Value {
	v := Value{Off: at.off, Size: int(t.Size())}
	if at.regs {
		s.out = nil
		s.add(t, 0)
		v.Scalars = s.out
	}
	return v
}

// add assigns registers to the parts of a value at an offset. Precondition: there are enough.
func (s *scalars) add(t reflect.Type, off int) {
	size := int(t.Size())
	switch t.Kind() {
	case reflect.Float32, reflect.Float64:
		s.float(off, size)
	case reflect.Complex64, reflect.Complex128:
		s.float(off, size/2)
		s.float(off+size/2, size/2)
	case reflect.String, reflect.Interface, reflect.Slice:
		for at := 0; at < size; at += wordSize {
			s.int(off+at, wordSize)
		}
	case reflect.Array:
		if t.Len() == 1 {
			s.add(t.Elem(), off)
		}
	case reflect.Struct:
		for i := range t.NumField() {
			s.add(t.Field(i).Type, off+int(t.Field(i).Offset))
		}
	default:
		s.int(off, size)
	}
}

func (s *scalars) int(off, size int) {
	s.out = append(s.out, Scalar{Off: off, Size: size, Reg: s.ints})
	s.ints++
}

func (s *scalars) float(off, size int) {
	s.out = append(s.out, Scalar{Off: off, Size: size, Float: true, Reg: s.floats})
	s.floats++
}

// HoldsPointers says whether a value of a type leads to memory of the program.
func HoldsPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return t.Len() > 0 && HoldsPointers(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if HoldsPointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	case reflect.Pointer, reflect.UnsafePointer, reflect.Chan, reflect.Map, reflect.Func, reflect.Interface, reflect.Slice, reflect.String:
		return true
	}
	return false
}

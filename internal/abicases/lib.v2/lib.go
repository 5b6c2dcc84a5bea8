// Package lib has types whose import path the linker writes with an escape.
package lib

// T is a struct with a field that other packages can not name.
type T struct {
	A int
	b int
}

// New makes a T.
func New(a, b int) T { return T{a, b} }

// Sum is the sum of both fields.
func (t T) Sum() int { return t.A + t.b }

// Pair is a generic type.
type Pair[A, B any] struct {
	First  A
	Second B
}

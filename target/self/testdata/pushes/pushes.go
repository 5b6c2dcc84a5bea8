// Package pushes has functions in assembly that move the stack pointer before they check their stack,
// as hand-written code does that asks for room for what it calls.
package pushes

// Room returns when n bytes of stack are free below it.
func Room(n uintptr)

// Twice returns 2*n. It checks its stack behind a push of its own.
func Twice(n int) int

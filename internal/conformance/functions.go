package conformance

import "runtime"

// The functions of a target that is this program. They are called through variables: what
// the compiler can see it might leave out.
//
//go:noinline
func target(v uint64) uint64 { return v / 3 }

//go:noinline
func target2(v uint64) uint64 { return v/3 + 1 }

//go:noinline
func recursed(v uint64) uint64 { return v / 3 }

// none is 0. What is done with it leaves room for a jump before inner's return.
var none uint64

//go:noinline
func inner(uint64) uint64 { return returnAddress() ^ none }

//go:noinline
func outer(v uint64) uint64 {
	callInner(v)
	return returnAddress()
}

//go:noinline
func sum6(a, b, c, d, e, f uint64) uint64 { return a + b + c + d + e + f }

// returnAddress is where its caller returns to.
//
//go:noinline
func returnAddress() uint64 {
	var pcs [1]uintptr
	runtime.Callers(3, pcs[:]) // not Callers, nor this function, nor its caller
	return uint64(pcs[0])
}

var (
	callTarget, callTarget2, callRecursed = target, target2, recursed
	callInner, callOuter                  = inner, outer
	callSum6                              = sum6
)

// CallOwn calls the function of this program.
func CallOwn(fn string, v uint64) uint64 {
	switch fn {
	case Target:
		return callTarget(v)
	case Target2:
		return callTarget2(v)
	case Recursed:
		return callRecursed(v)
	case Inner:
		return callInner(v)
	case Outer:
		return callOuter(v)
	case Sum:
		return callSum6(1, 2, 3, 4, 5, 6)
	}
	panic("no function " + fn)
}

// OwnSymbol is the name of the function in this program.
func OwnSymbol(fn string) string { return "kprobes.dev/kprobes/internal/conformance." + fn }

// Package abicases has functions of all kinds of signatures, whose places of arguments and
// types of parameters tests compare with what the compiler wrote into a program.
package abicases

import (
	"unsafe"

	lib "kprobes.dev/kprobes/internal/abicases/lib.v2"
)

// Types that the functions take.
type (
	Num    int16
	Ptr    *int
	Fn     func(int, ...string) (bool, error)
	Bytes  []byte
	Chan   chan<- Num
	Map    map[string][]*lib.T
	Empty  struct{}
	Vec    struct{ X, Y, Z float64 }
	Single [1]string
	Two    [2]int32
	None   [0]uint64
	Shaper interface {
		Shape() Vec
		hidden(int) string
	}
	Mixed struct {
		B byte
		F float32
		S string
		N struct{ C complex64 }
	}
	Big  struct{ A, B, C, D, E, F, G, H, I, J int }
	Tail struct {
		A int32
		Z struct{}
	}
	Base  struct{ b int }
	Under struct {
		Base
		*Num
		_ int32
		T string `json:"t,omitempty"`
	}
)

// Shape is a method with a receiver by value.
//
//go:noinline
func (v Vec) Shape() Vec { return v }

// Scale has a pointer receiver.
//
//go:noinline
func (v *Vec) Scale(f float64, more ...float32) { v.X *= f + float64(len(more)) }

// Sum is a method of a big receiver, which goes on the stack.
//
//go:noinline
func (b Big) Sum(n int) int { return b.A + b.J + n }

// Len is a method of an array.
//
//go:noinline
func (t Two) Len(x string) int { return len(x) + int(t[0]) }

// local gives a function that takes a type of its own.
//
//go:noinline
func local() any {
	type own struct{ a, b int }
	return func(x own, y []own) int { return x.a + y[0].b }
}

// closure gives a function with captured variables, which are no parameters.
//
//go:noinline
func closure(a int, s string) any {
	return func(b int) string { a += b; return s[a:] }
}

// Inlined is called in this package, so that its code is there twice.
func Inlined(a int, s string) int { return len(s) + a }

// Generic is a generic function: its instances take a dictionary before their parameters.
//
//go:noinline
func Generic[T any](a T) any { return a }

// Some are instances of it.
var Some = []any{Generic(1), Generic("x")}

// Funcs are the functions.
var Funcs = []any{
	nothing, ints, ten, strs, slices, ifaces, floats, sixteen, doubles, complexes, byValue, nested,
	zeroArray, oneArray, twoArray, emptyStruct, emptyFirst, tail, small, odd, big, bigBetween, mixed,
	variadic, funcs, chans, maps, pointers, unsafes, named, anon, generic, imported, iface, results,
	stackResult, stackBoth, bigResult, lastString, stackThenRegs, blanks, unused, escapes, runes, bools,
	embedded, arrays, deep, recvChan, wide, manyResults, (*Vec).Scale, Vec.Shape, Big.Sum, Two.Len,
	local(), closure(Inlined(1, "x"), "closed"), Inlined, lib.T.Sum, nameds,
}

//go:noinline
func nothing() {}

//go:noinline
func ints(a int, b int8, c uint16, d int32, e uint64, f uintptr) int { return a + int(b) }

//go:noinline
func ten(a, b, c, d, e, f, g, h, i, j int) int { return a + j }

//go:noinline
func strs(a, b, c, d, e string) string { return a + e }

//go:noinline
func slices(a []int, b []string, c []byte, d []Vec) int { return len(a) + len(d) }

//go:noinline
func ifaces(a any, b error, c interface{ F(int) }, d Shaper, e any) bool { return a == e }

//go:noinline
func floats(a float32, b float64, c float32) float64 { return float64(a) + b }

//go:noinline
func sixteen(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p float64) float64 { return a + p }

//go:noinline
func doubles(a, b, c, d, e, f, g, h, i, j, k, l, m, n float32, v Vec, z float32) float32 {
	return a + z
}

//go:noinline
func complexes(a complex64, b complex128, c, d, e, f, g complex128, h complex64) complex128 {
	return b + complex128(h)
}

//go:noinline
func byValue(a Vec, b Mixed, c Num) float64 { return a.X + float64(b.F) }

//go:noinline
func nested(a struct {
	A struct{ B struct{ C int8 } }
	D [1][1]struct{ E string }
}, b int,
) int {
	return int(a.A.B.C) + b
}

//go:noinline
func zeroArray(a [0]int64, b int8, c [0]int8, d int8) int8 { return b + d }

//go:noinline
func oneArray(a [1]int, b [1]string, c Single, d int) int { return a[0] + d }

//go:noinline
func twoArray(a int, b [2]int, c string, d Two) int { return a + b[1] + int(d[0]) }

//go:noinline
func emptyStruct(a int8, b struct{}, c int8) int8 { return a + c }

//go:noinline
func emptyFirst(a Empty, b [3]byte, c None, d byte) byte { return b[2] + d }

//go:noinline
func tail(a Tail, b [2]Tail, c int8) int { return int(a.A) + int(c) }

//go:noinline
func small(a bool, b int8, c [2]int8, d int16, e [2]int16, f int8) int { return int(b) + int(f) }

//go:noinline
func odd(a [3]byte, b [5]byte, c [2]int64, d [3]uint16, e [7]byte) byte { return a[0] + e[6] }

//go:noinline
func big(a Big) int { return a.J }

//go:noinline
func bigBetween(a int, b Big, c string, d *Big) int { return a + b.C + len(c) }

//go:noinline
func mixed(a string, b float64, c []byte, d any, e float32, f string, g int, h float64) int {
	return len(a) + g
}

//go:noinline
func variadic(a int, b ...string) int { return a + len(b) }

//go:noinline
func funcs(a func(), b Fn, c func(int, ...lib.T) (x int, err error), d func(func(Num) Ptr) chan int) bool {
	return a == nil && d == nil
}

//go:noinline
func chans(a chan int, b <-chan string, c chan<- Num, d Chan, e chan (<-chan int), f chan<- chan int) int {
	return len(a)
}

//go:noinline
func maps(a map[string]int, b Map, c map[[2]Num]struct{ x, Y int }, d map[any]map[int]error) int {
	return len(a)
}

//go:noinline
func pointers(a *int, b **string, c *struct{ x int }, d Ptr, e *[4]int, f *lib.T, g *any) bool {
	return a == nil
}

//go:noinline
func unsafes(a unsafe.Pointer, b []unsafe.Pointer, c *unsafe.Pointer) bool { return a == nil }

//go:noinline
func named(a Num, b Ptr, c Fn, d Bytes, e Chan, f Map) int { return int(a) }

//go:noinline
func anon(a struct {
	X int
	y string "k:\"a \\\"q\\\"\""
	Vec
}, b struct{}, c []struct{ Z int },
) int {
	return a.X
}

//go:noinline
func generic(a lib.Pair[int, string], b *lib.Pair[lib.T, []Num], c lib.Pair[struct{ x int }, any]) int {
	return a.First
}

//go:noinline
func imported(a lib.T, b []lib.T, c map[lib.T]*lib.T, d [2]lib.T) int { return a.A }

//go:noinline
func iface(a interface {
	Do(Num, ...lib.T) (int, error)
	own()
	Shaper
}, b interface{ Unwrap() error },
) bool {
	return a == nil
}

//go:noinline
func results(a int) (b int, s string, err error) { return a, "", nil }

//go:noinline
func stackResult(a int8) (b [2]int8, c int) { return b, int(a) }

//go:noinline
func stackBoth(a [3]byte, b int) (c [5]byte, d [2]int32, e string) { return c, d, "" }

//go:noinline
func bigResult(a string, b Big) (Big, Big) { return b, b }

//go:noinline
func lastString(a, b, c, d, e, f, g, h int, s string, i int) int { return len(s) + i }

//go:noinline
func stackThenRegs(a, b, c, d []int, e string, f int, g float64) float64 { return g }

//go:noinline
func blanks(_ int, _ string, c int, _ struct{}, _ [2]byte) int { return c }

//go:noinline
func unused(a int, b string, c Mixed, d [2]string) {}

//go:noinline
func escapes(a Mixed, b int, c [2]int) (*Mixed, *int, *[2]int) { return &a, &b, &c }

//go:noinline
func runes(a rune, b byte, c []rune, d []byte, e any) rune { return a }

//go:noinline
func bools(a, b, c bool, d [2]bool, e struct{ A, B bool }) bool { return a && d[1] }

//go:noinline
func embedded(a Under, b *Under, c struct{ *lib.T }) int { return a.b }

//go:noinline
func arrays(a [1][0]int, b [0][2]string, c [1][2]int8, d [2][0]int, e int8) int8 { return e }

//go:noinline
func deep(a struct{ A struct{ B [2]int } }, b struct{ A struct{ B [1]int } }) int { return a.A.B[1] }

//go:noinline
func recvChan(a <-chan (<-chan int), b chan func() int, c []chan<- struct{}) int { return len(a) }

//go:noinline
func wide(a int, b [100]byte, c string, d [100]int64) byte { return b[99] + byte(d[99]) }

//go:noinline
func manyResults() (a, b, c, d, e, f, g, h, i, j int, k string) { return }

//go:noinline
func nameds(a Single, b Two, c None, d Empty, e Shaper, f error) int { return int(b[1]) }

package goabi

import (
	"reflect"

	"kprobes.dev/kprobes/internal/symbol"
)

// argsWriter writes the description of parameters that the compiler gives tracebacks
// (cmd/compile/internal/ssagen, EmitArgInfo), out of a func's type.
type argsWriter struct {
	out []byte
	n   int // words told
}

// describeArgs describes the parameters of a func type. frame is the size of the probed function's
// argument frame, which is larger than f where the func leaves its results out; below 0: unknown.
func describeArgs(t reflect.Type, f *goFrame, frame int) []byte {
	shift := 0
	if t.NumOut() == 0 && frame >= 0 {
		shift = frame - (f.args + f.results + f.spill)
	}
	var w argsWriter
	for i, s := range f.in {
		off := s.off
		if s.regs {
			off += shift
		}
		if !w.visit(off, t.In(i), 0) {
			break
		}
	}
	return w.out
}

func (w *argsWriter) word(off, size int) {
	if off >= symbol.ArgsFarOffset {
		w.out = append(w.out, symbol.ArgsFar)
	} else {
		w.out = append(w.out, byte(off), byte(size))
	}
	w.n++
}

// visit writes a value of a type at an offset, and says whether there is room for more.
func (w *argsWriter) visit(off int, t reflect.Type, depth int) bool {
	if w.n >= symbol.ArgsLimit {
		w.out = append(w.out, symbol.ArgsMore)
		return false
	}
	word := reflect.TypeFor[uintptr]()
	var parts []part
	switch t.Kind() {
	case reflect.Interface, reflect.String:
		parts = []part{{0, word}, {wordSize, word}}
	case reflect.Slice:
		parts = []part{{0, word}, {wordSize, word}, {2 * wordSize, word}}
	case reflect.Complex64:
		parts = []part{{0, reflect.TypeFor[float32]()}, {4, reflect.TypeFor[float32]()}}
	case reflect.Complex128:
		parts = []part{{0, reflect.TypeFor[float64]()}, {8, reflect.TypeFor[float64]()}}
	case reflect.Array:
		for i := range min(t.Len(), symbol.ArgsLimit+1) {
			parts = append(parts, part{i * int(t.Elem().Size()), t.Elem()})
		}
	case reflect.Struct:
		for i := range t.NumField() {
			parts = append(parts, part{int(t.Field(i).Offset), t.Field(i).Type})
		}
	default:
		w.word(off, int(t.Size()))
		return true
	}
	w.out = append(w.out, symbol.ArgsOpen)
	if depth++; depth >= symbol.ArgsMaxDepth {
		w.out = append(w.out, symbol.ArgsMore, symbol.ArgsClose)
		w.n++
		return true
	}
	if len(parts) == 0 {
		w.n++ // it counts as a word
	}
	for _, p := range parts {
		if !w.visit(off+p.off, p.t, depth) {
			break
		}
	}
	w.out = append(w.out, symbol.ArgsClose)
	return true
}

// part is a field, an element or a word of a value.
type part struct {
	off int
	t   reflect.Type
}

// goFrame is the argument frame of a function of Go's ABIInternal, as its caller lays it
// out. At the function's first instruction the return address is at SP, and this above it:
//
//	SP+8                     arguments on the stack, in order, each aligned as its type
//	SP+8+args                results on the stack
//	SP+8+args+results        room for the arguments in registers, in order, each as in memory:
//	                         the function spills them there, also before its stack grows
//	SP+8+args+results+spill
//
// Each of the three is a multiple of 8 bytes. Only the arguments are written by the caller.
type goFrame struct {
	args, results, spill int
	in, out              []slot
}

// wordSize is the size of a pointer and of a register for integers, in bytes.
const wordSize = 8

// slot is where an argument or a result is: a number of bytes above the return address, for
// one in registers that of its spill area. Results in registers have none: -1.
type slot struct {
	off  int
	regs bool
}

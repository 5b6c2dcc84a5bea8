// Package goabi knows where Go's calling convention puts the arguments of a func, and whether a func
// can be called with the arguments of a function of a program.
package goabi

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// Registers for arguments in Go's ABIInternal on amd64 (cmd/compile/abi-internal.md): RAX RBX
// RCX RDI RSI R8 R9 R10 R11 and X0 to X14. A function literal's context is in RDX and is no
// argument.
const (
	goIntRegs   = 9
	goFloatRegs = 15
)

// maxEntryFrame bounds the argument frame of a jprobe's Entry, in bytes: it is copied to the
// system stack, of which a thread has 16 KiB.
const maxEntryFrame = 4096

// abiState assigns registers and stack, arguments first, then results.
type abiState struct{ ints, floats, stack, spill int }

// frameOf lays out the frame of a func type.
func frameOf(t reflect.Type) (*goFrame, error) {
	if t == nil || t.Kind() != reflect.Func {
		return nil, errno.Errorf(unix.EINVAL, "the handler is of type %v, which is no func: give a func with the probed function's parameters", t)
	}
	f, s := &goFrame{}, &abiState{}
	for i := range t.NumIn() {
		at, err := s.assign(t.In(i), false)
		if err != nil {
			return nil, err
		}
		f.in = append(f.in, at)
	}
	s.stack = alignUp(s.stack, wordSize)
	f.args, s.ints, s.floats = s.stack, 0, 0
	for i := range t.NumOut() {
		at, err := s.assign(t.Out(i), true)
		if err != nil {
			return nil, err
		}
		f.out = append(f.out, at)
	}
	s.stack = alignUp(s.stack, wordSize)
	f.results, f.spill = s.stack-f.args, alignUp(s.spill, wordSize)
	for i := range f.in {
		if f.in[i].regs {
			f.in[i].off += s.stack
		}
	}
	return f, nil
}

// assign gives one argument or result all the registers that it needs, or a place on the
// stack. What has no size goes on the stack, where it only aligns what follows.
func (s *abiState) assign(t reflect.Type, result bool) (slot, error) {
	ints, floats, ok := regsOf(t)
	switch {
	case isSIMD(t):
		return slot{}, errno.Errorf(unix.EOPNOTSUPP, "type %v is passed in vector registers: probe the function with a Kprobe, whose Regs hold them", t)
	case t.Size() == 0 || !ok || s.ints+ints > goIntRegs || s.floats+floats > goFloatRegs:
		return slot{off: place(&s.stack, t)}, nil
	}
	s.ints, s.floats = s.ints+ints, s.floats+floats
	if result {
		return slot{off: -1, regs: true}, nil
	}
	return slot{off: place(&s.spill, t), regs: true}, nil
}

// place takes room for a value of a type.
func place(end *int, t reflect.Type) int {
	off := alignUp(*end, t.Align())
	*end = off + int(t.Size())
	return off
}

func alignUp(n, to int) int { return (n + to - 1) &^ (to - 1) }

// regsOf gives the number of registers that a value takes; ok is false for one that is
// never in registers: with an array of more than one element.
func regsOf(t reflect.Type) (ints, floats int, ok bool) {
	switch t.Kind() {
	case reflect.Float32, reflect.Float64:
		return 0, 1, true
	case reflect.Complex64, reflect.Complex128:
		return 0, 2, true
	case reflect.String, reflect.Interface:
		return 2, 0, true
	case reflect.Slice:
		return 3, 0, true
	case reflect.Array:
		if t.Len() == 1 {
			return regsOf(t.Elem())
		}
		return 0, 0, t.Len() == 0
	case reflect.Struct:
		for i := range t.NumField() {
			n, m, ok := regsOf(t.Field(i).Type)
			if ints, floats = ints+n, floats+m; !ok || ints > goIntRegs || floats > goFloatRegs {
				return 0, 0, false
			}
		}
		return ints, floats, true
	}
	return 1, 0, true
}

// isSIMD reports whether a value is, or holds, a vector of simd/archsimd (GOEXPERIMENT=simd).
func isSIMD(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return isSIMD(t.Elem())
	case reflect.Struct:
		if t.PkgPath() == "simd/archsimd" {
			return true
		}
		for i := range t.NumField() {
			if isSIMD(t.Field(i).Type) {
				return true
			}
		}
	}
	return false
}

// entryArgs gives what a caller of a func of type t must have above the return address
// (goFrame), in bytes: the arguments on the stack, which it copies there, and behind them
// spill bytes that belong to the callee, for its results on the stack and its arguments in
// registers. Both are multiples of 8.
func entryArgs(t reflect.Type) (stack, spill int, err error) {
	f, err := frameOf(t)
	if err != nil {
		return 0, 0, err
	}
	if n := f.args + f.results + f.spill; n > maxEntryFrame {
		return 0, 0, errno.Errorf(unix.E2BIG, "a func of type %v takes %d bytes on the stack, at most %d can be copied: probe the function with a Kprobe, and read its arguments where they are", t, n, maxEntryFrame)
	}
	return f.args, f.results + f.spill, nil
}

// Match says whether a func of type t can be called with the arguments of a function, and what its caller
// must have above the return address: see sameSignature and entryArgs.
func Match(fn *symbol.Func, im *symbol.Image, t reflect.Type) (stack, spill int, err error) {
	if err := sameSignature(fn, im, t); err != nil {
		return 0, 0, err
	}
	return entryArgs(t)
}

// MatchReturn says whether a function returns what a func type does and, with args, takes what that takes, by its debug information. Where
// the type takes an uintptr the function may take an address of any kind.
func MatchReturn(fn *symbol.Func, im *symbol.Image, t reflect.Type, args bool) error {
	if fn.ABI0 || fn.Asm {
		return errno.Errorf(unix.EOPNOTSUPP, "function %q is written in assembly or called as such is: its results are not where Go's are", fn)
	}
	sig, err := im.GoSignature(fn)
	if err != nil {
		return err
	}
	ins, ps := inTypes(t), slices.Clone(sig.Params)
	for i := range min(len(ins), len(ps)) {
		if ins[i] == reflect.TypeFor[uintptr]() && IsAddress(ps[i].Kind) {
			ps[i].Type, ps[i].Kind = "uintptr", reflect.Uintptr
		}
	}
	switch {
	case args && !sameTypes(ps, ins):
		return errno.Errorf(unix.EINVAL, "%v takes %s, the handler takes %s: give a func that takes the same", fn, paramWords(sig.Params), typeWords(ins))
	case !sameTypes(sig.Results, outTypes(t)):
		return errno.Errorf(unix.EINVAL, "%v returns %s, the handler takes %s: give a func that takes the same", fn,
			paramWords(sig.Results), typeWords(outTypes(t)))
	}
	return nil
}

// IsAddress says whether values of a kind are one address.
func IsAddress(k reflect.Kind) bool {
	switch k {
	case reflect.Pointer, reflect.UnsafePointer, reflect.Chan, reflect.Map, reflect.Func:
		return true
	}
	return false
}

// sameSignature says whether a func of type t can be called with the arguments of the
// function: nil, or what is different. The types of the parameters must be the same, a
// method's receiver being the first; the func may have the function's results or none.
// Functions without Go parameters that a func could have (C, assembly, instances of
// generic functions) give EOPNOTSUPP, other differences EINVAL.
//
// Types are the same if their names with import paths, kinds and sizes are. A type that is
// declared in a function is not told from another of the same name in its package, kind and
// size. In a program without debug information (-s, -w) what can be compared is what tracebacks
// know of the parameters: the size and place of each of the first ten words, and which belong
// together (a string, a slice, a struct). An int is then not told from a pointer or a float64, and
// an Entry that differs so sees nonsense.
func sameSignature(fn *symbol.Func, im *symbol.Image, t reflect.Type) error {
	frame, err := frameOf(t)
	if err != nil {
		return err
	}
	if fn.ABI0 || fn.Asm {
		return errno.Errorf(unix.EOPNOTSUPP, "function %q is written in assembly or called as such is: its arguments are not where a handler looks for them; use a Kprobe", fn)
	}
	sig, err := im.GoSignature(fn)
	if err != nil {
		return fmt.Errorf("%w; use a Kprobe", err)
	}
	if !sig.Typed {
		return sameFrame(fn, sig, t, frame)
	}
	if !sameTypes(sig.Params, inTypes(t)) {
		return errno.Errorf(unix.EINVAL, "%v takes %s, the handler takes %s: give a func with the same parameters", fn, paramWords(sig.Params), typeWords(inTypes(t)))
	}
	if t.NumOut() > 0 && !sameTypes(sig.Results, outTypes(t)) {
		return errno.Errorf(unix.EINVAL, "%v returns %s, the handler returns %s: give a func with the same results, or none", fn, paramWords(sig.Results), typeWords(outTypes(t)))
	}
	return nil
}

// sameFrame compares what is known without debug information.
func sameFrame(fn *symbol.Func, sig *symbol.Signature, t reflect.Type, f *goFrame) error {
	why := "the program has no debug information that would tell more"
	if sig.Problem != nil {
		why = sig.Problem.Error()
	}
	want := f.args + f.results + f.spill
	if sig.Frame < 0 || want == sig.Frame || t.NumOut() == 0 && want < sig.Frame {
		if have := describeArgs(t, f, sig.Frame); sig.ArgsKnown && !bytes.Equal(have, sig.Args) {
			return errno.Errorf(unix.EINVAL, "the parameters of %v are %s (size@offset of each word), those of the handler, %v, are %s (%s): give a func with the same parameters",
				fn, symbol.ArgsText(sig.Args), t, symbol.ArgsText(have), why)
		}
		return nil
	}
	return errno.Errorf(unix.EINVAL, "arguments and results of %v take %d bytes of its caller's stack, those of the handler, %v, take %d (%s): give a func with the same parameters", fn, sig.Frame, t, want, why)
}

func sameTypes(ps []symbol.Param, ts []reflect.Type) bool {
	if len(ps) != len(ts) {
		return false
	}
	for i, p := range ps {
		t := ts[i]
		if p.Kind != reflect.Invalid && p.Kind != t.Kind() || p.Size != int64(t.Size()) || !sameName(withoutOrdinals(p.Type), withoutOrdinals(linkName(t))) {
			return false
		}
	}
	return true
}

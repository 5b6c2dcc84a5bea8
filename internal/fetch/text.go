package fetch

import (
	"strconv"
	"unicode/utf8"

	"kprobes.dev/kprobes/event"
)

// Sym is what lies at an address.
type Sym struct {
	Name   string // function or variable
	Pretty string // demangled, as stacks have it; "": as Name
	Module string // object that it belongs to; "" for the program itself
	Off    uint64 // bytes from the symbol's start
	Size   uint64 // of the symbol, in bytes
}

// Resolver finds the symbol at an address.
type Resolver func(addr uint64) (Sym, bool)

const (
	fault   = "(fault)"
	unknown = "(unknown)"
)

// AppendSym appends an address as the head of a trace line shows it: SYM+0xOFF/0xSIZE,
// [MODULE] behind it, or the address in at least 8 digits if nothing is known there, as
// the kernel does (trace_seq_print_sym of kernel/trace/trace_output.c). r may be nil.
func AppendSym(dst []byte, addr uint64, r Resolver) []byte {
	dst, ok := appendSym(dst, addr, r)
	if !ok {
		return appendAddr(dst, addr)
	}
	return dst
}

// appendPointer appends an address as the kernel's %pS shows it, which is as AppendSym does
// but with the digits that the address has.
func appendPointer(dst []byte, addr uint64, r Resolver) []byte {
	dst, ok := appendSym(dst, addr, r)
	if !ok {
		return appendHex(dst, addr)
	}
	return dst
}

func appendSym(dst []byte, addr uint64, r Resolver) (_ []byte, ok bool) {
	var s Sym
	if r != nil {
		s, ok = r(addr)
	}
	if !ok {
		return dst, false
	}
	dst = appendClean(dst, s.Name)
	dst = appendHex(append(dst, '+'), s.Off)
	dst = appendHex(append(dst, '/'), s.Size)
	if s.Module != "" {
		dst = append(dst, " ["...)
		dst = append(appendClean(dst, s.Module), ']')
	}
	return dst, true
}

func appendHex(dst []byte, v uint64) []byte {
	return strconv.AppendUint(append(dst, "0x"...), v, 16)
}

func appendAddr(dst []byte, v uint64) []byte {
	dst = append(dst, "0x"...)
	for d := v | 1; d < 1<<28; d <<= 4 {
		dst = append(dst, '0')
	}
	return strconv.AppendUint(dst, v, 16)
}

// appendClean appends a name of the target with what is not printable escaped.
func appendClean(dst []byte, s string) []byte {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			q := strconv.Quote(s)
			return append(dst, q[1:len(q)-1]...)
		}
	}
	return append(dst, s...)
}

// AppendValues appends ` name=value` for each value, as a trace line ends.
func AppendValues(dst []byte, vs []Value, r Resolver) []byte {
	for i := range vs {
		dst = append(dst, ' ')
		dst = append(dst, vs[i].Arg.Name...)
		dst = vs[i].AppendText(append(dst, '='), r)
	}
	return dst
}

// AppendText appends the value as a trace line shows it: u and s in decimal, x with 0x,
// 'c', "string" or (fault), SYM+0xOFF/0xSIZE, arrays {a,b}. Quotes, backslashes and what
// is not printable are escaped as in a Go string. An unknown value is (unknown).
func (v *Value) AppendText(dst []byte, r Resolver) []byte {
	if v.Unknown {
		return append(dst, unknown...)
	}
	if v.Arg.Count == 0 {
		e := Elem{Num: v.Num, Str: v.Str, Fault: v.Fault}
		return v.Arg.appendText(dst, &e, r)
	}
	dst = append(dst, '{')
	for i := range v.Elems {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = v.Arg.appendText(dst, &v.Elems[i], r)
	}
	return append(dst, '}')
}

func (a *Arg) appendText(dst []byte, e *Elem, r Resolver) []byte {
	t := a.Type
	switch t.Kind {
	case event.Signed:
		return strconv.AppendInt(dst, t.Int(e.Num), 10)
	case event.Hex:
		return appendHex(dst, e.Num)
	case event.Char:
		return appendChar(dst, byte(e.Num))
	case event.Symbol:
		return appendPointer(dst, e.Num, r)
	case event.SymStr:
		return append(appendPointer(append(dst, '"'), e.Num, r), '"')
	case event.String, event.UString, event.GoString:
		if e.Fault {
			return append(dst, fault...)
		}
		return strconv.AppendQuote(dst, string(e.Str))
	}
	return strconv.AppendUint(dst, e.Num, 10)
}

func appendChar(dst []byte, c byte) []byte {
	if c < utf8.RuneSelf {
		return strconv.AppendQuoteRune(dst, rune(c))
	}
	const hex = "0123456789abcdef"
	return append(dst, '\'', '\\', 'x', hex[c>>4], hex[c&15], '\'')
}

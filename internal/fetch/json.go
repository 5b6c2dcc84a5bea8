package fetch

import (
	"strconv"
	"unicode/utf8"

	"kprobes.dev/kprobes/event"
)

// AppendJSON appends the value in JSON: integers from -(1<<53-1) to 1<<53-1 as numbers, which
// every reader keeps exactly (RFC 8259, section 6), all others as strings of their decimal
// digits, characters and symbols as strings, strings with
// U+FFFD for what is not UTF-8, a string that could not be read and an unknown value as
// null, arrays as arrays.
func (v *Value) AppendJSON(dst []byte, r Resolver) []byte {
	if v.Unknown {
		return append(dst, "null"...)
	}
	if v.Arg.Count == 0 {
		e := Elem{Num: v.Num, Str: v.Str, Fault: v.Fault}
		return v.Arg.appendJSON(dst, &e, r)
	}
	dst = append(dst, '[')
	for i := range v.Elems {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = v.Arg.appendJSON(dst, &v.Elems[i], r)
	}
	return append(dst, ']')
}

func (a *Arg) appendJSON(dst []byte, e *Elem, r Resolver) []byte {
	t := a.Type
	switch t.Kind {
	case event.Signed:
		n := t.Int(e.Num)
		if n < -maxExact || n > maxExact {
			return append(strconv.AppendInt(append(dst, '"'), n, 10), '"')
		}
		return strconv.AppendInt(dst, n, 10)
	case event.Char:
		return AppendJSONString(dst, []byte(string(rune(e.Num))))
	case event.Symbol, event.SymStr:
		return AppendJSONString(dst, appendPointer(nil, e.Num, r))
	case event.String, event.UString, event.GoString:
		if e.Fault {
			return append(dst, "null"...)
		}
		return AppendJSONString(dst, e.Str)
	}
	if e.Num > maxExact {
		return append(strconv.AppendUint(append(dst, '"'), e.Num, 10), '"')
	}
	return strconv.AppendUint(dst, e.Num, 10)
}

// maxExact is the largest integer up to which floating point of 64 bits has them all.
const maxExact = 1<<53 - 1

// AppendJSONString appends bytes as a JSON string. What is not UTF-8 becomes U+FFFD,
// control characters are escaped.
func AppendJSONString(dst, s []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ' || r >= 0x7f && r < 0xa0:
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		case r == '\u2028' || r == '\u2029':
			dst = append(dst, `\u202`...)
			dst = append(dst, hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
		s = s[n:]
	}
	return append(dst, '"')
}

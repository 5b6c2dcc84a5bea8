package fetch

import "kprobes.dev/kprobes/event"

// Any gives the value as a Go value: int64 of a signed type, byte of a character, string of a string, uint64 of all other types (an
// address of a symbol); []any of an array, with such elements. nil: it could not be read, or is not known.
func (v *Value) Any() any {
	if v.Unknown {
		return nil
	}
	if v.Arg.Count == 0 {
		return v.Arg.any(&Elem{Num: v.Num, Str: v.Str, Fault: v.Fault})
	}
	out := make([]any, len(v.Elems))
	for i := range v.Elems {
		out[i] = v.Arg.any(&v.Elems[i])
	}
	return out
}

func (a *Arg) any(e *Elem) any {
	switch t := a.Type; t.Kind {
	case event.Signed:
		return t.Int(e.Num)
	case event.Char:
		return byte(e.Num)
	case event.String, event.UString, event.GoString:
		if e.Fault {
			return nil
		}
		return string(e.Str)
	}
	return e.Num
}

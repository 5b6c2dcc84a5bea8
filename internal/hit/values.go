package hit

import (
	"iter"

	"kprobes.dev/kprobes/internal/fetch"
)

// Values gives the names and the values of the hit's arguments, in the order of the definition. A value is
//
//	int64    of the types s8 to s64
//	byte     of char
//	string   of string, ustring and gostring: a copy of its bytes, which need not be UTF-8
//	uint64   of all other types; of symbol and symstr the address, which Core.Symbol names
//	[]any    of an array, with elements as above
//	nil      where the memory could not be read, where the result of a return probe is not known (Hit.Unknown), and of $comm
//	         where the record does not have the thread's name
//
// It gives nothing of a record that is damaged, for which AppendArgs has the error. Values are copies: they outlive the hit.
func (h *Hit) Values() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		if h.Event.Prog == nil {
			return
		}
		vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, h.Comm)
		if err != nil {
			return
		}
		h.Hide(vs)
		for i := range vs {
			if !yield(vs[i].Arg.Name, h.value(&vs[i])) {
				return
			}
		}
	}
}

func (h *Hit) value(v *fetch.Value) any {
	if v.Arg.Store == fetch.StoreNone && v.Arg.Base.Kind == fetch.BaseComm && h.Comm == "" {
		return nil
	}
	return v.Any()
}

// Value gives the value of an argument by its name, as Values does; nil also where the event has no such argument.
func (h *Hit) Value(name string) any {
	for n, v := range h.Values() {
		if n == name {
			return v
		}
	}
	return nil
}

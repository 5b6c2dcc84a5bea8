package symbol

import (
	"slices"
	"strings"
)

// similar gives names of functions that may be meant by a name that was not found:
// C++, Rust and Go functions whose last part it is, then near misses.
func (t *table) similar(name string) []string {
	last := lastPart(name)
	var out []string
	for i := range t.names {
		n := &t.names[i]
		if len(out) == MaxNearest || last == "" {
			break
		}
		if !t.funcs[n.fn].Candidate() || !strings.Contains(n.str, last) {
			continue
		}
		p := n.str
		if mangling(p) != LangC {
			p = Demangle(p)
		}
		if p != name && lastPart(p) == last && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if len(out) > 0 {
		return out
	}
	return nearest(name, func(yield func(string)) {
		for i := range t.names {
			if fn := t.funcs[t.names[i].fn]; fn.Candidate() && !fn.PLT {
				yield(t.names[i].str)
			}
		}
	})
}

// lastPart is what stands behind the last :: or . of a qualified name.
func lastPart(name string) string {
	if i := strings.LastIndex(name, "::"); i >= 0 {
		name = name[i+2:]
	} else if i := strings.LastIndexByte(name, '.'); i >= 0 {
		name = name[i+1:]
	}
	return name
}

func sortedU64(s []uint64) []uint64 {
	slices.Sort(s)
	return s
}

package symbol

import (
	"slices"
	"strings"
)

// maxSimilar is the number of names that an error suggests.
const maxSimilar = 5

// similar gives names of functions that may be meant by a name that was not found:
// C++, Rust and Go functions whose last part it is, then near misses.
func (t *table) similar(name string) []string {
	last := lastPart(name)
	var out []string
	for i := range t.names {
		n := &t.names[i]
		if len(out) == maxSimilar || last == "" {
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
	return similar(name, func(yield func(string)) {
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

// maxCompared bounds the lengths of names that are compared by distance.
const maxCompared = 64

// similar gives the names nearest to name: at most a third of its letters differ, or it
// differs in case only, or it begins with it.
func similar(name string, each func(yield func(string))) []string {
	type near struct {
		name string
		dist int
	}
	if len(name) < 2 || len(name) > maxCompared {
		return nil
	}
	var best []near
	limit := min(3, (len(name)+1)/3)
	lower := strings.ToLower(name)
	each(func(s string) {
		if len(s) > maxCompared {
			return
		}
		d := limit + 1
		switch {
		case strings.EqualFold(s, name):
			d = 0
		case len(s)-len(name) <= limit && len(name)-len(s) <= limit:
			d = distance(lower, strings.ToLower(s), limit)
		}
		if d > limit && len(name) >= 4 && strings.HasPrefix(s, name) {
			d = limit
		}
		if d > limit || slices.ContainsFunc(best, func(n near) bool { return n.name == s }) {
			return
		}
		best = append(best, near{s, d})
		slices.SortStableFunc(best, func(a, b near) int { return a.dist - b.dist })
		best = best[:min(len(best), maxSimilar)]
	})
	var out []string
	for _, n := range best {
		out = append(out, n.name)
	}
	return out
}

// distance is the number of insertions, deletions, replacements and swaps of neighbours
// that turn a into b, or limit+1 if it takes more than limit. Both have at most
// maxCompared letters.
func distance(a, b string, limit int) int {
	var rows [3][maxCompared + 1]int
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		least := row[0]
		for j := range len(b) {
			d := last[j]
			if a[i] != b[j] {
				d = min(last[j], row[j], last[j+1]) + 1
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, before[j-1]+1)
			}
			row[j+1] = d
			least = min(least, d)
		}
		if least > limit {
			return limit + 1
		}
		before, last, row = last, row, before
	}
	return min(last[len(b)], limit+1)
}

func sortedU64(s []uint64) []uint64 {
	slices.Sort(s)
	return s
}

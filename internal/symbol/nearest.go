package symbol

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// MaxNearest is the number of names that are suggested for one that is not known.
const MaxNearest = 5

// Nearest gives the nearest of some names.
func Nearest(name string, known []string) []string {
	return nearest(name, func(yield func(string)) {
		for _, k := range known {
			yield(k)
		}
	})
}

// DidYouMean asks for the names: `; did you mean "a" or "b"?`, "" if there are none.
func DidYouMean(names []string) string {
	var b strings.Builder
	for i, n := range names {
		switch {
		case i == 0:
			b.WriteString("; did you mean ")
		case i == len(names)-1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", n)
	}
	if len(names) > 0 {
		b.WriteString("?")
	}
	return b.String()
}

// maxCompared bounds the lengths of names that are compared by distance.
const maxCompared = 64

// nearest gives the names nearest to name: at most a third of its letters differ, or it
// differs in case only, or it begins with it.
func nearest(name string, each func(yield func(string))) []string {
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
		sort.SliceStable(best, func(i, j int) bool { return best[i].dist < best[j].dist })
		best = best[:min(len(best), MaxNearest)]
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

package interval

import "testing"

func TestRange(t *testing.T) {
	const top = ^uint64(0)
	for _, c := range []struct {
		r, o           Range
		overlap        bool
		union          Range
		first, behind  uint64 // addresses of r, and not of r
		firstContained bool
	}{
		{Range{4, 8}, Range{8, 12}, false, Range{4, 12}, 4, 8, true},
		{Range{4, 8}, Range{7, 8}, true, Range{4, 8}, 7, 3, true},
		{Range{4, 8}, Range{}, false, Range{4, 8}, 4, 0, true},
		{Range{}, Range{4, 8}, false, Range{4, 8}, 0, 4, false},
		{Range{6, 6}, Range{4, 8}, false, Range{4, 8}, 6, 4, false},
		{Range{top - 1, top}, Range{0, top}, true, Range{0, top}, top - 1, top, true},
	} {
		if got := c.r.Overlaps(c.o); got != c.overlap || c.o.Overlaps(c.r) != got {
			t.Errorf("%v, %v: overlap %t, want %t", c.r, c.o, got, c.overlap)
		}
		if got := c.r.Union(c.o); got != c.union || c.o.Union(c.r) != got {
			t.Errorf("%v, %v: union %v, want %v", c.r, c.o, got, c.union)
		}
		if c.r.Contains(c.first) != c.firstContained || c.r.Contains(c.behind) {
			t.Errorf("%v contains %d: %t, %d: %t", c.r, c.first, c.r.Contains(c.first), c.behind, c.r.Contains(c.behind))
		}
		if got := AnyContains([]Range{c.o, c.r}, c.first); got != (c.firstContained || c.o.Contains(c.first)) {
			t.Errorf("%v, %v: %d in any: %t", c.o, c.r, c.first, got)
		}
	}
}

// Package interval has ranges of addresses: of a program's memory, of a file as it was linked, of a machine's RAM.
package interval

// Range is the addresses from Start up to End, without End. The zero value is empty.
type Range struct{ Start, End uint64 }

// Contains says whether an address is in the range. It is called while all threads of this program are stopped, where the
// race detector must not be entered.
//
//go:norace
func (r Range) Contains(addr uint64) bool { return r.Start <= addr && addr < r.End }

// Overlaps says whether two ranges have an address in common.
func (r Range) Overlaps(o Range) bool { return max(r.Start, o.Start) < min(r.End, o.End) }

// Size is the number of addresses.
func (r Range) Size() uint64 { return r.End - r.Start }

// Union is the smallest range that holds both. An empty one adds nothing.
func (r Range) Union(o Range) Range {
	switch {
	case r.Start == r.End:
		return o
	case o.Start == o.End:
		return r
	}
	return Range{min(r.Start, o.Start), max(r.End, o.End)}
}

// AnyContains says whether an address is in one of the ranges, which are in any order.
func AnyContains(rs []Range, addr uint64) bool {
	for _, r := range rs { // a loop: words of thousands of stacks are looked up
		if r.Contains(addr) {
			return true
		}
	}
	return false
}

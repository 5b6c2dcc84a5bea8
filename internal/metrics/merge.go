package metrics

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Merge makes one series of those of a family that have the same labels: their sum. The buckets of a histogram are those of all.
func (s *Set) Merge() {
	for _, f := range s.order {
		at := map[string]int{}
		var all []Sample
		for _, one := range f.Samples {
			id := one.id()
			i, ok := at[id]
			if !ok {
				at[id] = len(all)
				all = append(all, one)
				continue
			}
			all[i] = all[i].plus(&one)
		}
		f.Samples = all
	}
}

// Join adds the series of another set to those of this one: where the labels are the same, their sums. It takes time for the other set's series alone. It is refused
// as Add refuses. All that is added to the set must be joined, or be there before the first Join and merged.
func (s *Set) Join(o *Set) error {
	if s.joined == nil {
		s.joined = map[*Family]map[string]int{}
	}
	for _, f := range o.order {
		if err := s.Add(Family{Name: f.Name, Help: f.Help, Unit: f.Unit, Kind: f.Kind}); err != nil {
			return err
		}
		to := s.byName[f.Name]
		at := s.joined[to]
		if at == nil {
			at = map[string]int{}
			for i := range to.Samples {
				at[to.Samples[i].id()] = i
			}
			s.joined[to] = at
		}
		for _, one := range f.Samples {
			id := one.id()
			if i, ok := at[id]; ok {
				to.Samples[i] = to.Samples[i].plus(&one)
				continue
			}
			at[id] = len(to.Samples)
			to.Samples = append(to.Samples, one)
		}
	}
	return nil
}

// id tells label sets apart.
func (s *Sample) id() string {
	var b strings.Builder
	for _, l := range s.Labels {
		b.WriteString(l.Name + strconv.Quote(l.Value))
	}
	return b.String()
}

// plus is the sum of two series.
func (s *Sample) plus(o *Sample) Sample {
	sum := Sample{Labels: s.Labels, Value: s.Value.plus(o.Value), Count: s.Count + o.Count, Buckets: sumBuckets(s.Buckets, o.Buckets)}
	if s.Sum != nil && o.Sum != nil {
		n := s.Sum.plus(*o.Sum)
		sum.Sum = &n
	}
	return sum
}

// sumBuckets sums up two lists of buckets. One that lacks a bound has as many numbers there as at its bound before.
func sumBuckets(a, b []Bucket) (out []Bucket) {
	var inA, inB uint64
	for len(a)+len(b) > 0 {
		order := 0
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = a[0].Bound.compare(b[0].Bound)
		}
		var bound Number
		if order <= 0 {
			bound, inA, a = a[0].Bound, a[0].Count, a[1:]
		}
		if order >= 0 {
			bound, inB, b = b[0].Bound, b[0].Count, b[1:]
		}
		out = append(out, Bucket{bound, inA + inB})
	}
	return out
}

// plus is a sum. Both are of one kind.
func (n Number) plus(o Number) Number {
	n.whole += o.whole
	n.seconds += o.seconds
	return n
}

// compare is that of package cmp. Both are of one kind.
func (n Number) compare(o Number) int {
	switch {
	case n.time:
		return cmp.Compare(n.seconds, o.seconds)
	case n.signed:
		return cmp.Compare(int64(n.whole), int64(o.whole))
	}
	return cmp.Compare(n.whole, o.whole)
}

// AddAll adds all series of another set. It is refused as Add refuses.
func (s *Set) AddAll(o *Set) error {
	for _, f := range o.order {
		one := *f
		one.Samples = slices.Clone(f.Samples)
		if err := s.Add(one); err != nil {
			return err
		}
	}
	return nil
}

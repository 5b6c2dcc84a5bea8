package soak

import (
	"fmt"
	"slices"
	"time"
)

// Bounds of what reduce does.
const (
	reductions   = 80
	reduceAtMost = time.Minute
)

// reduce finds few probes with which the program still writes something else.
func (s *Stage) reduce(p *plan) []*probe {
	runs, end := 0, time.Now().Add(reduceAtMost)
	fails := func(ps []*probe) bool {
		if runs++; runs > reductions || len(ps) == 0 || time.Now().After(end) {
			return false
		}
		q := *p
		q.probes = ps
		r, err := s.probed(&q)
		return err != nil || r.out.differs(s.plain) != ""
	}
	ps := slices.Clone(p.probes)
	for n := 2; n <= 2*len(ps) && runs <= reductions && time.Now().Before(end); {
		size := max(1, (len(ps)+n-1)/n)
		less := false
		for at := 0; at < len(ps); at += size {
			rest := slices.Delete(slices.Clone(ps), at, min(at+size, len(ps)))
			if fails(rest) {
				ps, less = rest, true
				n = max(2, n-1)
				break
			}
		}
		switch {
		case less:
		case size == 1:
			return ps
		default:
			n *= 2
		}
	}
	return ps
}

// fewProbes are told of.
const fewProbes = 10

// least tells of the probes that reduce leaves.
func (r *Round) least(p *plan) {
	ps := r.Stage.reduce(p)
	if len(ps) > fewProbes {
		r.Bad = append(r.Bad, fmt.Sprintf("it takes up to %d of the probes, such as", len(ps)))
		ps = ps[:fewProbes]
	}
	for _, b := range ps {
		how := ""
		if b.toggle {
			how = " (removed in the middle and added anew)"
		}
		if b.half {
			how = " (removed in the middle)"
		}
		if b.call {
			how = " (a handler is called)"
		}
		r.Bad = append(r.Bad, fmt.Sprintf("it takes %q%s, only counts: %t", b.text, how, b.count))
	}
}

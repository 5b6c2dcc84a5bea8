package records

import (
	"sort"
	"time"

	"kprobes.dev/kprobes/internal/hit"
)

// earlyHits are hits of probes that are held from outside. They can be read at once, while the ring's
// records of the same time are held back by its reader: they wait until those have been given out.
type earlyHits struct {
	hits  []earlyHit // in the order of their times
	given int        // how many were given out since taken was called
}

type earlyHit struct {
	hit.Hit
	read time.Time
}

// add takes hits that have been read now.
func (e *earlyHits) add(hits []hit.Hit, now time.Time) {
	if len(hits) == 0 {
		return
	}
	for _, h := range hits {
		e.hits = append(e.hits, earlyHit{h, now})
	}
	sort.SliceStable(e.hits, func(i, j int) bool { return e.hits[i].Nanos < e.hits[j].Nanos })
}

// give gives out the hits up to a time.
func (e *earlyHits) give(nanos uint64, f func(*hit.Hit)) {
	n := 0
	for ; n < len(e.hits) && e.hits[n].Nanos <= nanos; n++ {
		f(&e.hits[n].Hit)
	}
	e.hits = e.hits[n:]
	e.given += n
}

// limit is the time up to which hits may be given out once the ring's records up to the tick until
// have been. Where the records' clock can not be read here a hit waits for as long as they do.
func (e *earlyHits) limit(k clock, until uint64) (nanos uint64) {
	switch _, own := k.(*ownClock); {
	case len(e.hits) == 0 || until == 0 && !own:
		return 0
	case !own:
		return k.nanos(until, 0)
	}
	for i := range e.hits {
		if time.Since(e.hits[i].read) >= holdRecords {
			nanos = e.hits[i].Nanos
		}
	}
	return nanos
}

// taken is how many hits were given out since it was called last.
func (e *earlyHits) taken() (n int) {
	n, e.given = e.given, 0
	if len(e.hits) == 0 {
		e.hits = nil
	}
	return n
}

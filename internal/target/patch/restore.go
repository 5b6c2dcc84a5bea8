package patch

import (
	"slices"
	"sort"
)

// Entry is a site as the control block tells of it.
type Entry struct {
	Addr        uint64
	Orig, Patch []byte // of the same length
}

// Write is a run of bytes to be written: what stands there, and what is to.
type Write struct {
	Addr     uint64
	Old, New []byte
}

// A table of sites that a killed tracer has left may tell of more than stands there: of a patch
// that was not written yet, of one that another has replaced, of both. All entries agree about
// the original bytes. So each byte that entries cover is either the original's, or that of one
// of the patches; a byte that is neither is somebody else's.

// covered is a run of bytes that entries of sites cover, which overlap each other.
type covered struct {
	addr  uint64
	orig  []byte
	ours  [][]byte // what patches have at each byte
	sites []Entry
}

// coveredBy joins entries that overlap.
func coveredBy(sites []Entry) []*covered {
	sorted := slices.Clone(sites)
	sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].Addr < sorted[j].Addr })
	var out []*covered
	for _, s := range sorted {
		n := len(out)
		if n == 0 || s.Addr >= out[n-1].addr+uint64(len(out[n-1].orig)) {
			out = append(out, &covered{addr: s.Addr})
			n++
		}
		r := out[n-1]
		r.sites = append(r.sites, s)
		off := int(s.Addr - r.addr)
		for i := range s.Patch {
			if off+i == len(r.orig) {
				r.orig, r.ours = append(r.orig, s.Orig[i]), append(r.ours, nil)
			}
			r.ours[off+i] = append(r.ours[off+i], s.Patch[i])
		}
	}
	return out
}

// explained says whether the bytes that stand there are the originals and ours.
func (r *covered) explained(have []byte) bool {
	for i, b := range have {
		if b != r.orig[i] && !slices.Contains(r.ours[i], b) {
			return false
		}
	}
	return true
}

// Restore tells what is to be written to restore the sites. read gives the bytes that stand
// at an address now; where it fails nothing is left to restore. foreign are the sites over which
// somebody else has written.
func Restore(sites []Entry, read func(addr uint64, b []byte) error) (ws []Write, restored int, foreign []uint64) {
	for _, r := range coveredBy(sites) {
		have := make([]byte, len(r.orig))
		switch {
		case read(r.addr, have) != nil || slices.Equal(have, r.orig):
		case r.explained(have):
			ws = append(ws, Write{r.addr, have, r.orig})
			restored += r.standing(have)
		default:
			for _, s := range r.sites {
				foreign = append(foreign, s.Addr)
			}
		}
	}
	return ws, restored, slices.Compact(foreign)
}

// standing counts the sites whose patch stands there.
func (r *covered) standing(have []byte) int {
	n := 0
	for _, s := range r.sites {
		if off := s.Addr - r.addr; slices.Equal(have[off:off+uint64(len(s.Patch))], s.Patch) {
			n++
		}
	}
	return n
}

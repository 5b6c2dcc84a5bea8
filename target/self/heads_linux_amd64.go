package self

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sort"

	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/target"
)

// What our handlers look faults up in is in pieces, so that a change writes those anew that its sites belong to, and
// not all of them: one more probe costs the same whatever else is armed. A directory tells the pieces.

// A piece that has got longer than maxPiece is divided into ones of half of that.
const maxPiece = 128

// faultPiece is the table of faults of neighbouring detours. It does not change.
type faultPiece struct {
	sites []*target.Site // sorted by byDetour, at least one
	table table
	n     int // entries of the table
	traps int // sites that are breakpoints
}

// heads are the control block's tables of sites.
type heads struct {
	pieces    []*faultPiece // sorted, all that are told of
	fresh     []*faultPiece // of them, those that the heads before did not have
	stale     []*faultPiece // that the heads before had, and these have not
	directory table
	traps     table
	words     [4]uint64 // that name directory and traps, in the control block
}

// newHeads makes the tables of the sites that there are and that are to come with a change. They
// replace those in use once the words are written. What is dead is told of no more.
func (t *Target) newHeads(c *target.Change) (h *heads, err error) {
	h = &heads{}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.drop())
			h = nil
		}
	}()
	if err := h.divide(t.control.heads.pieces, c.Add, t.dead); err != nil {
		return h, err
	}
	n := len(h.pieces)
	if attachedLines != nil {
		n, err = attachedLines.directory(h)
	} else {
		h.directory, err = newTable(n*amd64.FaultEntrySize, h.write)
	}
	if err != nil {
		return h, err
	}
	traps := trapsOf(h.pieces, slices.Concat(c.Remove, t.zombie))
	if h.traps, err = newTable(len(traps), func(to []byte) { copy(to, traps) }); err != nil {
		return h, err
	}
	h.words = [4]uint64{h.directory.addr, uint64(n), h.traps.addr, uint64(len(traps) / amd64.TrapEntrySize)}
	return h, nil
}

// write writes the directory.
func (h *heads) write(to []byte) {
	to = to[:0]
	for _, p := range h.pieces {
		to = le.AppendUint64(to, p.sites[0].Detour.Addr)
		to = le.AppendUint64(to, math.MaxUint64)
		to = le.AppendUint64(to, p.table.addr)
		to = le.AppendUint64(to, uint64(p.n))
	}
}

// divide makes the pieces: those that there were, but where sites come or have died.
func (h *heads) divide(old []*faultPiece, add, dead []*target.Site) error {
	add, dead = slices.SortedFunc(slices.Values(add), byDetour), slices.SortedFunc(slices.Values(dead), byDetour)
	if len(old) > 8 && len(old) > 8*sitesOf(old, add, dead)/maxPiece { // many have become small: all sites in one go
		for _, p := range old {
			add = append(add, p.sites...)
		}
		add = without(add, dead)
		slices.SortFunc(add, byDetour)
		h.stale, old, dead = old, nil, nil
	}
	for i := range max(len(old), 1) {
		end := uint64(math.MaxUint64) // of the addresses that belong to the piece
		if i+1 < len(old) {
			end = old[i+1].sites[0].Detour.Addr
		}
		var come, gone []*target.Site
		come, add = before(add, end)
		gone, dead = before(dead, end)
		if len(come)+len(gone) == 0 {
			h.pieces = append(h.pieces, old[min(i, len(old)):min(i+1, len(old))]...)
			continue
		}
		var sites []*target.Site
		if i < len(old) {
			h.stale = append(h.stale, old[i])
			sites = without(old[i].sites, gone)
		}
		sites = slices.Concat(sites, come)
		slices.SortFunc(sites, byDetour)
		if err := h.add(sites); err != nil {
			return err
		}
	}
	return nil
}

// sitesOf counts the sites that there will be.
func sitesOf(ps []*faultPiece, add, dead []*target.Site) int {
	n := len(add) - len(dead)
	for _, p := range ps {
		n += len(p.sites)
	}
	return n
}

// before divides sites by the address of their detours.
func before(sites []*target.Site, end uint64) (lower, rest []*target.Site) {
	n := sort.Search(len(sites), func(i int) bool { return sites[i].Detour.Addr >= end })
	return sites[:n], sites[n:]
}

// without gives a copy of sites without some of them.
func without(sites, gone []*target.Site) []*target.Site {
	is := make(map[*target.Site]bool, len(gone))
	for _, s := range gone {
		is[s] = true
	}
	return slices.DeleteFunc(slices.Clone(sites), func(s *target.Site) bool { return is[s] })
}

// add makes pieces of sorted sites.
func (h *heads) add(sites []*target.Site) error {
	size := maxPiece
	if len(sites) > maxPiece {
		size = maxPiece / 2
	}
	for part := range slices.Chunk(sites, size) {
		p := &faultPiece{sites: part}
		for _, s := range part {
			p.n += len(s.Detour.Fixups) + len(s.Detour.Pairs)
			if s.Trap {
				p.traps++
			}
		}
		var err error
		if p.table, err = newTable(p.n*amd64.FaultEntrySize, func(to []byte) { appendFaults(to[:0], part) }); err != nil {
			return err
		}
		h.pieces, h.fresh = append(h.pieces, p), append(h.fresh, p)
	}
	return nil
}

// drop gives back what was made of heads that are not used, if there are any.
func (h *heads) drop() error {
	if h == nil {
		return nil
	}
	return errors.Join(unmapPieces(h.fresh), h.directory.unmap(), h.traps.unmap())
}

// replaced gives back what others have taken the place of, which are in use.
func (h *heads) replaced(by *heads) error {
	err := errors.Join(unmapPieces(by.stale), h.directory.unmap(), h.traps.unmap())
	by.fresh, by.stale = nil, nil
	return err
}

// unmapAll gives everything back.
func (h *heads) unmapAll() error {
	return errors.Join(unmapPieces(h.pieces), h.directory.unmap(), h.traps.unmap())
}

func unmapPieces(ps []*faultPiece) error {
	var errs []error
	for _, p := range ps {
		errs = append(errs, p.table.unmap())
	}
	return errors.Join(errs...)
}

// appendFaults appends the table of the loads and the displaced instructions of sites, sorted.
// Detours do not overlap, so those of one site stand together.
func appendFaults(out []byte, sites []*target.Site) []byte {
	var es []amd64.FaultEntry
	for _, s := range sites {
		es = amd64.AppendFaultEntries(es[:0], s.Detour)
		if !slices.IsSortedFunc(es, func(a, b amd64.FaultEntry) int { return cmp.Compare(a.Lo, b.Lo) }) {
			sort.Slice(es, func(i, j int) bool { return es[i].Lo < es[j].Lo }) // less code in the program than slices.SortFunc of them
		}
		for i := range es {
			out = es[i].Append(out)
		}
	}
	return out
}

// trapsOf makes the table of breakpoints, sorted by address; those in gone are none any more.
func trapsOf(live []*faultPiece, gone []*target.Site) []byte {
	var sites []*target.Site
	for _, p := range live {
		if p.traps == 0 {
			continue
		}
		for _, s := range p.sites {
			if s.Trap && !slices.Contains(gone, s) {
				sites = append(sites, s)
			}
		}
	}
	sort.Slice(sites, func(i, j int) bool { return sites[i].Addr < sites[j].Addr })
	var b []byte
	for _, s := range sites {
		b = le.AppendUint64(b, s.Addr)
		b = le.AppendUint64(b, s.Detour.Addr)
	}
	return b
}

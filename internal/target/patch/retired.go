package patch

import (
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
)

// Retired are the detours of sites that were taken out. A detour keeps its room as long as a thread is in it, or may come
// back to it.
type Retired struct {
	sites []*target.Site // in the order of their detours
	rooms []room
	all   interval.Range
}

// room is where a detour stands.
type room struct {
	interval.Range
	busy bool
}

// NewRetired prepares a look at detours, which do not overlap.
func NewRetired(sites []*target.Site) *Retired {
	r := &Retired{sites: sorted(sites, detourOf), rooms: make([]room, len(sites))}
	for i, s := range r.sites {
		r.rooms[i].Range = roomOf(s)
		r.all = r.all.Union(r.rooms[i].Range)
	}
	return r
}

// Begin forgets what an earlier look has marked.
//
//go:norace
func (r *Retired) Begin() {
	for i := range r.rooms {
		r.rooms[i].busy = false
	}
}

// Mark notes that a thread is at an address, or will come back to it. It allocates nothing.
//
//go:norace
func (r *Retired) Mark(at uint64) {
	if !r.all.Contains(at) {
		return
	}
	lo, hi := 0, len(r.rooms)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); r.rooms[mid].End <= at {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(r.rooms) && r.rooms[lo].Start <= at {
		r.rooms[lo].busy = true
	}
}

// Busy says whether a thread was found in any of the detours.
//
//go:norace
func (r *Retired) Busy() bool {
	for i := range r.rooms {
		if r.rooms[i].busy {
			return true
		}
	}
	return false
}

// Split tells which detours are in use, and which can be freed.
func (r *Retired) Split() (busy, free []*target.Site) {
	for i, s := range r.sites {
		if r.rooms[i].busy {
			busy = append(busy, s)
		} else {
			free = append(free, s)
		}
	}
	return busy, free
}

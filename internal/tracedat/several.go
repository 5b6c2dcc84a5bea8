package tracedat

import (
	"slices"
	"sort"

	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/interval"
)

// A file has one table of symbols, and in each of several processes another function lies at an address. So the file has an address for each
// symbol, and the places, callers and symbols in records are changed to these, and readers need not know that. It is the address that the
// symbol has in the process that showed it first, if no other symbol of the file lies there, else one that no process can have.

// HitOf records a hit of one of several targets, which names are the names of. It returns what Hit does.
func (r *Recorder) HitOf(names hit.Namer, h *hit.Hit) error {
	if r.from.names != names || r.from == &r.one {
		s := r.several[names]
		if s == nil {
			if r.several == nil {
				r.several = map[hit.Namer]*source{}
			}
			s = &source{names: names}
			r.several[names] = s
		}
		r.from, r.packer.Names = s, names
	}
	return r.Hit(h)
}

// Forget forgets what is known of a target of which no hit follows. The file keeps all that was recorded.
func (r *Recorder) Forget(names hit.Namer) {
	s := r.several[names]
	if s == nil {
		return
	}
	for _, e := range s.events {
		r.packer.Forget(e)
	}
	delete(r.several, names)
	if r.from == s {
		r.from, r.packer.Names = &r.one, r.one.names
	}
}

const (
	// firstPlace is where symbols lie in the file whose own address another one has: no process has memory there (Linux gives a process of
	// x86-64 addresses below 1<<56, of arm64 below 1<<52).
	firstPlace = 1 << 57
	// nameless is set in addresses of several processes for which the table has no room.
	nameless = 1 << 58
	// unsized is how many bytes a symbol has that does not tell, and the most that one is believed to have.
	unsized = 1 << 24
	// farthest bounds how far behind its start a symbol has an address.
	farthest = 1 << 32
)

// nameless is what stands for an address without a name.
func (r *Recorder) nameless(addr uint64) uint64 {
	if r.from == &r.one {
		return addr
	}
	return addr | nameless
}

// places are where the symbols of several processes lie in the file.
type places struct {
	of    map[placed]uint64
	taken []interval.Range // in the order of their addresses
	next  uint64           // bytes behind firstPlace that are taken
}

// placed is a symbol as a reader sees it: those that look the same are one.
type placed struct {
	name, module string
	size         uint64
}

// at gives the address in the file of what lies at addr in a process, which is in s.
func (p *places) at(s *fetch.Sym, addr uint64) uint64 {
	key := placed{s.Name, s.Module, s.Size}
	start, ok := p.of[key]
	if ok {
		return start + s.Off
	}
	size := min(s.Size, unsized)
	if size <= s.Off {
		size = s.Off + unsized
	}
	start = addr - s.Off
	i := sort.Search(len(p.taken), func(i int) bool { return p.taken[i].End > start })
	if i < len(p.taken) && p.taken[i].Start < start+size || start > firstPlace-size {
		start = firstPlace + p.next
		p.next += size
		i = len(p.taken)
	}
	p.taken = slices.Insert(p.taken, i, interval.Range{Start: start, End: start + size})
	if p.of == nil {
		p.of = map[placed]uint64{}
	}
	p.of[key] = start
	return start + s.Off
}

package patch

import (
	"bytes"
	"cmp"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// Breakpoint is the instruction that kernel uprobes and debuggers write into a program. It is not to be changed.
var Breakpoint = []byte{native.Breakpoint}

// Run is a run of bytes that a change writes at once: of one site, or of several that lie next to each other.
//
// Whoever applies the change reads Have, calls Resolve, and writes New if Changed. Resolve allocates nothing: Have and New are
// there before the threads stop.
type Run struct {
	Addr  uint64
	Have  []byte // what stands there
	New   []byte // what is to stand there
	edits []edit // what is taken out, then what comes
}

// edit is what a change does to the bytes of one site.
type edit struct {
	site *target.Site
	add  bool
	left bool // somebody else has written over the patch: it is not taken out
}

// Span is how far the sites of a Run may be apart.
type Span uint64

// Joined puts sites into one run only if they share bytes or touch.
const Joined Span = 1

// Runs lists what a change writes, in the order of the addresses. Sites that lie in the same block of span bytes (a page, say)
// are in one run. An error says that two new patches share a byte.
func Runs(add, remove []*target.Site, span Span) ([]Run, error) {
	edits := editsOf(add, remove)
	if err := apart(edits); err != nil {
		return nil, err
	}
	runs := make([]Run, 0, len(edits))
	size := uint64(0)
	for len(edits) > 0 {
		lo := edits[0].site.Addr
		n, hi := 1, edits[0].end()
		for n < len(edits) && (edits[n].site.Addr < hi || edits[n].site.Addr/uint64(span) == lo/uint64(span) || span == Joined && edits[n].site.Addr == hi) {
			hi = max(hi, edits[n].end())
			n++
		}
		runs = append(runs, Run{Addr: lo, edits: edits[:n:n]})
		size += hi - lo
		edits = edits[n:]
	}
	room := make([]byte, 2*size)
	for i := range runs {
		r := &runs[i]
		sortStable(r.edits, func(a, b edit) int { return cmp.Compare(order(a), order(b)) })
		n := r.size()
		r.Have, r.New, room = room[:n:n], room[n:2*n:2*n], room[2*n:]
	}
	return runs, nil
}

// editsOf lists what is taken out and what comes, in the order of the addresses.
func editsOf(add, remove []*target.Site) []edit {
	add, remove = sorted(add, addrOf), sorted(remove, addrOf)
	edits := make([]edit, 0, len(remove)+len(add))
	for len(add)+len(remove) > 0 {
		if len(add) == 0 || len(remove) > 0 && remove[0].Addr <= add[0].Addr {
			edits, remove = append(edits, edit{site: remove[0]}), remove[1:]
		} else {
			edits, add = append(edits, edit{site: add[0], add: true}), add[1:]
		}
	}
	return edits
}

// order puts what is taken out before what comes.
func order(e edit) int {
	if e.add {
		return 1
	}
	return 0
}

func (e *edit) end() uint64 { return e.site.Addr + uint64(len(e.site.Patch)) }

func (r *Run) size() int {
	end := r.Addr
	for i := range r.edits {
		end = max(end, r.edits[i].end())
	}
	return int(end - r.Addr)
}

// apart makes sure that no two new patches share a byte.
func apart(edits []edit) error {
	var last *target.Site
	for _, e := range edits {
		if !e.add {
			continue
		}
		if s := e.site; last != nil && s.Addr-last.Addr < uint64(len(last.Patch)) {
			return errno.Errorf(unix.EBUSY, "the patches at 0x%x and 0x%x, of two functions, overlap: leave out one of them", last.Addr, s.Addr)
		}
		last = e.site
	}
	return nil
}

// Adds says whether a site of the run is new.
func (r *Run) Adds() bool { return len(r.edits) > 0 && r.edits[len(r.edits)-1].add }

// Changed says whether there is something to write.
//
//go:norace
func (r *Run) Changed() bool {
	for i := range r.New {
		if r.New[i] != r.Have[i] {
			return true
		}
	}
	return false
}

// Resolve works out New from Have. The result is a new site that must not be written, nil if all may be: where it is to
// stand are other bytes than the program's own. A site that is taken out, and that somebody else has written over,
// stays as it is (Left); breakpoint, if there is one, is the instruction that others may have written among the bytes of a
// patch: it stays, and its owner takes it out.
//
// Of several sites that are taken out at one place only the last one stands: the others were left to somebody else before.
//
//go:norace
func (r *Run) Resolve(breakpoint []byte) *target.Site {
	for i := range r.New {
		r.New[i] = r.Have[i]
	}
	for i := len(r.edits) - 1; i >= 0; i-- {
		if e := &r.edits[i]; !e.add {
			e.left = !takeOut(e.site, r.at(e), breakpoint)
		}
	}
	for i := range r.edits {
		e := &r.edits[i]
		if !e.add {
			continue
		}
		to := r.at(e)
		for n := range to {
			if to[n] != e.site.Orig[n] {
				return e.site
			}
		}
		for n := range to {
			to[n] = e.site.Patch[n]
		}
	}
	return nil
}

// at is the part of New that an edit is about.
//
//go:norace
func (r *Run) at(e *edit) []byte {
	off := int(e.site.Addr - r.Addr)
	return r.New[off : off+len(e.site.Patch)]
}

// Left gives f the sites that were not taken out since somebody else has written over them.
func (r *Run) Left(f func(s *target.Site)) {
	for i := range r.edits {
		if r.edits[i].left {
			f(r.edits[i].site)
		}
	}
}

// Foreign says that where a site is to stand are other bytes than the program's own: why must be in the chain.
func (r *Run) Foreign(s *target.Site, why error) error {
	off := int(s.Addr - r.Addr)
	return errno.Errorf(unix.EBUSY, "0x%x holds % x, not % x: %w", s.Addr, r.Have[off:off+len(s.Patch)], s.Orig, why)
}

// Without gives what is to stand at the site once its patch is taken out, where have stands now: the
// program's own bytes, and breakpoints that somebody else has put among those of the patch, which their owner takes out.
// ok is false where there are other bytes than these: then all is somebody else's, for one of his instructions
// may have bytes in common with the patch.
func Without(s *target.Site, have, breakpoint []byte) (want []byte, ok bool) {
	want = bytes.Clone(have)
	if !takeOut(s, want, breakpoint) {
		return nil, false
	}
	return want, true
}

// takeOut does what Without does in b itself, or leaves it as it is.
//
//go:norace
func takeOut(s *target.Site, b, breakpoint []byte) bool {
	for i := 0; i < len(b); i++ {
		if n := others(s, b, i, breakpoint); n > 0 {
			i += n - 1
		} else if b[i] != s.Patch[i] && b[i] != s.Orig[i] {
			return false
		}
	}
	for i := 0; i < len(b); i++ {
		if n := others(s, b, i, breakpoint); n > 0 {
			i += n - 1
		} else {
			b[i] = s.Orig[i]
		}
	}
	return true
}

// others gives the length of a breakpoint at b[i] that is not the patch's; 0: there is none.
//
//go:norace
func others(s *target.Site, b []byte, i int, breakpoint []byte) int {
	if i+len(breakpoint) > len(b) {
		return 0
	}
	ours := true
	for n := range breakpoint {
		if b[i+n] != breakpoint[n] {
			return 0
		}
		ours = ours && b[i+n] == s.Patch[i+n]
	}
	if ours {
		return 0
	}
	return len(breakpoint)
}

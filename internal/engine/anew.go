package engine

import (
	"bytes"
	"slices"
	"time"

	"kprobes.dev/kprobes/internal/target"
)

// A patch can go without a word: an object is unmapped and mapped again at the same address between two looks at
// what is mapped, the program throws pages away (MADV_DONTNEED), or somebody puts the file's bytes back. Then the
// program's own bytes stand there. Any thread may run these, stand among them, or be in the detour still; calls of
// return probes go on. That is what a debugger leaves for which all patches were taken out (yield), and functions
// are armed anew as when it goes: in one stop their old sites are removed, where their bytes are back already, and new
// ones come. The change looks for threads among the bytes and in the old detours, whose room stays taken as long
// as a thread is there. If the tracer is killed before, the entries tell of patches that do not stand, which whoever
// restores passes over.

// How often a function is armed anew, so that somebody else who insists on the program's bytes gets them.
const (
	anewMost  = 5
	anewReset = time.Minute // a function whose patches stood so long begins anew to count
)

// unpatched says whether the program's own bytes stand at a site.
func unpatched(t target.Target, s *target.Site) bool {
	have := make([]byte, len(s.Patch))
	return t.Read(s.Addr, have) == nil && bytes.Equal(have, s.Orig[:min(len(s.Orig), len(have))])
}

// lostOf gives the functions whose patches are gone and which are to be armed anew, and the sites of those for which
// that was done too often. What waits for a thread the optimiser arms.
func (c *Core) lostOf(lost []watched) (fns []*function, spent []watched) {
	if c.debugged() {
		return nil, nil // a debugger's: yield follows
	}
	seen := map[*function]bool{}
	for _, w := range lost {
		f := w.f
		if seen[f] || c.queue.Get(f) != nil || !slices.ContainsFunc(f.events, func(e *Event) bool { return !e.idle() }) {
			continue
		}
		seen[f] = true
		if time.Since(f.lost.last) >= anewReset {
			f.lost.n = 0
		}
		f.lost.n, f.lost.last = f.lost.n+1, time.Now()
		if f.lost.n > anewMost {
			spent = append(spent, w)
			continue
		}
		fns = append(fns, f)
	}
	return fns, spent
}

// rearm arms functions again whose patches are gone.
func (c *Core) rearm(fns []*function) error {
	fns = slices.DeleteFunc(fns, func(f *function) bool { return c.fns[f.Start] != f || len(f.sites) == 0 }) // what endWritten took out
	if len(fns) == 0 {
		return nil
	}
	for _, f := range fns {
		for _, s := range f.serving {
			if !s.e.byStub { // its returns were seen: the table of stubs is not in the program's text
				s.e.lapse()
			}
		}
	}
	return c.update(fns, stopping{})
}

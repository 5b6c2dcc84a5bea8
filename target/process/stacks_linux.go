package process

import (
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// scanStacks gives what the threads' stacks hold, from a red zone below the stack pointer to the end, and
// the goroutines' stacks in a Go program, piece by piece. Pieces begin at addresses of words.
func (t *Target) scanStacks(s *ptrace.Stopped, f func(tid int, at uint64, b []byte) error) error {
	all := s.Everyone()
	stacks, err := s.LiveStacks(all, t.golang != nil)
	if err != nil {
		return err
	}
	if err := s.ReadRanges(stacks, func(i int, at uint64, b []byte) error { return f(all[i].TID, at, b) }); err != nil || t.golang == nil {
		return err
	}
	var others []interval.Range
	err = t.golang.stacks(s, func(lo, hi uint64) error {
		others = append(others, interval.Range{Start: lo, End: max(lo, hi)})
		return nil
	})
	if err != nil {
		return err
	}
	return s.ReadRanges(others, func(_ int, at uint64, b []byte) error { return f(0, at, b) })
}

// savedContexts gives the addresses in our mappings that signal frames on the threads'
// stacks return to: saved instruction pointers, and return addresses into what ends a
// handler. Those are all the ways back into a detour: calls in one push the original's
// return address. Other words are what earlier frames have left, and would keep a detour
// for as long as a thread sleeps above them. A context in the gate has the way back in a
// register.
func (t *Target) savedContexts(s *ptrace.Stopped, goProgram bool, f func(v uint64)) error {
	return t.contexts(s, goProgram, func(_ *ptrace.Thread, _, v uint64) { f(v) })
}

// contexts is savedContexts with the thread and the place of each word. A frame that is in use begins at the stack pointer or above it, or a word below
// where it is about to be left: what else lies in the red zone is of one that was.
func (t *Target) contexts(s *ptrace.Stopped, goProgram bool, f func(th *ptrace.Thread, at, v uint64)) error {
	maps, err := s.FileMaps()
	if err != nil {
		return err
	}
	in := ourRanges(maps)
	if len(in) == 0 {
		return nil
	}
	lo, hi := in[0].Start, in[len(in)-1].End
	all := s.Everyone()
	stacks, err := s.LiveStacks(all, goProgram)
	if err != nil {
		return err
	}
	return s.ReadRanges(stacks, func(i int, at uint64, b []byte) error {
		for n := 0; n+8 <= len(b); n += 8 {
			if v := le.Uint64(b[n:]); v-lo < hi-lo && interval.AnyContains(in, v) && at+uint64(n)+8 >= all[i].SP() {
				t.context(all[i], at+uint64(n), v, f)
			}
		}
		return nil
	})
}

// context gives f the address v in a mapping of the tracer's that the word at at holds, if a signal frame returns there.
func (t *Target) context(th *ptrace.Thread, at, v uint64, f func(th *ptrace.Thread, at, v uint64)) {
	if !t.p.InFrame(at) {
		return
	}
	f(th, at, v)
	if !t.inGate(v) {
		return
	}
	if r, err := t.p.SavedRegs(at); err == nil {
		f(th, at, t.gateGoesTo(v, r))
	}
}

// ourRanges is where our mappings lie: as few ranges as there can be, for each word of thousands of stacks is
// looked for there.
func ourRanges(maps []procfs.Map) (in []interval.Range) {
	for _, m := range maps {
		switch n := len(in); {
		case !ours(m):
		case n > 0 && in[n-1].End == m.Start:
			in[n-1].End = m.End
		default:
			in = append(in, interval.Range{Start: m.Start, End: m.End})
		}
	}
	return in
}

// scanWords gives the words from lo to hi to f, or those up to the first page that can not be read:
// guard pages between stacks may be part of one mapping with them (MADV_GUARD_INSTALL, Linux 6.13;
// the C library from 2.42 on).
func (t *Target) scanWords(lo, hi uint64, f func(at, v uint64) error) error {
	buf := make([]byte, min(scanPiece, max(lo, hi)-lo))
	return t.p.ReadPieces(interval.Range{Start: lo, End: max(lo, hi)}, buf, func(at uint64, b []byte) error {
		for i := 0; i+8 <= len(b); i += 8 {
			if err := f(at+uint64(i), le.Uint64(b[i:])); err != nil {
				return err
			}
		}
		return nil
	})
}

// scanPiece is how much scanWords reads at once, at most.
const scanPiece = 64 << 10

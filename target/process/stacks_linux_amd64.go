package process

import (
	"kprobes.dev/kprobes/internal/procfs"
)

// Bounds of what is read of one stack. A stack in a mapping larger than maxStack is not
// a thread's own (a goroutine's, a fiber's): its owner must say where it ends.
const (
	maxStack  = 64 << 20
	stackView = 256 << 10
)

// scanStacks gives what the threads' stacks hold, from a red zone below the stack pointer to the end, and
// the goroutines' stacks in a Go program, piece by piece. Pieces begin at addresses of words.
func (t *Target) scanStacks(s *Stopped, f func(tid int, at uint64, b []byte) error) error {
	all := s.everyone()
	stacks, err := s.liveStacks(all, t.golang != nil)
	if err != nil {
		return err
	}
	if err := s.readRanges(stacks, func(i int, at uint64, b []byte) error { return f(all[i].TID, at, b) }); err != nil || t.golang == nil {
		return err
	}
	var others []procfs.Range
	err = t.golang.stacks(s, func(lo, hi uint64) error {
		others = append(others, procfs.Range{Lo: lo, Hi: max(lo, hi)})
		return nil
	})
	if err != nil {
		return err
	}
	return s.readRanges(others, func(_ int, at uint64, b []byte) error { return f(0, at, b) })
}

// savedContexts gives the addresses in our mappings that signal frames on the threads'
// stacks return to: saved instruction pointers, and return addresses into what ends a
// handler. Those are all the ways back into a detour: calls in one push the original's
// return address. Other words are what earlier frames have left, and would keep a detour
// for as long as a thread sleeps above them. A context in the gate has the way back in a
// register.
func (t *Target) savedContexts(s *Stopped, goProgram bool, f func(v uint64)) error {
	return t.contexts(s, goProgram, func(_ *Thread, _, v uint64) { f(v) })
}

// contexts is savedContexts with the thread and the place of each word.
func (t *Target) contexts(s *Stopped, goProgram bool, f func(th *Thread, at, v uint64)) error {
	maps, err := s.FileMaps()
	if err != nil {
		return err
	}
	in := ourRanges(maps)
	if len(in) == 0 {
		return nil
	}
	lo, hi := in[0].Lo, in[len(in)-1].Hi
	all := s.everyone()
	stacks, err := s.liveStacks(all, goProgram)
	if err != nil {
		return err
	}
	return s.readRanges(stacks, func(i int, at uint64, b []byte) error {
		for n := 0; n+8 <= len(b); n += 8 {
			if v := le.Uint64(b[n:]); v-lo < hi-lo && holds(in, v) {
				t.context(all[i], at+uint64(n), v, f)
			}
		}
		return nil
	})
}

// context gives f the address v in a mapping of ours that the word at at holds, if a signal frame returns there.
func (t *Target) context(th *Thread, at, v uint64, f func(th *Thread, at, v uint64)) {
	if !t.inFrame(at) {
		return
	}
	f(th, at, v)
	var b [scCS]byte
	if t.inGate(v) && t.p.ReadMem(at-scRIP, b[:]) == nil {
		f(th, at, t.gateGoesTo(v, le.Uint64(b[scR13:]), le.Uint64(b[scRSP:])))
	}
}

// ourRanges is where our mappings lie: as few ranges as there can be, for each word of thousands of stacks is
// looked for there.
func ourRanges(maps []procfs.Map) (in []procfs.Range) {
	for _, m := range maps {
		switch n := len(in); {
		case !ours(m):
		case n > 0 && in[n-1].Hi == m.Start:
			in[n-1].Hi = m.End
		default:
			in = append(in, procfs.Range{Lo: m.Start, Hi: m.End})
		}
	}
	return in
}

// inFrame says whether the word at at is a signal frame's saved instruction pointer or its
// return address: the saved code segment tells.
func (t *Target) inFrame(at uint64) bool {
	for _, cs := range []uint64{at + scCS - scRIP, at + 8 + scOffset + scCS} {
		var b [2]byte
		if t.p.ReadMem(cs, b[:]) == nil && le.Uint16(b[:]) == userCS {
			return true
		}
	}
	return false
}

// Offsets in struct sigcontext (asm/sigcontext.h).
const (
	scR13 = 40
	scRIP = 128
	scCS  = 144
)

// liveStack is the used part of a thread's stack. In a Go program that is an alternate
// stack that a handler runs on, or nothing: addresses of detours stand nowhere else that
// counts (all handlers run there, and goroutines are not preempted in code that the runtime
// does not know), and most other stacks lie in the heap, among dead ones.
func (s *Stopped) liveStack(th *Thread, goProgram bool) (lo, hi uint64, err error) {
	m, ok, err := s.mapAt(th.regs.RSP)
	if !ok || err != nil {
		return 0, 0, err
	}
	lo, hi = stackIn(m, th.regs.RSP)
	if !goProgram {
		return lo, hi, nil
	}
	alt, on := s.altStack(m, th.regs.RSP)
	if !on {
		return 0, 0, nil
	}
	return lo, min(hi, alt.Hi), nil
}

// liveStacks is liveStack of several threads.
func (s *Stopped) liveStacks(threads []*Thread, goProgram bool) ([]procfs.Range, error) {
	out := make([]procfs.Range, len(threads))
	for i, th := range threads {
		lo, hi, err := s.liveStack(th, goProgram)
		if err != nil {
			return nil, err
		}
		out[i] = procfs.Range{Lo: lo, Hi: max(lo, hi)}
	}
	return out, nil
}

// stackIn is the used part of the stack that sp is in, and that lies in m.
func stackIn(m procfs.Map, sp uint64) (lo, hi uint64) {
	lo, hi = max(sp-128, m.Start)&^7, m.End
	if m.Size() > maxStack {
		hi = min(hi, sp+stackView)
	}
	return lo, hi
}

// scanWords gives the words from lo to hi to f, or those up to the first page that can not be read:
// guard pages between stacks may be part of one mapping with them (MADV_GUARD_INSTALL, Linux 6.13;
// the C library from 2.42 on).
func (t *Target) scanWords(lo, hi uint64, f func(at, v uint64) error) error {
	buf := make([]byte, min(scanPiece, max(lo, hi)-lo))
	return t.p.readPieces(procfs.Range{Lo: lo, Hi: max(lo, hi)}, buf, func(at uint64, b []byte) error {
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

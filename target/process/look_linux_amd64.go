package process

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/room"
	"kprobes.dev/kprobes/target"
)

// look is what the stopped threads mean for a change.
type look struct {
	moves []threadMove
}

type threadMove struct {
	th   *Thread
	regs Regs
}

// move sets the instruction pointers of the threads that stand in bytes that changed.
func (l *look) move() error {
	for _, m := range l.moves {
		if err := m.th.SetRegs(m.regs); err != nil {
			return err
		}
	}
	return nil
}

// look finds out where every thread stands. It fails with ErrBlocked if one stands, or
// may come back to, where the change would harm it. Precondition: the world is stopped.
func (t *Target) look(s *Stopped, c *target.Change) (*look, error) {
	if len(c.Add) > 0 && t.faults.settled(s) != nil {
		return nil, errno.Errorf(unix.EBUSY, "a thread has yet to take the signal of a breakpoint: %w", ErrBlocked)
	}
	inner := innerOf(c.Add)
	begins, copies := landings(c.Add)
	leave := t.leave(c, inner)
	back := backOf(leave)
	l := &look{}
	for _, th := range s.Threads() {
		pc := th.ResumeRIP()
		if t.inGate(pc) && len(c.Add) > 0 && siteAround(leave, th.regs.R13) != nil {
			return nil, blocked(th.TID, th.regs.R13, "it waits for the handler of a probe that changes")
		}
		to, sp, way := pc, uint64(0), inner
		if site := siteAround(leave, pc); site != nil {
			b, ok := back[pc]
			if !ok && len(c.Add) > 0 {
				return nil, blocked(th.TID, pc, "it runs the work of a probe that changes")
			}
			if ok {
				to, sp = b.Orig, b.SP
			}
			switch {
			case ok && b.CopyEnd != 0 && pc != site.Detour.Back: // the instruction's copy: its work is done, and not to be done again
				way = copies
			case ok:
				way = begins
			}
		}
		if there, ok := way[to]; ok {
			to = there
		}
		if to != pc {
			r := th.Regs()
			r.RIP += to - pc
			r.RSP += sp
			l.moves = append(l.moves, threadMove{th, r})
		}
	}
	if len(inner) == 0 && (len(leave) == 0 || len(c.Add) == 0) {
		return l, nil
	}
	return l, t.scanStacks(s, func(tid int, at, v uint64) error {
		if _, ok := inner[v]; ok {
			return blocked(tid, v, fmt.Sprintf("its stack at 0x%x may hold a context that returns there", at))
		}
		if len(c.Add) > 0 && siteAround(leave, v) != nil {
			return blocked(tid, v, fmt.Sprintf("its stack at 0x%x may hold a context that returns into a detour", at))
		}
		return nil
	})
}

// leave lists the sites whose detours threads must leave, or not be in: those that go, and those
// that went before, with a thread still in them, if what they go back to is inside a new patch.
func (t *Target) leave(c *target.Change, inner map[uint64]uint64) []*target.Site {
	out := slices.Clone(c.Remove)
	for _, z := range t.zombie {
		for _, p := range z.Detour.Pairs {
			if _, in := inner[p.Orig]; in && p.Copy == z.Detour.Back {
				out = append(out, z)
			}
		}
	}
	return out
}

func blocked(tid int, pc uint64, why string) error {
	return errno.Errorf(unix.EBUSY, "thread %d, 0x%x: %s: %w", tid, pc, why, ErrBlocked)
}

// innerOf maps the instructions inside the patches of new sites to their copies.
func innerOf(add []*target.Site) map[uint64]uint64 {
	m := map[uint64]uint64{}
	for _, a := range add {
		for _, p := range a.Detour.Pairs {
			if p.Orig > a.Addr && p.Orig < a.Addr+uint64(len(a.Patch)) {
				if _, ok := m[p.Orig]; !ok {
					m[p.Orig] = startOf(a.Detour, p)
				}
			}
		}
	}
	return m
}

// landings maps the instructions of new sites' regions to where their work begins, and to
// their copies: a thread that ran one in the program's own code, behind the patch, would pass
// its work.
func landings(add []*target.Site) (begins, copies map[uint64]uint64) {
	begins, copies = map[uint64]uint64{}, map[uint64]uint64{}
	for _, a := range add {
		for _, p := range a.Detour.Pairs {
			if _, ok := copies[p.Orig]; !ok {
				begins[p.Orig], copies[p.Orig] = startOf(a.Detour, p), p.Copy
			}
		}
	}
	return begins, copies
}

// startOf is where a thread goes that is to run an instruction of a region: its copy,
// or the work of the probes that stand at it.
func startOf(d *arch.Detour, p arch.Pair) uint64 {
	if w, ok := d.Points[p.Orig]; ok {
		return w
	}
	return p.Copy
}

// backOf maps addresses in the detours of sites that go to the original instructions:
// only those at which that is exact.
func backOf(remove []*target.Site) map[uint64]arch.Pair {
	m := map[uint64]arch.Pair{}
	for _, r := range remove {
		for _, p := range r.Detour.Pairs {
			m[p.Copy] = p
		}
		for orig, w := range r.Detour.Points {
			m[w] = arch.Pair{Orig: orig, Copy: w}
		}
	}
	return m
}

// siteAround gives the site in whose detour pc is.
func siteAround(sites []*target.Site, pc uint64) *target.Site {
	for _, s := range sites {
		if pc-s.Detour.Addr < uint64(s.Room) {
			return s
		}
	}
	return nil
}

// reclaim frees the detours of removed sites that no thread is in and no saved context
// may return to. What is left is tried again at the next change. Precondition: the
// world is stopped, and threads have been moved.
func (t *Target) reclaim(s *Stopped) {
	if len(t.zombie) == 0 {
		return
	}
	sort.Slice(t.zombie, func(i, j int) bool { return t.zombie[i].Detour.Addr < t.zombie[j].Detour.Addr })
	busy := map[*target.Site]bool{}
	mark := func(v uint64) {
		i := sort.Search(len(t.zombie), func(i int) bool { return t.zombie[i].Detour.Addr > v }) - 1
		if i >= 0 && v-t.zombie[i].Detour.Addr < uint64(t.zombie[i].Room) {
			busy[t.zombie[i]] = true
		}
	}
	for _, th := range s.Threads() {
		for _, pc := range t.resumes(th) {
			mark(pc)
		}
	}
	err := t.savedContexts(s, t.golang != nil, mark)
	left := t.zombie[:0]
	var free []room.Span
	for _, z := range t.zombie {
		if busy[z] || err != nil {
			left = append(left, z)
			continue
		}
		t.faults.drop(z)
		if t.mail != nil {
			t.mail.Reclaim(z)
		}
		free = append(free, room.Span{Addr: z.Detour.Addr, Size: z.Room})
	}
	t.freeCode(free...)
	t.zombie = left
}

// Bounds of what is read of one stack. A stack in a mapping larger than maxStack is not
// a thread's own (a goroutine's, a fiber's): its owner must say where it ends.
const (
	maxStack  = 64 << 20
	stackView = 256 << 10
)

// scanStacks gives every aligned word of the threads' stacks, from a red zone below the
// stack pointer to the end, and of the goroutines' stacks in a Go program.
func (t *Target) scanStacks(s *Stopped, f func(tid int, at, v uint64) error) error {
	maps, err := t.p.Maps()
	if err != nil {
		return err
	}
	for _, th := range s.Threads() {
		lo, hi := s.liveStack(maps, th, t.golang != nil)
		if err := t.scanWords(lo, hi, func(at, v uint64) error { return f(th.TID, at, v) }); err != nil {
			return err
		}
	}
	if t.golang == nil {
		return nil
	}
	return t.golang.stacks(s, func(lo, hi uint64) error {
		return t.scanWords(lo, hi, func(at, v uint64) error { return f(0, at, v) })
	})
}

// savedContexts gives the addresses in our mappings that signal frames on the threads'
// stacks return to: saved instruction pointers, and return addresses into what ends a
// handler. Those are all the ways back into a detour: calls in one push the original's
// return address. Other words are what earlier frames have left, and would keep a detour
// for as long as a thread sleeps above them. A context in the gate has the way back in a
// register.
func (t *Target) savedContexts(s *Stopped, goProgram bool, f func(v uint64)) error {
	maps, err := t.p.Maps()
	if err != nil {
		return err
	}
	for _, th := range s.Threads() {
		lo, hi := s.liveStack(maps, th, goProgram)
		err := t.scanWords(lo, hi, func(at, v uint64) error {
			if m, ok := FindMap(maps, v); !ok || !ours(m) || !t.inFrame(at) {
				return nil
			}
			f(v)
			var b [8]byte
			if t.inGate(v) && t.p.ReadMem(at-scRIP+scR13, b[:]) == nil {
				f(le.Uint64(b[:]))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
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
func (s *Stopped) liveStack(maps []Map, th *Thread, goProgram bool) (lo, hi uint64) {
	lo, hi = stackOf(maps, th.regs.RSP)
	if !goProgram {
		return lo, hi
	}
	m, ok := FindMap(maps, th.regs.RSP)
	if !ok {
		return 0, 0
	}
	alt, on := s.altStack(m, th.regs.RSP)
	if !on {
		return 0, 0
	}
	return lo, min(hi, alt.Hi)
}

// stackOf is the used part of the stack that sp is in.
func stackOf(maps []Map, sp uint64) (lo, hi uint64) {
	i := sort.Search(len(maps), func(i int) bool { return maps[i].End > sp })
	if i == len(maps) || maps[i].Start > sp {
		return 0, 0
	}
	lo, hi = max(sp-128, maps[i].Start)&^7, maps[i].End
	if maps[i].Size() > maxStack {
		hi = min(hi, sp+stackView)
	}
	return lo, hi
}

func (t *Target) scanWords(lo, hi uint64, f func(at, v uint64) error) error {
	buf := make([]byte, 64<<10)
	for lo < hi {
		b := buf[:min(uint64(len(buf)), hi-lo)]
		if err := t.p.ReadMem(lo, b); err != nil {
			return err
		}
		for i := 0; i+8 <= len(b); i += 8 {
			if err := f(lo+uint64(i), binary.LittleEndian.Uint64(b[i:])); err != nil {
				return err
			}
		}
		lo += uint64(len(b))
	}
	return nil
}

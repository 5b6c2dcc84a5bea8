package process

import (
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// How instances are taken back. A slot belongs to the call whose key it has, from the entry's
// compare and exchange until the exit clears the key; nobody else writes to it. In a stop a
// slot is cleared
//
//   - of an event that is armed, if its call is surely over: its goroutine is gone, or the
//     memory of its stack; its thread has ended (the C library's control block on that stack
//     says so); its frame is below the stack pointer of the thread whose own stack it is on, and
//     no other thread's (see done); or its return address does not stand where it stood.
//   - of an event whose code has been taken out, once no thread is in any such code.
//
// A thread that has just claimed a slot may not have written down for which event, so that
// what stands there is an earlier call's. No slot is cleared that a thread in generated code,
// or a signal handler's way back there, may have claimed for any event.

var (
	_ target.Reaper  = (*Target)(nil)
	_ target.Tallier = (*Target)(nil)
)

// Tally counts the instances of each event, while the process runs.
func (t *Target) Tally(n map[int]int) error {
	if t.control == nil {
		return nil
	}
	for _, u := range t.pools {
		if err := t.eachInstance(u, func(i native.Instance) { n[i.Event]++ }); err != nil {
			return err
		}
	}
	return nil
}

// Bounds of a Reap.
const (
	maxReaped  = 4096     // slots that are cleared in one stop
	claimFrame = 64 << 10 // more than lies between a call's return address and the stack pointer of its entry's work
)

// Reap takes instances back.
func (t *Target) Reap(r *target.Reap) error {
	r.Active, r.Unwound, r.Whole = map[int]int{}, map[int]int{}, true
	if t.control == nil || len(t.pools) == 0 {
		return nil
	}
	return t.stopped(func(s *ptrace.Stopped) error {
		p, err := t.newReaper(s, r)
		if err != nil {
			return err
		}
		for _, u := range t.pools {
			if err := p.pool(u); err != nil {
				return err
			}
		}
		return nil
	})
}

// reaper is a Reap in a stopped world.
type reaper struct {
	*target.Reap
	t      *Target
	places *stackPlaces
	in     map[procfs.Map][]*ptrace.Thread // threads whose stack pointer, or control block, is in a mapping
	ends   map[procfs.Map]interval.Range   // see done
	inside []claimer
	idle   bool // no thread is in code that was removed
	quota  int
}

// claimer is a thread that may have claimed a slot: its stack pointer, in Go its goroutine.
type claimer struct{ sp, goid uint64 }

func (t *Target) newReaper(s *ptrace.Stopped, r *target.Reap) (*reaper, error) {
	t.reclaim(s)
	places, err := t.stackPlaces(s)
	if err != nil {
		return nil, err
	}
	p := &reaper{
		Reap: r, t: t, places: places, idle: len(t.zombie) == 0, quota: maxReaped,
		in: map[procfs.Map][]*ptrace.Thread{}, ends: map[procfs.Map]interval.Range{},
	}
	for _, th := range s.Everyone() {
		m, ok := procfs.FindMap(places.maps, th.SP())
		if ok {
			p.in[m] = append(p.in[m], th)
		}
		if b, there := procfs.FindMap(places.maps, th.ThreadPointer()); there && (!ok || b != m) {
			p.in[b] = append(p.in[b], th)
		}
		if in, ok := procfs.FindMap(places.maps, th.ResumePC()); ok && ours(in) {
			p.inside = append(p.inside, claimer{th.SP(), t.goidOf(th)})
		}
	}
	return p, t.contexts(s, t.golang != nil, func(th *ptrace.Thread, at, _ uint64) {
		if sp, err := t.p.SavedSP(at); err == nil {
			p.inside = append(p.inside, claimer{sp, t.goidOf(th)})
		}
	})
}

// own says whether a mapping is the stack that the kernel or the C library has made for the
// thread, and the thread is on it: not on an alternate stack of signals that lies there, as a
// local array may.
func (p *reaper) own(m procfs.Map, th *ptrace.Thread) bool {
	sp, fs := th.SP(), th.ThreadPointer()
	switch {
	case !m.Contains(sp):
		return false
	case m.Path == "[stack]":
		return th.TID == p.t.p.PID() && !p.alternate(m, sp)
	}
	return m.Anonymous() && m.Path != "[heap]" && m.Contains(fs) && sp < fs && p.t.p.PointsToItself(fs) && !p.alternate(m, sp)
}

// alternate says whether a stack pointer may be on an alternate stack: a signal frame above it
// says that such a stack holds both. What cannot be read may hold one.
func (p *reaper) alternate(m procfs.Map, sp uint64) bool {
	found := false
	err := p.t.scanWords(sp+-sp&7, m.End, func(at, v uint64) error {
		if found || sp-v >= ptrace.MaxStack || !p.t.p.InFrame(at-scStack) { // v: where it begins
			return nil
		}
		var size [8]byte
		err := p.t.p.ReadMem(at+16, size[:])
		found = at-v < le.Uint64(size[:])
		return err
	})
	return found || err != nil
}

// scStack is where a signal frame has the alternate stack: pointer, flags, size. The frame
// begins with a return address and struct ucontext (asm-generic/ucontext.h).
const scStack = 8 + 16

// goidOf is the goroutine that a thread runs, or has left for its signal stack; 0: none.
func (t *Target) goidOf(th *ptrace.Thread) uint64 {
	g := t.golang
	if g == nil || th.ThreadPointer() == 0 {
		return 0
	}
	gp, _ := g.word(th.ThreadPointer() + uint64(g.runtime.TLS))
	m, _ := g.word(gp + uint64(g.layout.M))
	if sig, ok := g.word(m + uint64(g.layout.GSignal)); ok && sig == gp {
		gp, _ = g.word(m + uint64(g.layout.CurG))
	}
	id, _ := g.word(gp + uint64(g.layout.GoID))
	return id
}

// pool clears the slots of a pool.
func (p *reaper) pool(u poolUse) error {
	return p.t.eachSlot(u.pool, func(at uint64, slot []byte) error {
		i, ok := native.ReadInstance(slot, p.t.golang != nil)
		if !ok {
			return nil
		}
		switch ended := p.Ended[i.Event]; {
		case ended && !p.idle:
			p.Whole = false
			return nil
		case !ended && (!p.Left || !slices.Contains(p.Live, i.Event) || !p.over(i)):
			return nil
		case p.quota == 0 || p.claimed(slot):
			p.Whole = p.Whole && !ended
			return nil
		case ended && !p.over(i):
			p.Active[i.Event]++
		default:
			p.Unwound[i.Event]++
		}
		p.quota--
		return p.t.freeSlot(u.pool, at)
	})
}

// over says whether a call has surely ended.
func (p *reaper) over(i native.Instance) bool {
	if i.SP == 0 {
		return !p.t.inProgress(i, p.places)
	}
	m, ok := procfs.FindMap(p.places.maps, i.SP)
	if !ok {
		return true
	}
	r := p.done(m)
	return r.Start <= i.SP && i.SP < r.End || !p.t.stands(i.SP, i.Return)
}

// done is the part of a mapping in which all calls have ended: of a thread's own stack what is
// below its stack pointer, of one whose thread has ended what is below the control block. No
// other thread may be in the mapping: without guard pages, or where these are no mappings of
// their own, several stacks are one. Only the main thread's is surely alone; of another it goes
// down to a page that was never touched, since what follows may be a stack too, such as a
// coroutine's. A coroutine's stack that is a local array of a thread's cannot be told: while the
// thread is in the coroutine, calls that wait below the array are taken for ended.
func (p *reaper) done(m procfs.Map) interval.Range {
	r, ok := p.ends[m]
	if ok {
		return r
	}
	switch ths := p.in[m]; {
	case len(ths) == 0:
		r.End = p.ended(m)
	case len(ths) == 1 && p.own(m, ths[0]):
		r.End = p.t.frameOf(ths[0])
	}
	switch {
	case m.Path == "[stack]":
		r.Start = m.Start
	case r.End > 0:
		r.Start = p.touched(m, r.End)
	}
	p.ends[m] = r
	return r
}

// touched is the begin of the pages of a mapping, up to the one with the bytes below hi, that
// hold something without a gap.
func (p *reaper) touched(m procfs.Map, hi uint64) uint64 {
	end := procfs.PageUp(hi)
	in := p.t.p.Present(max(m.Start, end-min(end, ptrace.MaxStack)), end)
	if n := len(in); n > 0 && in[n-1].End == end {
		return in[n-1].Start
	}
	return hi
}

// claimed says whether a thread may just have claimed a slot.
func (p *reaper) claimed(slot []byte) bool {
	b := slices.Clone(slot[:native.SlotHeader])
	for _, c := range p.inside {
		for _, e := range p.Live {
			native.SetEvent(b, e)
			i, _ := native.ReadInstance(b, p.t.golang != nil)
			if i.SP == 0 && i.GoID == c.goid || i.SP != 0 && i.SP-c.sp < claimFrame {
				return true
			}
		}
	}
	return false
}

// ended gives the control block of a mapping that is the stack of a thread that has ended; 0: it
// is none. The C library keeps such a stack for the next thread, with all that stood on it. The
// block at its end tells: its id is 0, as the kernel has left it, or -1 (glibc, where the stack
// waits for the next thread). Precondition: no thread is in the mapping.
func (p *reaper) ended(m procfs.Map) uint64 {
	if p.t.writer.TID != arch.TIDThread || !m.Anonymous() || m.Path != "" || m.Size() > ptrace.MaxStack {
		return 0
	}
	lo := max(m.Start, m.End-min(blockReach, m.Size()))
	b := make([]byte, m.End-lo)
	if p.t.p.ReadMem(lo, b) != nil {
		return 0
	}
	off := int(p.t.writer.TIDOff)
	for at := 0; at+off+4 <= len(b) && at+24 <= len(b); at += 16 { // psABI TLS 3.4.6: a block begins with its own address
		block := lo + uint64(at)
		self := le.Uint64(b[at:]) == block
		if glibc := off == int(tidOffsets[0]); glibc {
			self = self && le.Uint64(b[at+16:]) == block // tcbhead_t.self
		}
		if !self {
			continue
		}
		if int32(le.Uint32(b[at+off:])) > 0 {
			return 0
		}
		return block
	}
	return 0
}

// blockReach is how far below the end of a stack the thread's control block is looked for.
const blockReach = 64 << 10

// freeSlot clears a slot. Precondition: the world is stopped, and no thread is using it.
func (t *Target) freeSlot(p *arch.Pool, at uint64) error {
	if err := t.p.WriteMem(at, make([]byte, 8)); err != nil || p.Max == 0 {
		return err
	}
	var b [4]byte
	if err := t.p.ReadMem(p.Active, b[:]); err != nil {
		return err
	}
	return t.p.WriteMem(p.Active, le.AppendUint32(nil, le.Uint32(b[:])-1))
}

// eachSlot gives the slots of a pool that are in memory; the others were never taken.
func (t *Target) eachSlot(p *arch.Pool, f func(at uint64, slot []byte) error) error {
	size, stride := native.PoolBytes(p.Slots, p.Stride), uint64(1)<<p.Stride
	in := t.p.Present(procfs.PageDown(p.Base), procfs.PageUp(p.Base+size))
	var buf []byte
	next := uint64(0) // a slot may lie in two ranges
	for _, r := range in {
		lo := max(next, (max(r.Start, p.Base)-p.Base)&^(stride-1))
		next = max(next, (min(r.End-p.Base, size)+stride-1)&^(stride-1))
		if lo >= next {
			continue
		}
		buf = slices.Grow(buf[:0], int(next-lo))[:next-lo]
		if err := t.p.ReadMem(p.Base+lo, buf); err != nil {
			return err
		}
		for off := uint64(0); off < next-lo; off += stride {
			if err := f(p.Base+lo+off, buf[off:off+stride]); err != nil {
				return err
			}
		}
	}
	return nil
}

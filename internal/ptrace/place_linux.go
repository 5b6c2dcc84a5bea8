package ptrace

import (
	"debug/elf"
	"fmt"
	"slices"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

const (
	// signalRoom stays free below a frame: a signal that arrives in the moment before
	// signals are blocked has its handler run there.
	signalRoom = 8 << 10
)

// place is memory of the target that a frame can lie in for the time of a call.
type place struct {
	interval.Range
	clean bool // it holds zeros that must be put back
}

// SetScratch names memory of the target that belongs to the caller, readable, writable and
// used for nothing else: frames of later system calls lie there instead of on the target's
// stacks. At least 32 KiB: a frame takes up to 12 KiB on processors with AMX.
func (s *Stopped) SetScratch(r interval.Range) { s.scratch = r }

// placeFor finds memory for a frame of need bytes of thread t, best first.
//
//  1. the caller's scratch memory
//  2. below the red zone of its own stack, where that is surely a stack with room: the
//     main thread's [stack], or a mapping that holds both stack pointer and thread
//     control block of a thread made by a C library (%fs:0 holds its own address, psABI
//     TLS 3.4.6). A goroutine's or coroutine's stack may be a few bytes from other data,
//     and is neither.
//  3. the lowest part of the main thread's [stack], where it is all zero. The kernel maps
//     128 KiB below the first stack pointer at once; Go's main thread uses 64 KiB, others
//     are in case 2 with it.
//  4. the rest of the page behind the program's .bss, all zero: nobody's by the ELF file.
//
// Places 3 and 4 begin with a mark while they are in use, so that what a tracer leaves there
// that is killed can be told from the program's own bytes.
func (s *Stopped) placeFor(t *Thread, need int) (place, error) {
	if s.scratch != (interval.Range{}) {
		return place{Range: interval.Range{Start: s.scratch.Start + signalRoom, End: s.scratch.End}}, nil
	}
	want := uint64(need)
	maps, err := s.p.MapsIn(t.regs.SP(), 1) // where there are thousands of threads the rest takes a while
	if err != nil {
		return place{}, err
	}
	if r, ok := s.ownStack(maps, t, want+signalRoom); ok {
		return place{Range: interval.Range{Start: r.Start + signalRoom, End: r.End}}, nil
	}
	if maps, err = s.Maps(); err != nil {
		return place{}, err
	}
	if r, ok := s.stackBottom(maps, want+placeHead); ok {
		return place{r, true}, nil
	}
	if r, ok := s.padding(maps, want+placeHead); ok {
		return place{r, true}, nil
	}
	return place{}, fmt.Errorf("stack pointer %#x is not on a stack with %d bytes to spare, and none are free elsewhere", t.regs.SP(), need)
}

// ownStack gives the bytes below the thread's red zone.
func (s *Stopped) ownStack(maps []procfs.Map, t *Thread, need uint64) (interval.Range, bool) {
	sp := t.regs.SP()
	m, ok := procfs.FindMap(maps, sp)
	if !ok || m.Perm != procfs.PermRead|procfs.PermWrite || !m.Anonymous() {
		return interval.Range{}, false
	}
	switch {
	case m.Path == "[stack]" && t.TID == t.TGID:
	case s.p.threadStack(m, &t.regs):
	default:
		return interval.Range{}, false
	}
	lo := m.Start
	if alt, on := s.altStack(m, sp); on {
		lo = max(lo, alt.Start)
	}
	if sp-lo < need+redZone {
		return interval.Range{}, false
	}
	return interval.Range{Start: sp - redZone - need, End: sp - redZone}, true
}

// stackBottom gives the lowest bytes of [stack], above room for a signal handler.
func (s *Stopped) stackBottom(maps []procfs.Map, need uint64) (interval.Range, bool) {
	i := slices.IndexFunc(maps, func(m procfs.Map) bool { return m.Path == "[stack]" && m.Anonymous() })
	if i < 0 || maps[i].Size() < 2*(need+signalRoom) {
		return interval.Range{}, false
	}
	lo := maps[i].Start
	s.reclaimPlace(lo + signalRoom)
	if !s.p.zero(lo, signalRoom+need+signalRoom) {
		return interval.Range{}, false
	}
	return interval.Range{Start: lo + signalRoom, End: lo + signalRoom + need}, true
}

// padding gives the bytes between the end of the program's writable segments and the end
// of their last page.
func (s *Stopped) padding(maps []procfs.Map, need uint64) (interval.Range, bool) {
	segments, err := s.p.segments()
	if err != nil {
		return interval.Range{}, false
	}
	for _, seg := range segments {
		r := interval.Range{Start: seg.End, End: procfs.PageUp(seg.End)}
		m, ok := procfs.FindMap(maps, r.Start)
		if ok && r.Size() >= need {
			s.reclaimPlace(r.Start)
		}
		if ok && r.Size() >= need && m.Perm == procfs.PermRead|procfs.PermWrite && s.p.zero(r.Start, r.Size()) {
			return r, true
		}
	}
	return interval.Range{}, false
}

// The mark of a place that held zeros and is in use: a word and the place's size, in bytes.
const (
	placeMark = 0x454d4152464f5250 // "PROFRAME" in memory order
	placeHead = 16
	maxPlace  = 64 << 10
)

// mark says in the place that it is in use. Then frames go behind the mark.
func (p *place) mark(mem *Process) error {
	b := le.AppendUint64(nil, placeMark)
	return mem.WriteMem(p.Start, le.AppendUint64(b, p.Size()))
}

// wipe puts back the zeros of a place, the mark last.
func (p *place) wipe(mem *Process) error {
	if err := mem.WriteMem(p.Start+placeHead, make([]byte, p.Size()-placeHead)); err != nil {
		return err
	}
	return mem.WriteMem(p.Start, make([]byte, placeHead))
}

// reclaimPlace puts back the zeros of a place at lo that a tracer used when it was killed,
// unless a thread is still on its way through the frame there. Failures need no report: then
// the place is not zero.
func (s *Stopped) reclaimPlace(lo uint64) {
	var head [placeHead]byte
	if s.p.ReadMem(lo, head[:]) != nil || le.Uint64(head[:]) != placeMark {
		return
	}
	size := le.Uint64(head[8:])
	if size < placeHead || size > maxPlace || s.refersTo(interval.Range{Start: lo, End: lo + size}) {
		return
	}
	_ = (&place{Range: interval.Range{Start: lo, End: lo + size}}).wipe(s.p)
}

// refersTo says whether a thread's stack pointer is in r or next to it, or a word near the
// top of its stack, such as a signal frame's, points there.
func (s *Stopped) refersTo(r interval.Range) bool {
	b := make([]byte, stackScan)
	for _, t := range s.threads {
		sp := t.regs.SP()
		if r.Start-signalRoom <= sp && sp < r.End {
			return true
		}
		n, err := s.p.ReadMemSome(sp, b)
		if err != nil {
			continue
		}
		for at := -sp & 7; at+8 <= uint64(n); at += 8 {
			if v := le.Uint64(b[at:]); r.Start <= v && v < r.End {
				return true
			}
		}
	}
	return false
}

// segments gives the addresses of the program's writable segments as they are loaded.
func (p *Process) segments() ([]interval.Range, error) {
	f, err := p.OpenAt(p.FileName("exe"), 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	e, err := elf.NewFile(f)
	if err != nil {
		return nil, err
	}
	aux, err := p.Auxv()
	if err != nil {
		return nil, err
	}
	bias := aux[atEntry] - e.Entry
	var segs []interval.Range
	for _, ph := range e.Progs {
		if ph.Type == elf.PT_LOAD && ph.Flags&elf.PF_W != 0 {
			segs = append(segs, interval.Range{Start: bias + ph.Vaddr, End: bias + ph.Vaddr + ph.Memsz})
		}
	}
	return segs, nil
}

const atEntry = 9 // AT_ENTRY (linux/auxvec.h)

// zero says whether all bytes are there and zero.
func (p *Process) zero(addr, size uint64) bool {
	b := make([]byte, size)
	if p.ReadMem(addr, b) != nil {
		return false
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

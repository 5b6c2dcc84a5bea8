package process

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// Caller gives the return address that a stub stands for, and any other address as it is. It
// may be called at any time.
func (t *Target) Caller(addr uint64) uint64 {
	st := t.stubs.Load()
	if st == nil {
		return addr
	}
	to, _ := st.real(addr)
	return to
}

// frameOf is a thread's stack pointer. One that stands at a stub has taken the return address off
// its stack, and its call is in progress: it is where that was.
func (t *Target) frameOf(th *ptrace.Thread) uint64 {
	if st := t.stubs.Load(); st != nil && st.isStub(th.PC()) {
		return th.SP() - 8
	}
	return th.SP()
}

// Quiesce waits, for a bounded time, until no thread is in the code of a site that was removed:
// none will replace a return address any more.
func (t *Target) Quiesce() error {
	return drained(func() error {
		return t.stopped(func(s *ptrace.Stopped) error {
			if t.reclaim(s); !t.Idle() {
				return cmp.Or(inHandler(s, t.code), ErrInDetour)
			}
			return nil
		})
	})
}

// PutBack puts all return addresses back that were replaced, as far as they are found. It is
// called within a Commit (Change.Then).
func (t *Target) PutBack() error {
	_, err := t.endStubs(t.within())
	if errors.Is(err, ErrInDetour) {
		return nil // Close comes back to it
	}
	return err
}

// endStubs puts return addresses back; sure says that none can be left. Preconditions: the
// world is stopped, no site is armed.
func (t *Target) endStubs(s *ptrace.Stopped) (sure bool, err error) {
	st := t.stubs.Load()
	if st == nil {
		return true, nil
	}
	var slots []uint64
	for _, u := range t.pools {
		if err := t.eachInstance(u, func(i native.Instance) { slots = append(slots, i.SP) }); err != nil {
			return false, err
		}
	}
	return st.restore(s, slots)
}

// endStubs puts return addresses back that an earlier tracer replaced.
func (l *Leftover) endStubs(s *ptrace.Stopped, u *Undone) error {
	u.InCall = false
	for _, st := range l.stubs {
		sure, err := st.restore(s, nil)
		if err != nil {
			return err
		}
		u.InCall = u.InCall || !sure
	}
	return nil
}

// stubs is the room of trampolines, as it is read from the process.
type stubs struct {
	p        *ptrace.Process
	lo, size uint64 // of the room
	dist     uint64 // from a stub to its word
	flat     bool   // the layout is that of before there were pieces
	limit    uint64 // bytes of memory that are searched at most
	mu       sync.Mutex
	// known is where calls whose return address is a stub's return to, which never changes; the stub
	// itself: nowhere.
	known map[uint64]uint64
}

func newStubs(p *ptrace.Process, lo, size uint64) *stubs {
	return &stubs{p: p, lo: lo, size: size, dist: native.TrampolineDist, limit: maxSearch, known: map[uint64]uint64{}}
}

// stubsOf is the room that a mapping of stubs is part of.
func stubsOf(p *ptrace.Process, m procfs.Map) *stubs {
	name := strings.TrimSuffix(strings.TrimPrefix(m.Path, "/memfd:"+stubRangeName), " (deleted)")
	if n, err := strconv.ParseUint(name, 10, 6); err == nil {
		return newStubs(p, m.Start&^(1<<n-1), 1<<n)
	}
	st := newStubs(p, m.Start, 2*native.FlatStubs)
	st.dist, st.flat = native.FlatStubs, true
	return st
}

// isStub says whether a value may be the address of a stub.
func (s *stubs) isStub(v uint64) bool {
	if s.flat {
		return native.IsFlatStub(v, s.lo)
	}
	return native.IsStub(v, s.lo, s.size)
}

// holds says whether an address is in the room, code or tables.
func (s *stubs) holds(addr uint64) bool { return addr-s.lo < s.size }

// code says whether an address is in the room's code.
func (s *stubs) code(addr uint64) bool { return s.holds(addr) && (addr-s.lo)&s.dist == 0 }

// maps says whether a mapping is part of the room.
func (s *stubs) maps(m procfs.Map) bool { return s != nil && s.holds(m.Start) }

// real gives the return address that v stands for, if it is a stub that is in use. The program could
// have written a circle.
func (s *stubs) real(v uint64) (to uint64, ok bool) {
	if !s.holds(v) {
		return v, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	to = v
	var way []uint64
	for s.isStub(to) {
		if end, have := s.known[to]; have {
			if end == to {
				return v, false // a circle: so are all on the way to it
			}
			to = end
			break
		}
		var b [8]byte
		err := s.p.ReadMem(to+s.dist, b[:])
		next := binary.LittleEndian.Uint64(b[:])
		if err != nil || next == 0 { // not in use yet
			for _, at := range way {
				delete(s.known, at)
			}
			return v, false
		}
		s.known[to] = to
		way = append(way, to)
		to = next
	}
	for _, at := range way {
		s.known[at] = to
	}
	return to, to != v
}

// restore puts return addresses back wherever a stub stands for one: in registers, and in
// all memory that the process can write, since programs move stacks about. What the copies
// are for does not matter: it is what would stand there without us. The threads' stacks, and
// slots, where calls are known to have their return addresses, are put back whatever memory they
// lie in. sure says that none is left. ErrInDetour: a thread is just between two of our
// instructions; the rest is done.
// Precondition: the world is stopped, and no function's entry is probed any more.
func (s *stubs) restore(st *ptrace.Stopped, slots []uint64) (sure bool, err error) {
	var busy error
	if len(st.Parked()) > 0 {
		busy = ErrInDetour // whose registers are not known
	}
	for _, th := range st.Threads() {
		if err := cmp.Or(s.restoreVectors(th), s.restoreThread(th)); errors.Is(err, ErrInDetour) {
			busy = err
		} else if err != nil {
			return false, err
		}
	}
	maps, err := s.p.Maps()
	if err != nil {
		return false, err
	}
	r := &ptrace.Residents{Process: s.p, Limit: s.limit, Asks: maxAsked}
	if sure, err = r.Find(searchableOf(maps)); err != nil {
		return false, err
	}
	if !sure {
		r.Found = nil
	}
	for _, slot := range slots {
		if m, ok := procfs.FindMap(maps, slot); ok {
			r.Found = append(r.Found, ptrace.Resident{Range: interval.Range{Start: slot, End: slot + 8}})
			sure = sure && searchable(m)
		}
	}
	for _, th := range st.Everyone() {
		if m, ok := procfs.FindMap(maps, th.SP()); ok {
			lo, hi := ptrace.StackIn(m, th.SP())
			r.Found = append(r.Found, ptrace.Resident{Range: interval.Range{Start: lo, End: hi}})
			sure = sure && searchable(m)
		}
	}
	for _, m := range r.Found {
		switch err := s.restoreMemory(m.Start, m.End); {
		case errors.Is(err, ErrInDetour):
			busy = err
		case errors.Is(err, ErrFault):
			sure = sure && m.Shared // a device's, that nobody else can read, and no stack that is known
		case err != nil:
			return false, err
		}
	}
	return sure && busy == nil, busy
}

// restoreThread puts back what is in a thread's registers. One at a stub stands, in effect,
// at the address that the stub stands for.
func (s *stubs) restoreThread(th *ptrace.Thread) error {
	r := th.Regs()
	changed := false
	for _, p := range r.Words() {
		if to, ok := s.real(*p); ok {
			*p, changed = to, true
		}
	}
	if s.code(r.PC()) {
		return errLeaving
	}
	if !changed {
		return nil
	}
	return th.SetRegs(r)
}

// restoreVectors puts back what is in a thread's vector registers: it may be copying a stack.
func (s *stubs) restoreVectors(th *ptrace.Thread) error {
	b, err := th.Xstate()
	if err != nil {
		return err
	}
	changed := false
	for i := 0; i+8 <= len(b); i += 8 {
		if to, ok := s.real(binary.LittleEndian.Uint64(b[i:])); ok {
			binary.LittleEndian.PutUint64(b[i:], to)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return th.SetXstate(b)
}

// restoreMemory puts back what is in [lo, hi).
func (s *stubs) restoreMemory(lo, hi uint64) error {
	var busy error
	buf := make([]byte, min(1<<20, hi-lo))
	for ; lo < hi; lo += uint64(len(buf)) {
		buf = buf[:min(uint64(len(buf)), hi-lo)]
		if err := s.p.ReadMem(lo, buf); err != nil {
			return err
		}
		for i := 0; i+8 <= len(buf); i += 8 {
			v := binary.LittleEndian.Uint64(buf[i:])
			if !s.holds(v) {
				continue
			}
			to, ok := s.real(v)
			if !ok {
				if s.inBare(v) && s.p.InFrame(lo+uint64(i)) {
					busy = ErrInDetour
				}
				continue
			}
			if err := s.p.WriteMem(lo+uint64(i), binary.LittleEndian.AppendUint64(nil, to)); err != nil {
				return err
			}
		}
	}
	return busy
}

// inBare says whether an address is in the code that returns for calls of no event.
func (s *stubs) inBare(v uint64) bool {
	return s.code(v) && !s.isStub(v&^7)
}

// Bounds of what is looked at while a process is stopped, about 0.1 s each: memory that is
// searched, and pages that are asked for one by one where the kernel can not pass over holes.
const (
	maxSearch = 256 << 20
	maxAsked  = 16 << 20
)

// searchableOf picks the mappings that are searched.
func searchableOf(maps []procfs.Map) []procfs.Map {
	return slices.DeleteFunc(slices.Clone(maps), func(m procfs.Map) bool { return !searchable(m) })
}

// searchable says whether the process can read and write a mapping, which is not ours.
func searchable(m procfs.Map) bool {
	return m.Perm&(procfs.PermRead|procfs.PermWrite) == procfs.PermRead|procfs.PermWrite && !ours(m)
}

package process

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/arch"
	"kprobes.dev/kprobes/arch/amd64"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/target"
)

// Trampolines of all functions stand in one mapping, first the stubs, then the tables, each
// function's as far behind its stubs as the others'. A function keeps its own for as long as
// the tracer is there: a call that is in progress returns through it, whatever became of the
// probe.
const (
	stubName       = "kprobes:stubs"
	maxTrampolines = 4096 // functions
	stubsSize      = maxTrampolines * amd64.TrampolineSize
)

// ErrInCall says that the trampolines stay mapped, since a call may still return through one.
// It returns as it should; what unwinds it meanwhile (an exception, pthread_exit) finds no caller.
var ErrInCall = errors.New("a call may still return through a trampoline: these pages stay mapped, and it returns well, but an exception through it would not find its way")

func isStubs(m Map) bool { return strings.HasPrefix(m.Path, "/memfd:"+stubName) }

var _ target.Returner = (*Target)(nil)

// Replaceable says why no return address of the process may be replaced.
func (t *Target) Replaceable() error {
	if t.p.isGo() {
		return errno.Errorf(unix.EOPNOTSUPP, "Go's runtime reads and moves its stacks")
	}
	st, err := t.p.Status()
	if err != nil {
		return err
	}
	if st.ShadowStack {
		return errno.Errorf(unix.EOPNOTSUPP, "the process has shadow stacks, which tell a replaced return address")
	}
	maps, err := t.p.Maps()
	if err != nil {
		return err
	}
	for _, m := range fileMaps(maps) {
		switch {
		case m.Perm&PermExec == 0 || ours(m) || kernels(m):
		case m.Anonymous() || strings.HasPrefix(m.Path, "/memfd:"):
			return errno.Errorf(unix.EOPNOTSUPP, "the process makes code while it runs (at 0x%x), which may know its callees by the return address", m.Start)
		case t.space != nil && t.space.ModuleAt(m.Start) == nil:
			return errno.Errorf(unix.EOPNOTSUPP, "the process runs code of %s (at 0x%x), which is no program or shared object that can be read, and may know its callees by the return address", m.Path, m.Start)
		}
	}
	return nil
}

// kernels says whether a mapping is the kernel's own code in the process.
func kernels(m Map) bool {
	return m.Path == "[vdso]" || m.Path == "[vsyscall]" || m.Path == "[uprobes]"
}

// Trampoline gives the trampoline of the function at an address.
func (t *Target) Trampoline(fn uint64) (*arch.Trampoline, error) {
	if tr := t.trampolines[fn]; tr != nil {
		return tr, nil
	}
	n := uint64(len(t.trampolines))
	if n == maxTrampolines {
		return nil, errno.Errorf(unix.ENOSPC, "trampolines: %d functions have one, and there is room for no more", n)
	}
	if t.stubs.Load() == nil {
		if err := t.stopped(t.mapStubs); err != nil {
			return nil, err
		}
	}
	lo := t.stubs.Load().lo
	at := lo + n*amd64.TrampolineSize
	tr := &arch.Trampoline{Stubs: at, Table: at + stubsSize, Lo: lo, Hi: lo + stubsSize}
	code, table, err := amd64.NewStubs(tr)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(t.p.WriteMem(tr.Table, table), t.p.WriteMem(tr.Stubs, code)); err != nil {
		return nil, err
	}
	if t.trampolines == nil {
		t.trampolines = map[uint64]*arch.Trampoline{}
	}
	t.trampolines[fn] = tr
	return tr, nil
}

// mapStubs maps the room of all trampolines.
func (t *Target) mapStubs(s *Stopped) error {
	lo, err := t.mapPrivate(s, stubName, 0, 2*stubsSize, unix.PROT_READ|unix.PROT_EXEC)
	if err != nil {
		return err
	}
	if err := s.Mprotect(lo+stubsSize, stubsSize, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return errors.Join(err, s.Munmap(lo, 2*stubsSize))
	}
	t.stubs.Store(newStubs(t.p, lo))
	return nil
}

// Strays tells how many returns of the function at an address came through its trampoline
// that belonged to no call that an event knew, and where the last had its return address.
func (t *Target) Strays(fn uint64) (n, slot uint64, err error) {
	tr := t.trampolines[fn]
	if tr == nil {
		return 0, 0, nil
	}
	b := make([]byte, amd64.StrayHeader)
	if err := t.p.ReadMem(tr.Table, b); err != nil {
		return 0, 0, err
	}
	n, slot = amd64.Stray(b)
	return n, slot, nil
}

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
func (t *Target) frameOf(th *Thread) uint64 {
	if st := t.stubs.Load(); st != nil && st.holds(th.regs.RIP) && amd64.IsStub(th.regs.RIP, st.lo, st.lo+stubsSize) {
		return th.regs.RSP - 8
	}
	return th.regs.RSP
}

// Settle waits, for a bounded time, until no thread is in the code of a site that was removed:
// none will replace a return address any more.
func (t *Target) Settle() error {
	for range drainTries {
		err := t.stopped(func(s *Stopped) error { t.reclaim(s); return nil })
		if err != nil || t.Idle() {
			return err
		}
		time.Sleep(drainWait)
	}
	return ErrInDetour
}

// PutBack puts all return addresses back that were replaced, as far as they are found. It is
// called within a Commit (Change.Then).
func (t *Target) PutBack() error {
	_, err := t.endStubs(t.held)
	if errors.Is(err, ErrInDetour) {
		return nil // Close comes back to it
	}
	return err
}

// endStubs puts return addresses back; sure says that none can be left. Preconditions: the
// world is stopped, no site is armed.
func (t *Target) endStubs(s *Stopped) (sure bool, err error) {
	st := t.stubs.Load()
	if st == nil {
		return true, nil
	}
	var slots []uint64
	for _, u := range t.pools {
		if err := t.eachInstance(u, func(i amd64.Instance) { slots = append(slots, i.SP) }); err != nil {
			return false, err
		}
	}
	return st.restore(s, slots)
}

// endStubs puts return addresses back that an earlier tracer replaced.
func (l *Leftover) endStubs(s *Stopped, u *Undone) error {
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

// stubs is the mapping of trampolines, as it is read from the process.
type stubs struct {
	p     *Proc
	lo    uint64
	limit uint64 // bytes of memory that are searched at most
	mu    sync.Mutex
	known map[uint64]uint64 // what a stub stands for never changes
}

func newStubs(p *Proc, lo uint64) *stubs {
	return &stubs{p: p, lo: lo, limit: maxSearch, known: map[uint64]uint64{}}
}

// holds says whether an address is in the code of stubs.
func (s *stubs) holds(addr uint64) bool { return addr-s.lo < stubsSize }

// maps says whether a mapping is part of this one.
func (s *stubs) maps(m Map) bool { return s != nil && m.Start-s.lo < 2*stubsSize }

// real gives the return address that v stands for, if it is a stub that is in use. No call has
// more stubs within stubs than there are functions; the program could have written a circle.
func (s *stubs) real(v uint64) (to uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to = v
	for n := 0; amd64.IsStub(to, s.lo, s.lo+stubsSize); n++ {
		if n == maxTrampolines {
			return v, false
		}
		next, have := s.known[to]
		if !have {
			var b [8]byte
			if s.p.ReadMem(to+stubsSize, b[:]) != nil {
				return v, false
			}
			if next = binary.LittleEndian.Uint64(b[:]); next == 0 {
				return v, false // not in use yet
			}
			s.known[to] = next
		}
		to, ok = next, true
	}
	return to, ok
}

// restore puts return addresses back wherever a stub stands for one: in registers, and in
// all memory that the process can write, since programs move stacks about. What the copies
// are for does not matter: it is what would stand there without us. The threads' stacks, and
// slots, where calls are known to have their return addresses, are put back whatever memory they
// lie in. sure says that none is left. ErrInDetour: a thread is just between two of our
// instructions; the rest is done.
// Precondition: the world is stopped, and no function's entry is probed any more.
func (s *stubs) restore(st *Stopped, slots []uint64) (sure bool, err error) {
	var busy error
	if len(st.parked) > 0 {
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
	r := &residents{p: s.p, limit: s.limit, asks: maxAsked}
	if sure, err = r.find(maps); err != nil {
		return false, err
	}
	if !sure {
		r.found = nil
	}
	for _, slot := range slots {
		if m, ok := FindMap(maps, slot); ok {
			r.found = append(r.found, resident{Range: Range{slot, slot + 8}})
			sure = sure && searchable(m)
		}
	}
	for _, th := range st.everyone() {
		if m, ok := FindMap(maps, th.regs.RSP); ok {
			lo, hi := stackOf(maps, th.regs.RSP)
			r.found = append(r.found, resident{Range: Range{lo, hi}})
			sure = sure && searchable(m)
		}
	}
	for _, m := range r.found {
		switch err := s.restoreMemory(m.Lo, m.Hi); {
		case errors.Is(err, ErrInDetour):
			busy = err
		case errors.Is(err, ErrFault):
			sure = sure && m.shared // a device's, that nobody else can read, and no stack that is known
		case err != nil:
			return false, err
		}
	}
	return sure && busy == nil, busy
}

// restoreThread puts back what is in a thread's registers. One at a stub stands, in effect,
// at the address that the stub stands for.
func (s *stubs) restoreThread(th *Thread) error {
	r := th.Regs()
	changed := false
	for _, p := range []*uint64{
		&r.RIP, &r.RAX, &r.RBX, &r.RCX, &r.RDX, &r.RSI, &r.RDI, &r.RBP,
		&r.R8, &r.R9, &r.R10, &r.R11, &r.R12, &r.R13, &r.R14, &r.R15,
	} {
		if to, ok := s.real(*p); ok {
			*p, changed = to, true
		}
	}
	if s.holds(r.RIP) {
		return ErrInDetour
	}
	if !changed {
		return nil
	}
	return th.SetRegs(r)
}

// restoreVectors puts back what is in a thread's vector registers: it may be copying a stack.
func (s *stubs) restoreVectors(th *Thread) error {
	return th.s.Do(func() error {
		b, err := getXstate(th.TID)
		if err != nil {
			return fmt.Errorf("thread %d: vector registers: %w", th.TID, th.lost(err))
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
		if err := setXstate(th.TID, b); err != nil {
			return fmt.Errorf("thread %d: vector registers: %w", th.TID, th.lost(err))
		}
		return nil
	})
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
			if v-s.lo >= stubsSize {
				continue
			}
			to, ok := s.real(v)
			if !ok {
				if s.inBare(v) && (&Target{p: s.p}).inFrame(lo+uint64(i)) {
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
	return s.holds(v) && !amd64.IsStub(v&^7, s.lo, s.lo+stubsSize)
}

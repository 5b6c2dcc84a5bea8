package watchpoint

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

// Set has the watchpoints of a target. Whoever reads records never waits for a change. The zero value has none.
type Set struct {
	mu      sync.Mutex
	rings   []*perfRing
	byID    map[uint64]*point // by the kernel's number of an event
	opening atomic.Int32      // watchpoints whose events may have written samples before byID has them

	// Whoever reads records has what follows for himself.
	accessors map[accessKey]accessor
	scratch   []byte
}

// point is a watchpoint that is armed, or was.
type point struct {
	w    target.Watch
	mask uint64 // of the registers in samples

	mu     sync.Mutex
	events []int32 // descriptors
	final  [2]uint64
	closed atomic.Bool
}

// Bits of perf_event_attr (linux/perf_event.h) for which package unix has no name: Linux 5.13; and a read of 6.0.
const (
	perfInheritThread = 1 << 35
	perfRemoveOnExec  = 1 << 36
	perfFormatLost    = 1 << 4
)

// Kinds of breakpoints (linux/hw_breakpoint.h). That of an instruction has the length of a word.
var perfAccess = map[event.Access]struct{ kind, size uint32 }{
	event.ReadWrite: {kind: 3}, event.Write: {kind: 2}, event.Execute: {kind: 4, size: 8},
}

// Arm arms a watchpoint in the threads for which open calls Opening.Thread, and in those that they make from then on. first is
// one of them, with which it is tried before open stops them. It needs CAP_PERFMON or root where perf_event_paranoid is above 2,
// for records where it is above 0, and Linux 6.0.
func (s *Set) Arm(w *target.Watch, first int, open func(*Opening) error) (target.ExternalProbe, error) {
	attr, err := watchAttr(w)
	if err != nil {
		return nil, err
	}
	cpus, err := ring.OnlineCPUs()
	if err != nil {
		return nil, err
	}
	p := &point{w: *w, mask: perfMask(w.Prog)}
	o := &Opening{attr: attr, addr: w.Addr}
	for _, cpu := range cpus {
		o.cpus = append(o.cpus, eventsOn{cpu: int32(cpu), ring: -1})
	}
	s.opening.Add(1)
	defer s.opening.Add(-1)
	if w.Prog != nil {
		attr.Sample_type, attr.Sample, attr.Sample_regs_user = sampleType, 1, p.mask
		if err := s.output(o, cpus); err != nil {
			return nil, err
		}
	}
	if err = o.try(first); err == nil {
		err = open(o)
	}
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	p.events = o.fds[:o.n]
	s.note(p, o.ids[:o.n])
	return p, nil
}

// watchAttr is what all events of a watchpoint have in common.
func watchAttr(w *target.Watch) (*unix.PerfEventAttr, error) {
	access, ok := perfAccess[w.Access]
	if !ok {
		return nil, errno.Errorf(unix.EINVAL, "the processor can not watch reads alone: use rw")
	}
	if access.size == 0 {
		access.size = uint32(w.Len)
	}
	if w.Prog != nil {
		for i := range w.Prog.Args {
			if a := &w.Prog.Args[i]; len(a.Derefs)+len(a.Checks) > 0 || a.Base.Kind == fetch.BaseStack || a.Store != fetch.StoreValue && a.Store != fetch.StoreNone {
				return nil, errno.Errorf(unix.EOPNOTSUPP, "argument %s (%s): a watchpoint records registers and constants", a.Name, a.Text)
			}
		}
	}
	return &unix.PerfEventAttr{
		Type: unix.PERF_TYPE_BREAKPOINT, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Read_format: perfFormatLost,
		Bits: unix.PerfBitInherit | perfInheritThread | perfRemoveOnExec | unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv |
			unix.PerfBitUseClockID,
		Bp_type: access.kind, Ext1: w.Addr, Ext2: uint64(access.size), Clockid: unix.CLOCK_MONOTONIC,
	}, nil
}

// Tactic is watch.
func (p *point) Tactic() arch.Tactic { return arch.TacticWatch }

// Counts asks the kernel.
func (p *point) Counts() (hits, lost uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed.Load() {
		p.readLocked()
	}
	return p.final[0], p.final[1]
}

// readLocked sums up what the events have counted: a run, and a sample that found no room. Those that were inherited count for
// the one that they come from.
func (p *point) readLocked() {
	var sum [2]uint64
	for _, fd := range p.events {
		var b [16]byte
		if n, err := unix.Read(int(fd), b[:]); err != nil || n != len(b) {
			continue // the program has executed another one
		}
		sum[1] += binary.NativeEndian.Uint64(b[8:])
		if p.w.Prog == nil {
			sum[0] += binary.NativeEndian.Uint64(b[:])
		}
	}
	p.final = [2]uint64{max(p.final[0], sum[0]), max(p.final[1], sum[1])}
}

// Close ends the events. Their samples stay in the rings.
func (p *point) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil
	}
	p.readLocked()
	err := closeAll(p.events)
	p.events = nil
	p.closed.Store(true)
	return err
}

// output makes the rings, once, and has each event write into that of its CPU.
func (s *Set) output(o *Opening, cpus []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rings == nil {
		if err := s.openLocked(cpus); err != nil {
			return err
		}
	}
	for i := range o.cpus {
		on := &o.cpus[i]
		for _, r := range s.rings {
			if r.cpu == int(on.cpu) {
				on.ring = int32(r.fd)
			}
		}
		if on.ring < 0 {
			return errno.Errorf(unix.EAGAIN, "CPU %d has come since the first watchpoint: take all out, then add them again", on.cpu)
		}
	}
	return nil
}

// openLocked makes the rings.
func (s *Set) openLocked(cpus []int) error {
	var rings []*perfRing
	for _, cpu := range cpus {
		r, err := newPerfRing(cpu, len(cpus))
		if err != nil {
			for _, r := range rings {
				r.close()
			}
			return err
		}
		rings = append(rings, r)
	}
	s.rings, s.byID = rings, map[uint64]*point{}
	return nil
}

// note notes whose the samples of events are.
func (s *Set) note(p *point, ids []uint64) {
	if p.w.Prog == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.byID[id] = p
	}
}

// take gives the rings. ended forgets the events of watchpoints that had ended before take: their samples are read then. With the
// last of them it gives the rings back.
func (s *Set) take() (rings []*perfRing, ended func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var gone []uint64
	for id, p := range s.byID {
		if p.closed.Load() {
			gone = append(gone, id)
		}
	}
	return s.rings, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, id := range gone {
			delete(s.byID, id)
		}
		if len(s.byID) == 0 && s.opening.Load() == 0 {
			s.closeLocked()
		}
	}
}

// owner is the watchpoint of an event; nil: it has none any more, or (comes) not yet.
func (s *Set) owner(id uint64) (p *point, comes bool) {
	comes = s.opening.Load() > 0 // asked first: who has a number by then is found
	s.mu.Lock()
	defer s.mu.Unlock()
	p = s.byID[id]
	return p, p == nil && comes
}

// Close gives the rings back. Precondition: all watchpoints are closed, and nobody reads.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLocked()
}

func (s *Set) closeLocked() {
	for _, r := range s.rings {
		r.close()
	}
	s.rings, s.byID = nil, nil
}

package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

// A watchpoint is a perf event of the kernel's breakpoints (perf_event_open(2), PERF_TYPE_BREAKPOINT): the processor tells the
// kernel of an access, and the kernel writes a sample, with the thread's registers, into memory that the tracer maps. The
// process's memory is not changed, no signal is sent, and the events end with their descriptors: nothing is left when
// the tracer dies.
//
// There is an event for each thread and each CPU. A thread that is made later inherits the events of the one that makes it, and
// the kernel lets inherited events write samples only where an event belongs to one CPU. Threads stand while the events are
// opened, so that none is made meanwhile that would be watched twice, or not at all. All events of a CPU write into one ring
// (perfRing), which belongs to an event that counts nothing.

// watchpoint is a watchpoint that is armed, or was.
type watchpoint struct {
	set  *watchSet
	w    target.Watch
	mask uint64 // of the registers in samples

	mu     sync.Mutex
	events []int // descriptors
	final  [2]uint64
	closed atomic.Bool
}

// watchSet has the watchpoints of a process. Whoever reads records never waits for a change.
type watchSet struct {
	mu    sync.Mutex
	rings []*perfRing
	byID  map[uint64]*watchpoint // by the kernel's number of an event

	// Whoever reads records has what follows for himself.
	accessors map[accessKey]accessor
	ids       map[int]int // of threads: in their pid namespace, if that is not ours (foreign)
	foreign   bool
	scratch   []byte
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

// Watch arms a watchpoint. It needs CAP_PERFMON or root where perf_event_paranoid is above 2, and Linux 6.0.
func (t *Target) Watch(w *target.Watch) (target.ExternalProbe, error) {
	attr, err := watchAttr(w)
	if err != nil {
		return nil, err
	}
	cpus, err := ring.OnlineCPUs()
	if err != nil {
		return nil, err
	}
	p := &watchpoint{set: &t.watch, w: *w, mask: perfMask(w.Prog)}
	if w.Prog != nil {
		attr.Sample_type, attr.Sample, attr.Sample_regs_user = sampleType, 1, p.mask
		if err := t.watch.open(cpus); err != nil {
			return nil, err
		}
	}
	err = t.stopped(func(s *ptrace.Stopped) error {
		for _, th := range s.Everyone() {
			for _, cpu := range cpus {
				if err := p.open(attr, th.TID, cpu); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
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
			if a := &w.Prog.Args[i]; len(a.Derefs) > 0 || a.Base.Kind == fetch.BaseStack || a.Store != fetch.StoreValue && a.Store != fetch.StoreNone {
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

// open opens the event of a thread on a CPU. A thread that has ended needs none.
func (p *watchpoint) open(attr *unix.PerfEventAttr, tid, cpu int) error {
	fd, err := unix.PerfEventOpen(attr, tid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil
	case errors.Is(err, unix.ENOSPC):
		return errno.Errorf(unix.ENOSPC, "a processor has %d watchpoints, and all are taken", native.Watchpoints)
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return fmt.Errorf("a watchpoint takes a descriptor for each thread and CPU: raise the limit (ulimit -n): %w", err)
	case err != nil:
		return fmt.Errorf("watchpoint at 0x%x in thread %d: perf_event_open: %w", p.w.Addr, tid, err)
	}
	p.events = append(p.events, fd)
	if p.w.Prog == nil {
		return nil
	}
	return p.set.route(p, fd, cpu)
}

// Tactic is watch.
func (p *watchpoint) Tactic() arch.Tactic { return arch.TacticWatch }

// Counts asks the kernel.
func (p *watchpoint) Counts() (hits, lost uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed.Load() {
		p.readLocked()
	}
	return p.final[0], p.final[1]
}

// readLocked sums up what the events have counted: a run, and a sample that found no room. Those that were inherited count for
// the one that they come from.
func (p *watchpoint) readLocked() {
	var sum [2]uint64
	for _, fd := range p.events {
		var b [16]byte
		if n, err := unix.Read(fd, b[:]); err != nil || n != len(b) {
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
func (p *watchpoint) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return nil
	}
	var errs []error
	p.readLocked()
	for _, fd := range p.events {
		errs = append(errs, unix.Close(fd))
	}
	p.events = nil
	p.closed.Store(true)
	return errors.Join(errs...)
}

// open makes the rings, once.
func (s *watchSet) open(cpus []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rings != nil {
		return nil
	}
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
	s.rings, s.byID = rings, map[uint64]*watchpoint{}
	return nil
}

// route has an event write its samples into the ring of its CPU, and notes whose they are.
func (s *watchSet) route(p *watchpoint, fd, cpu int) error {
	id, err := perfID(fd)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byID[id] = p
	for _, r := range s.rings {
		if r.cpu == cpu {
			if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_OUTPUT, r.fd); err != nil {
				return fmt.Errorf("watchpoint at 0x%x: ring of CPU %d: %w", p.w.Addr, cpu, err)
			}
			return nil
		}
	}
	return errno.Errorf(unix.EAGAIN, "CPU %d has come meanwhile: try again", cpu)
}

// take gives the rings, and forgets at the next call the events of watchpoints that had ended at this one: their samples
// are read then.
func (s *watchSet) take() (rings []*perfRing, ended func()) {
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
	}
}

// owner is the watchpoint of an event; nil: it has none any more.
func (s *watchSet) owner(id uint64) *watchpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// close gives the rings back.
func (s *watchSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rings {
		r.close()
	}
	s.rings, s.byID = nil, nil
}

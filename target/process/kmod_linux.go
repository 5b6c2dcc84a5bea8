package process

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

var _ target.ModuleLoader = (*Target)(nil)

// kmodule is a module of C that stands in the process.
type kmodule struct {
	t  *Target
	at target.ModuleMemory
}

// OpenModules prepares the process for modules. Errors: EOPNOTSUPP, EACCES where seccomp forbids what it needs, and what is said of too little memory.
func (t *Target) OpenModules(o *target.ModuleOptions) (*target.ModuleRuntime, error) {
	if err := t.openInLine(o); err != nil {
		return nil, err
	}
	return &target.ModuleRuntime{Symbols: t.inLine.run.Symbols, CPUs: slotCount}, nil
}

// NewModule maps a module's memory, below 2 GB.
func (t *Target) NewModule(size *target.ModuleSize) (target.Module, error) {
	m, all := &kmodule{t: t}, *size
	all.PerCPU *= slotCount
	total := all.Text + all.Rodata + all.Data + all.PerCPU + all.Heap
	if err := t.checkRoom("a module", headroom.Take{Charged: total, Ours: total, Mapped: total, Private: total, Locked: total}); err != nil {
		return nil, err
	}
	err := t.stopped(func(s *ptrace.Stopped) error {
		if err := m.mapParts(s, &all); err != nil {
			return errors.Join(err, m.unmap(s))
		}
		t.kmods = append(t.kmods, m)
		if err := t.faults.renew(s); err != nil {
			m.forget()
			return errors.Join(err, m.unmap(s))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// mapParts maps the parts. Precondition: the world is stopped.
func (m *kmodule) mapParts(s *ptrace.Stopped, size *target.ModuleSize) error {
	const rw = unix.PROT_READ | unix.PROT_WRITE
	for _, p := range []struct {
		to   *interval.Range
		size uint64
		prot int
	}{
		{&m.at.Text, size.Text, unix.PROT_READ | unix.PROT_EXEC},
		{&m.at.Rodata, size.Rodata, unix.PROT_READ},
		{&m.at.Data, size.Data, rw},
		{&m.at.PerCPU, size.PerCPU, rw},
		{&m.at.Heap, size.Heap, rw},
	} {
		if p.size == 0 {
			continue
		}
		name := heapName
		if p.prot&unix.PROT_EXEC != 0 {
			name = codeName
		}
		at, err := m.t.mapLow(s, name, p.size, p.prot)
		if err != nil {
			return err
		}
		*p.to = interval.Range{Start: at, End: at + p.size}
	}
	return nil
}

// Memory is where the module lies.
func (m *kmodule) Memory() *target.ModuleMemory { return &m.at }

// Write writes memory of the module's, which the process can read. EFAULT: it is not the module's.
func (m *kmodule) Write(addr uint64, b []byte) error {
	if !m.at.Contains(addr, uint64(len(b))) {
		return errno.Errorf(unix.EFAULT, "0x%x is no memory of the module", addr)
	}
	return m.t.p.WriteMem(addr, b)
}

// Unload takes the module's memory out. It waits for threads that are in its code, or on their way there. ErrInDetour: one stays there, and so does the memory.
// Precondition: its handlers have been taken out.
func (m *kmodule) Unload() error {
	return drained(func() error { return m.t.stopped(m.unload) })
}

// unload is Unload where no thread is in the way. Precondition: the world is stopped.
func (m *kmodule) unload(s *ptrace.Stopped) error {
	if err := m.busy(s); err != nil {
		return err
	}
	m.forget()
	l := m.t.inLine
	l.mu.Lock()
	l.collect()
	l.mu.Unlock()
	return errors.Join(m.t.faults.renew(s), m.unmap(s))
}

// forget has the module be none of the process's any more.
func (m *kmodule) forget() {
	m.t.kmods = slices.DeleteFunc(m.t.kmods, func(k *kmodule) bool { return k == m })
}

// busy fails while a thread is in the module's code, in a slot for one of its handlers, or in a gate on the way there. Precondition: the world is stopped.
func (m *kmodule) busy(s *ptrace.Stopped) error {
	l := m.t.inLine
	descs := l.descs(m.at.Text)
	in := func(pc uint64, r *ptrace.Regs) bool {
		return m.at.Text.Contains(pc) || l.code.Start <= pc && pc < l.code.End && descs[gateDesc(r)]
	}
	busy, inside, bases := false, false, map[uint64]bool{}
	for _, th := range s.Everyone() {
		r := th.Regs()
		inside = inside || in(th.ResumePC(), &r)
		bases[th.ThreadPointer()] = true
	}
	err := m.t.contexts(s, m.t.golang != nil, func(_ *ptrace.Thread, at, v uint64) {
		if !m.at.Text.Contains(v) && (v < l.code.Start || v >= l.code.End) {
			return
		}
		r, err := m.t.p.SavedRegs(at)
		busy = busy || err != nil || in(v, &r)
	})
	if err != nil {
		return err
	}
	if err := l.freeOver(s, bases); err != nil {
		return err
	}
	runs, err := l.slots()
	switch {
	case err != nil:
	case inside:
		err = errLeaving
	case busy || slices.ContainsFunc(runs, func(r slotRun) bool { return descs[r.Desc] }):
		err = ErrInDetour
	}
	return err
}

func (m *kmodule) unmap(s *ptrace.Stopped) error {
	var errs []error
	for _, r := range m.at.All() {
		if r.Start != 0 {
			errs = append(errs, s.Munmap(r.Start, r.End-r.Start))
		}
	}
	return errors.Join(errs...)
}

// Call runs a function of the module that takes no arguments, its start or its end, on a thread of its own, and answers its requests. It gives
// what the function has returned: -EFAULT if something has faulted in it. While it runs the program runs too, with one thread more.
// It waits as long as the function does. ErrGone: the process has ended.
func (m *kmodule) Call(fn uint64, serve func(target.ModuleRequest) int64) (result int64, err error) {
	if !m.at.Text.Contains(fn) {
		return 0, errno.Errorf(unix.EFAULT, "a function of the module at 0x%x: it is not in its code", fn)
	}
	return m.t.inLine.runThread(fn, serve)
}

// letThreadGo lets a module's thread go that an earlier tracer, which has gone, has left: one that asks is answered, goes on, and ends soon; one that waits for its beginning, or
// is just being made, ends at once. Its sleep begins anew when it is let go after the stop, and ends at once since the state is another. Preconditions: the world is stopped, the
// tracer is gone.
func letThreadGo(p *ptrace.Process, m procfs.Map) error {
	b := make([]byte, arch.ThreadSize)
	if err := p.ReadMem(m.Start, b); err != nil {
		return err
	}
	put := func(off uint64, state uint32, v uint64) error {
		return errors.Join(p.WriteMem(m.Start+off, le.AppendUint64(nil, v)), p.WriteMem(m.Start+arch.ThreadState, le.AppendUint32(nil, state)))
	}
	switch le.Uint32(b[arch.ThreadState:]) {
	case arch.ThreadWaits:
		return put(arch.ThreadFunc, arch.ThreadRuns, 0)
	case arch.ThreadAsks:
		answer := int64(-int(unix.ETIMEDOUT))
		return put(arch.ThreadAnswer, arch.ThreadAnswered, uint64(answer))
	}
	return nil
}

// word is a word of the thread's.
func (l *inLine) word(off int) *uint32 { return (*uint32)(unsafe.Pointer(&l.thread.b[off])) }

// long is a word of 64 bits: the process may write to it at any time.
func (l *inLine) long(off int) *uint64 { return (*uint64)(unsafe.Pointer(&l.thread.b[off])) }

// runThread starts the thread, and is done when it has ended.
func (l *inLine) runThread(fn uint64, serve func(target.ModuleRequest) int64) (int64, error) {
	clear(l.thread.b[:arch.ThreadSize])
	atomic.StoreUint32(l.word(arch.ThreadAlive), 1)
	atomic.StoreUint64(l.long(arch.ThreadFunc), fn)
	err := l.exclusive(func() error {
		return l.t.stopped(func(s *ptrace.Stopped) error {
			return s.StartThread(&ptrace.NewThread{
				Start: l.run.Start, Stack: l.data.Start + stackOff + stackSize, Base: l.data.Start + blockOff + threadBlock, Alive: l.words + arch.ThreadAlive,
			})
		})
	})
	if err != nil {
		return 0, err
	}
	if !l.become(arch.ThreadWaits, arch.ThreadRuns) {
		return 0, errno.Errorf(unix.ETIMEDOUT, "process %d: the thread for the module did not wait for its tracer", l.t.p.PID())
	}
	for {
		switch state := atomic.LoadUint32(l.word(arch.ThreadState)); state {
		case arch.ThreadAsks:
			r := target.ModuleRequest{
				What: int64(atomic.LoadUint64(l.long(arch.ThreadAsked))),
				Of:   atomic.LoadUint64(l.long(arch.ThreadAsked + 8)),
				N:    int64(atomic.LoadUint64(l.long(arch.ThreadAsked + 16))),
			}
			atomic.StoreUint64(l.long(arch.ThreadAnswer), uint64(serve(r)))
			l.become(arch.ThreadAsks, arch.ThreadAnswered) // else it has given up
		case arch.ThreadEnded:
			return int64(atomic.LoadUint64(l.long(arch.ThreadResult))), l.awaitEnd()
		default:
			if err := l.sleep(arch.ThreadState, state); err != nil {
				return 0, err
			}
		}
	}
}

// become makes a state of another, and wakes the thread.
func (l *inLine) become(from, to uint32) bool {
	if !atomic.CompareAndSwapUint32(l.word(arch.ThreadState), from, to) {
		return false
	}
	l.thread.wake(l.word(arch.ThreadState), 1)
	return true
}

// awaitEnd waits until the thread is no thread of the process any more.
func (l *inLine) awaitEnd() error {
	for {
		v := atomic.LoadUint32(l.word(arch.ThreadAlive))
		if v == 0 {
			return nil
		}
		if err := l.sleep(arch.ThreadAlive, v); err != nil {
			return err
		}
	}
}

// threadLook is how long the tracer sleeps at most before it looks whether the process is still there.
const threadLook = 100 * time.Millisecond

// sleep waits until a word is not v any more, or for a while. ErrGone: the process has ended.
func (l *inLine) sleep(off int, v uint32) error {
	l.thread.sleepFor(l.word(off), v, threadLook)
	if l.t.Ended() && atomic.LoadUint32(l.word(off)) == v {
		return asGone(fmt.Errorf("process %d: %w while a module's thread ran", l.t.p.PID(), ErrNoProcess))
	}
	return nil
}

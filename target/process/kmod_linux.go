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
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/kmod"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// Kmod is a module of C that stands in the process.
type Kmod struct {
	t     *Target
	image *kmod.Image
	parts [kmod.Parts]interval.Range
	heap  interval.Range

	formats map[uint64]string
	uses    map[uint64]native.SlotUse // by the address of the handler
}

// kmodHeap is the memory that a module has for kmalloc, in bytes.
const kmodHeap = 256 << 10

// LoadKmod links a module's object into the process, below 2 GB, with its parameters. Nothing of it runs yet. unknown tells of parameters that it
// does not take. Errors: kmod.ErrObject (a name that nobody has, among others), those of kmod.Image.Set, EOPNOTSUPP, EACCES where seccomp
// forbids what it needs, and what is said of too little memory.
func (t *Target) LoadKmod(o *kmod.Object, params []kmod.Param, unknown func(name string), l *InLine) (*Kmod, error) {
	if err := t.openInLine(l); err != nil {
		return nil, err
	}
	m, layout := &Kmod{t: t, uses: map[uint64]native.SlotUse{}}, o.Layout(params)
	if err := m.mapParts(layout); err != nil {
		return nil, err
	}
	if err := m.link(layout, params, unknown); err != nil {
		return nil, errors.Join(err, m.Unload())
	}
	t.kmods = append(t.kmods, m)
	if err := t.stopped(t.faults.renew); err != nil {
		return nil, errors.Join(err, m.Unload())
	}
	return m, nil
}

// mapParts maps the module's memory.
func (m *Kmod) mapParts(l *kmod.Layout) error {
	t, total := m.t, uint64(kmodHeap)
	sizes := l.Size
	sizes[kmod.PerCPU] *= slotCount
	for _, n := range sizes {
		total += n
	}
	if err := t.checkRoom("a module", headroom.Take{Charged: total, Ours: total, Mapped: total, Private: total, Locked: total}); err != nil {
		return err
	}
	return t.stopped(func(s *ptrace.Stopped) error {
		one := func(r *interval.Range, size uint64, prot int) error {
			if size == 0 {
				return nil
			}
			name := heapName
			if prot&unix.PROT_EXEC != 0 {
				name = codeName
			}
			at, err := t.mapLow(s, name, size, prot)
			if err == nil {
				*r = interval.Range{Start: at, End: at + size}
			}
			return err
		}
		const rw = unix.PROT_READ | unix.PROT_WRITE
		for part, prot := range [kmod.Parts]int{kmod.Text: unix.PROT_READ | unix.PROT_EXEC, kmod.Rodata: unix.PROT_READ, kmod.Data: rw, kmod.PerCPU: rw} {
			if err := one(&m.parts[part], sizes[part], prot); err != nil {
				return errors.Join(err, m.unmap(s))
			}
		}
		if err := one(&m.heap, kmodHeap, rw); err != nil {
			return errors.Join(err, m.unmap(s))
		}
		return nil
	})
}

// link writes the module's bytes.
func (m *Kmod) link(l *kmod.Layout, params []kmod.Param, unknown func(string)) (err error) {
	var at [kmod.Parts]uint64
	for i, r := range m.parts {
		at[i] = r.Start
	}
	known := map[string]uint64{"__kp_percpu_stride": l.Size[kmod.PerCPU], "__kp_heap": m.heap.Start, "__kp_heap_end": m.heap.End}
	m.image, err = l.Link(at, func(name string) (uint64, bool) {
		if addr, ok := m.t.inLine.run.Symbols[name]; ok {
			return addr, true
		}
		addr, ok := known[name]
		return addr, ok
	})
	if err != nil {
		return err
	}
	if err := m.image.Set(l, params, unknown); err != nil {
		return err
	}
	m.formats = m.image.Formats(l)
	for i, b := range m.image.Bytes {
		copies := 1
		if kmod.Part(i) == kmod.PerCPU {
			copies = slotCount
		}
		for n := range copies {
			if len(b) == 0 {
				break
			}
			if err := m.t.p.WriteMem(at[i]+uint64(n*len(b)), b); err != nil {
				return err
			}
		}
	}
	return nil
}

// Text is where the module's code lies.
func (m *Kmod) Text() interval.Range { return m.parts[kmod.Text] }

// useOf is what a handler does with the registers that it is given. Precondition: inLine.mu is held.
func (m *Kmod) useOf(handler uint64) native.SlotUse {
	use, ok := m.uses[handler]
	if !ok {
		use = native.SlotUseOf(m.image.Bytes[kmod.Text], m.Text().Start, handler, m.t.inLine.run.Ignores())
		m.uses[handler] = use
	}
	return use
}

// Size is how many bytes of memory the module takes, without what it has for kmalloc.
func (m *Kmod) Size() (n uint64) {
	for _, r := range m.parts {
		n += r.End - r.Start
	}
	return n
}

// Write writes memory of the module's, which the process can read. EFAULT: it is not the module's.
func (m *Kmod) Write(addr uint64, b []byte) error {
	end := addr + uint64(len(b))
	for _, r := range append(slices.Clone(m.parts[:]), m.heap) {
		if r.Start <= addr && addr < end && end <= r.End {
			return m.t.p.WriteMem(addr, b)
		}
	}
	return errno.Errorf(unix.EFAULT, "0x%x is no memory of the module", addr)
}

// Image is the module as it was before it ran.
func (m *Kmod) Image() *kmod.Image { return m.image }

// Formats are those of its printk, by the addresses that records have (kmod.Line).
func (m *Kmod) Formats() map[uint64]string { return m.formats }

// Unload takes the module's memory out. It waits for threads that are in its code, or on their way there. ErrInDetour: one stays there, and so does the memory.
// Precondition: its handlers have been taken out.
func (m *Kmod) Unload() (err error) {
	for range drainTries {
		if err = m.t.stopped(m.unload); !errors.Is(err, ErrInDetour) {
			return err
		}
		time.Sleep(drainWait)
	}
	return err
}

// unload is Unload where no thread is in the way. Precondition: the world is stopped.
func (m *Kmod) unload(s *ptrace.Stopped) error {
	if err := m.busy(s); err != nil {
		return err
	}
	m.t.kmods = slices.DeleteFunc(m.t.kmods, func(k *Kmod) bool { return k == m })
	l := m.t.inLine
	l.mu.Lock()
	l.collect()
	l.mu.Unlock()
	return errors.Join(m.t.faults.renew(s), m.unmap(s))
}

// busy fails while a thread is in the module's code, in a slot for one of its handlers, or in a gate on the way there. Precondition: the world is stopped.
func (m *Kmod) busy(s *ptrace.Stopped) error {
	l := m.t.inLine
	descs := l.descs(m.Text())
	in := func(pc uint64, r *ptrace.Regs) bool {
		return m.Text().Contains(pc) || l.code.Start <= pc && pc < l.code.End && descs[gateDesc(r)]
	}
	busy, bases := false, map[uint64]bool{}
	for _, th := range s.Everyone() {
		r := th.Regs()
		busy = busy || in(th.ResumePC(), &r)
		bases[th.ThreadPointer()] = true
	}
	err := m.t.contexts(s, m.t.golang != nil, func(_ *ptrace.Thread, at, v uint64) {
		if !m.Text().Contains(v) && (v < l.code.Start || v >= l.code.End) {
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
	if err == nil && (busy || slices.ContainsFunc(runs, func(r slotRun) bool { return descs[r.Desc] })) {
		err = ErrInDetour
	}
	return err
}

func (m *Kmod) unmap(s *ptrace.Stopped) error {
	var errs []error
	for _, r := range append(slices.Clone(m.parts[:]), m.heap) {
		if r.Start != 0 {
			errs = append(errs, s.Munmap(r.Start, r.End-r.Start))
		}
	}
	return errors.Join(errs...)
}

// Request is what a module's function asks for: linux/kp_runtime.h has the kinds.
type Request struct {
	What int64
	Of   uint64
	N    int64
}

// Call runs a function of the module that takes no arguments, its start or its end, on a thread of its own, and answers its requests. It gives
// what the function has returned: -EFAULT if something has faulted in it. While it runs the program runs too, with one thread more.
// It waits as long as the function does. ErrGone: the process has ended.
func (m *Kmod) Call(fn uint64, serve func(Request) int64) (result int64, err error) {
	if !m.Text().Contains(fn) {
		return 0, errno.Errorf(unix.EFAULT, "a function of the module at 0x%x: it is not in its code", fn)
	}
	return m.t.inLine.runThread(fn, serve)
}

// letThreadGo answers a module's thread that asks an earlier tracer, which has gone: it goes on, and ends soon. Its sleep begins anew when it is let go after the
// stop, and ends at once since the state is another. Preconditions: the world is stopped, the tracer is gone.
func letThreadGo(p *ptrace.Process, m procfs.Map) error {
	b := make([]byte, arch.ThreadSize)
	if err := p.ReadMem(m.Start, b); err != nil {
		return err
	}
	if le.Uint32(b[arch.ThreadState:]) != arch.ThreadAsks {
		return nil
	}
	answer := int64(-int(unix.ETIMEDOUT))
	return errors.Join(p.WriteMem(m.Start+arch.ThreadAnswer, le.AppendUint64(nil, uint64(answer))),
		p.WriteMem(m.Start+arch.ThreadState, le.AppendUint32(nil, arch.ThreadAnswered)))
}

// word is a word of the thread's.
func (l *inLine) word(off int) *uint32 { return (*uint32)(unsafe.Pointer(&l.thread.b[off])) }

// long is a word of 64 bits: the process may write to it at any time.
func (l *inLine) long(off int) *uint64 { return (*uint64)(unsafe.Pointer(&l.thread.b[off])) }

// runThread starts the thread, and is done when it has ended.
func (l *inLine) runThread(fn uint64, serve func(Request) int64) (int64, error) {
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
			r := Request{int64(atomic.LoadUint64(l.long(arch.ThreadAsked))), atomic.LoadUint64(l.long(arch.ThreadAsked + 8)), int64(atomic.LoadUint64(l.long(arch.ThreadAsked + 16)))}
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

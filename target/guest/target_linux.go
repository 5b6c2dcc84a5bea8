package guest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// Options are the choices of Attach; nil means all defaults.
type Options struct {
	// Low takes the pages below 1 MiB also where the guest has an ivshmem device.
	Low bool
	// HandlerWait is how long a vCPU waits for a handler (NewCall), in the guest's time; 0 is
	// 100 ms, a minute is the most. A tracer that was killed costs one such wait.
	HandlerWait time.Duration
}

// Target makes the kernel of a guest a target.Target.
type Target struct {
	o       Options
	m       *qemu.Machine
	k       *kernel.Kernel
	arch    *arch.Kernel
	space   atomic.Pointer[symbol.Space]
	image   *symbol.Image
	mods    map[uint64]*module // by the address of their struct module
	version uint64             // of the list of modules
	ended   atomic.Pointer[error]
	lay     *layout // nil before Prepare
	adopted *layout // of an earlier tracer and in force: a thread may be in its code
	clean   bool    // nothing of a killed tracer's patches stands (Recover)
	claims  bool    // the machine is this engine's (qemu.Machine.Claim)
	control *controlBlock
	code    *patch.Piece
	codeMu  sync.Mutex
	heap    int // bytes of the data part that are given out
	pools   []*arch.Pool
	idle    map[*arch.Pool]bool // pools that no probe has
	changes uint64              // that took sites out
	held    *qemu.Stop          // while a change's Then runs, for Reap
	part    int                 // of the pools, that Crowded has looked at last
	mail    *mailSide           // of vCPUs that wait for handlers; nil: there was no handler
	inLine  *inLine             // of modules; nil: there was none
	ring    *ring.Ring
	writer  arch.CodegenEnv
	zombie  []*target.Site // taken out, but a thread may still be in the detour
	foreign []*target.Site // not taken out: somebody else has patched over them
	notes   []*target.Site // what Note has told
	clock   guestClock
	breaks  breaks
}

var (
	_ target.Target    = (*Target)(nil)
	_ target.Describer = (*Target)(nil)
	_ target.Recoverer = (*Target)(nil)
	_ target.Clocked   = (*Target)(nil)
)

// Attach makes the kernel that runs in a machine a target. It reads the guest's memory and
// changes nothing. Errors: EAGAIN if no kernel has come up yet, or no vCPU runs a kernel that an
// earlier boot has left in memory; EEXIST if several kernels are there and nobody could be asked
// which of them runs; EINVAL for a kernel that can not be used, with the reason; EOPNOTSUPP for a
// kernel that lacks what is needed, with what that is.
func Attach(m *qemu.Machine, o *Options) (*Target, error) {
	k, err := findRunning(m)
	if err != nil {
		return nil, err
	}
	t, err := attach(m, k, o)
	if err != nil {
		return nil, unlessEnded(m, k, err)
	}
	go t.watch()
	return t, nil
}

// attach makes a kernel that was found a target.
func attach(m *qemu.Machine, k *kernel.Kernel, o *Options) (t *Target, err error) {
	t = &Target{m: m, k: k}
	if o != nil {
		t.o = *o
	}
	if t.arch, err = k.Arch(); err != nil {
		return nil, err
	}
	if t.image, err = k.Image(); err != nil {
		return nil, err
	}
	t.clock.k, t.writer.Kernel = k, t.arch
	_, err = t.Refresh()
	return t, err
}

// watch waits for the end of this boot.
func (t *Target) watch() {
	for e := range t.m.Events() {
		err := fmt.Errorf("%w: %v", target.ErrGone, e)
		t.ended.CompareAndSwap(nil, &err)
	}
}

// Kernel is the kernel that was found.
func (t *Target) Kernel() *kernel.Kernel { return t.k }

// Machine is the machine that it runs on.
func (t *Target) Machine() *qemu.Machine { return t.m }

// CPUs is the number of CPUs that the kernel may have.
func (t *Target) CPUs() int { return t.k.CPUs() }

// Arch is x86-64.
func (t *Target) Arch() arch.Arch { return native.Arch }

// Space finds names in the kernel and its modules.
func (t *Target) Space() *symbol.Space { return t.space.Load() }

// Read reads the kernel's memory, and what the tracer has put there.
func (t *Target) Read(addr uint64, b []byte) error {
	if t.inLine != nil {
		return t.memory().Read(addr, b)
	}
	return t.k.Read(addr, b)
}

// Ring is the ring, after Prepare.
func (t *Target) Ring() *ring.Ring { return t.ring }

// CodegenEnv describes the kernel to generated code, after Prepare.
func (t *Target) CodegenEnv() *arch.CodegenEnv { return &t.writer }

// errTraps is why no breakpoint may stand in the kernel.
var errTraps = errno.Errorf(unix.EOPNOTSUPP, "nobody in the guest would take a breakpoint of ours: a breakpoint there is the tactic break")

// Traps says why no breakpoint may stand in the kernel.
func (t *Target) Traps() error { return errTraps }

// TrapsAt says the same of each function.
func (t *Target) TrapsAt(uint64, bool) error { return errTraps }

// Loads is nil: the kernel's own functions read what may not be there.
func (t *Target) Loads() error { return nil }

// Loader is none: modules are looked for by Refresh.
func (t *Target) Loader() (symbol.Resolved, uint64, bool) { return symbol.Resolved{}, 0, false }

// Answer has nobody to answer.
func (t *Target) Answer() (late bool, err error) { return false, nil }

// alive says whether the kernel still runs that was found.
func (t *Target) alive() error {
	if err := t.ended.Load(); err != nil {
		return *err
	}
	if err := t.k.Check(); err != nil {
		return fmt.Errorf("%w: the guest has been started anew: %w", target.ErrGone, err)
	}
	return nil
}

// stopped runs f while all vCPUs are stopped.
func (t *Target) stopped(f func(*qemu.Stop) error) error { return t.asGone(t.m.Stopped(f)) }

// asGone has an error of the machine say that the kernel is gone, where QEMU has ended: the machine's events may tell so
// only later. What Close decides then must not depend on which came first.
func (t *Target) asGone(err error) error {
	if !errors.Is(err, qemu.ErrGone) || errors.Is(err, target.ErrGone) {
		return err
	}
	err = fmt.Errorf("%w: %w", target.ErrGone, err)
	t.ended.CompareAndSwap(nil, &err)
	return err
}

// Prepare maps code, ring and pools into the guest's kernel. What a tracer has left that is
// gone is taken out first; one that still runs is an error (EBUSY), and so is what another version
// of this package has left there.
func (t *Target) Prepare() (err error) {
	if t.lay != nil {
		return nil
	}
	if err := t.claim(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			t.release()
		}
	}()
	if err := t.recover(); err != nil {
		return err
	}
	l := t.adopted
	if l == nil {
		if l, err = t.newLayout(); err != nil {
			return err
		}
	}
	since, err := startTime(os.Getpid())
	if err != nil {
		return err
	}
	c := newControl(l.control.mem)
	r, err := t.install(l, c, since)
	if err != nil {
		return err
	}
	t.lay, t.control, t.ring, t.clean = l, c, r, false
	t.heap, t.pools, t.idle = 0, nil, nil
	t.code = l.room(t.adopted == l, c.get(hdrMark))
	t.writer = arch.CodegenEnv{Ring: l.ring.va, Layout: r.Layout, Kernel: t.arch}
	return nil
}

// install fills a layout's memory and maps it.
func (t *Target) install(l *layout, c *controlBlock, since uint64) (r *ring.Ring, err error) {
	fill := func() (err error) {
		c.init(uint64(os.Getpid()), since, l)
		clear(l.data.mem)
		r, err = ring.On(l.ring.mem, l.ringConfig)
		return err
	}
	if l.shared { // it is large, and no boot loader's: no reason to stop anybody
		if err := fill(); err != nil {
			return nil, err
		}
	}
	err = t.stopped(func(s *qemu.Stop) error {
		if err := t.alive(); err != nil {
			return err
		}
		if err := t.running(s); err != nil {
			return err
		}
		if !l.shared {
			if err := fill(); err != nil {
				return err
			}
		}
		if l != t.adopted {
			l.install()
		}
		return nil
	})
	return r, err
}

// running makes sure that the vCPUs run the kernel that was found, and not one that came after
// it. Precondition: the vCPUs are stopped.
func (t *Target) running(s *qemu.Stop) error {
	cpus, err := s.CPUs()
	if err != nil {
		return err
	}
	for i := range cpus {
		if root := cpus[i].Root(); root != 0 && !t.k.Owns(root) {
			return fmt.Errorf("%w: vCPU %d runs something else", target.ErrGone, i)
		}
	}
	return nil
}

// newLayout chooses memory of the guest and its place in the kernel's page tables.
func (t *Target) newLayout() (*layout, error) {
	dir, err := directoryOf(t.k, t.m, directoryName)
	if err != nil {
		return nil, err
	}
	var l *layout
	if pa, mem := t.m.Shared(); mem != nil && !t.o.Low {
		l, err = sharedLayout(extent{pa, mem}, t.k.CPUs())
	} else {
		l, err = t.lowLayout()
	}
	if err != nil {
		return nil, err
	}
	return l, l.place(dir)
}

// lowLayout takes the longest run of unused pages below 1 MiB.
func (t *Target) lowLayout() (*layout, error) {
	free, err := t.k.Free()
	if err != nil {
		return nil, err
	}
	var best extent
	for _, r := range free {
		if n := int(r.End - r.Start); n > len(best.mem) {
			best = extent{r.Start, t.m.Bytes(r.Start, n)}
		}
	}
	return lowLayout(best, t.k.CPUs())
}

// Code gives room for code; all of it reaches all of the kernel.
func (t *Target) Code(lo, hi uint64, size int) (uint64, error) {
	t.codeMu.Lock()
	defer t.codeMu.Unlock()
	if a, ok := t.code.Take(lo, hi, size); ok {
		return a, nil
	}
	return 0, errno.Errorf(unix.ENOSPC, "no room for %d bytes of code: the guest's memory for it has %d bytes, probes hold the rest; a larger ivshmem device has more", size, t.code.Size)
}

// FreeCode takes back room that Code gave.
func (t *Target) FreeCode(addr uint64, size int) {
	t.codeMu.Lock()
	defer t.codeMu.Unlock()
	t.code.Free(patch.Room{Addr: addr, Size: size})
}

// Bounds of the wait for threads that are inside detours when everything goes.
const (
	drainTries = 50
	drainWait  = 2 * time.Millisecond // longer by as much after drainEach tries: half a second in all
	drainEach  = 5
)

// ErrInDetour says that code stays mapped because a thread may still come back to it.
var ErrInDetour = errors.New("a thread of the guest may still return into a detour: its code stays mapped, and harms nothing")

// Nanos is the guest's local trace clock at a tick, in nanoseconds.
func (t *Target) Nanos(tick uint64, cpu int) uint64 { return t.clock.nanos(tick, cpu) }

// Tick is the length of a tick in nanoseconds, as a number with 32 bits behind the point. Errors: ENOENT, the kernel does not tell.
func (t *Target) Tick() (uint64, error) { return t.clock.tick() }

package qemu

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/guest/phys"
	"kprobes.dev/kprobes/internal/interval"
)

// Options are how a machine is opened.
type Options struct {
	// Unlocked opens a machine for reading only, which any number may do beside the one who
	// holds it. Where that one holds the monitor too, only a guest of up to 2 GB can be
	// opened: its memory's layout is known.
	Unlocked bool

	// Guardian starts a process that looks after the machine should this one be killed
	// (Guard), before the first connection to the gdb stub. It is to keep the file open, and
	// with it the lock on the machine. What it returns is told "bye\n" and closed when the
	// machine is closed. nil starts none.
	Guardian func(s Spec, lock *os.File) (io.WriteCloser, error)

	// Paused is called after each pause that Stopped or a breakpoint made, with its length. It must not
	// use the machine.
	Paused func(time.Duration)
}

// Machine is a running QEMU. Its methods may be called by several goroutines, but for Close.
type Machine struct {
	spec Spec
	opt  Options

	mon     *monitor // nil if it is held by somebody else
	events  chan Event
	leaving atomic.Bool // we close the monitor, not QEMU
	claimed atomic.Bool // an engine of this process is at work
	accel   string
	cpus    int

	file   *os.File
	ram    []byte   // the whole file
	pieces []region // RAM in ascending order
	ranges []interval.Range
	ring   []byte
	ringPA uint64

	mu       sync.Mutex // who holds it may use what follows
	closed   bool
	stub     *stub
	watcher  *watcher
	guardian io.WriteCloser
	points   map[uint64][]*Breakpoint
	watched  map[memory][]*Watchpoint
	pauses   pauses
}

var _ phys.Memory = (*Machine)(nil)

// Open connects to a running QEMU and maps its memory; it stops nothing. It fails with
// ErrHeld where another engine holds the machine. o may be nil.
func Open(spec Spec, o *Options) (*Machine, error) {
	m := &Machine{spec: spec, events: make(chan Event, maxEvents+1), points: make(map[uint64][]*Breakpoint), watched: make(map[memory][]*Watchpoint)}
	if o != nil {
		m.opt = *o
	}
	if err := m.open(); err != nil {
		_ = m.Close()
		return nil, err
	}
	return m, nil
}

// readerWait is how long a reader waits for the monitor, which whoever holds the machine has.
const readerWait = time.Second

func (m *Machine) open() error {
	if err := m.openMemory(); err != nil {
		return err
	}
	wait := greeting
	if m.opt.Unlocked {
		wait = readerWait
	}
	mon, err := dialMonitor(m.spec.QMP, wait, m.post)
	if m.opt.Unlocked && errors.Is(err, unix.EBUSY) {
		return m.assume()
	}
	if err != nil {
		return withFlags(err)
	}
	m.mon = mon
	go m.awaitEnd(mon)
	if err := m.learn(); err != nil {
		return err
	}
	if err := m.mapRing(); err != nil || !m.opt.Unlocked {
		return err
	}
	m.leaving.Store(true)
	mon.close() // it takes one client at a time: whoever holds the machine
	return nil
}

// withFlags adds to an error what QEMU must be started with, where it lacks something.
func withFlags(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w; QEMU must be running, started with\n%s", err, Flags())
	}
	return err
}

// awaitEnd posts Gone when QEMU has closed the monitor, and closes the channel of events.
func (m *Machine) awaitEnd(mon *monitor) {
	<-mon.done
	if !m.leaving.Load() {
		m.events <- Gone
	}
	close(m.events)
}

// learn asks QEMU what machine it is.
func (m *Machine) learn() error {
	var kvm struct {
		Enabled bool `json:"enabled"`
	}
	if err := m.mon.run("query-kvm", nil, &kvm); err != nil {
		return err
	}
	m.accel = "tcg"
	if kvm.Enabled {
		m.accel = "kvm"
	}
	var cpus []struct {
		Target string `json:"target"`
	}
	if err := m.mon.run("query-cpus-fast", nil, &cpus); err != nil {
		return err
	}
	if len(cpus) == 0 || cpus[0].Target != "x86_64" {
		return errno.Errorf(unix.EOPNOTSUPP, "guest: its vCPUs are not those of qemu-system-x86_64: %v", cpus)
	}
	m.cpus = len(cpus)
	return m.learnMemory()
}

// learnMemory checks that the file is the machine's memory, and learns where it lies.
func (m *Machine) learnMemory() error {
	var object string
	var share bool
	err := m.mon.property("/machine", "memory-backend", &object)
	if err == nil && object != "" {
		err = m.mon.property(object, "share", &share)
	}
	if err != nil && errors.Is(err, ErrGone) {
		return err
	}
	if err != nil || !share {
		return errno.Errorf(unix.EINVAL, "guest: its RAM is not one memory backend with share=on; QEMU must be started with\n%s", Flags())
	}
	if err := m.sameFile(object, m.file, m.spec.Memory); err != nil {
		return err
	}
	regions, err := m.regions()
	if err != nil {
		return err
	}
	if m.pieces, err = backed(regions, baseName(object), uint64(len(m.ram))); err != nil {
		return err
	}
	if len(m.pieces) == 0 {
		return errno.Errorf(unix.EINVAL, "guest: memory backend %s is nowhere in its physical memory", object)
	}
	m.setRanges()
	return nil
}

// sameFile checks that file is what backs the object, as far as QEMU tells a path that can
// be seen here.
func (m *Machine) sameFile(object string, file *os.File, given string) error {
	var path string
	if err := m.mon.property(object, "mem-path", &path); err != nil || path == "" {
		return nil // a memfd has none
	}
	theirs, err := os.Stat(path)
	if err != nil {
		return nil // relative to QEMU's directory, or in another mount namespace
	}
	ours, err := file.Stat()
	if err != nil {
		return err
	}
	if theirs.Mode().IsRegular() && !os.SameFile(theirs, ours) {
		return errno.Errorf(unix.EINVAL, "guest: %s backs %s, not %s", path, object, given)
	}
	return nil
}

func (m *Machine) regions() ([]region, error) {
	text, err := m.mon.human("info mtree -f")
	if err != nil {
		return nil, err
	}
	return parseRegions(text)
}

func (m *Machine) setRanges() {
	m.ranges = make([]interval.Range, len(m.pieces))
	for i, p := range m.pieces {
		m.ranges[i] = interval.Range{Start: p.start, End: p.end}
	}
}

// Spec is where the machine was found.
func (m *Machine) Spec() Spec { return m.spec }

// Accel is what executes the guest's instructions: tcg or kvm; "" where that is not known
// (Options.Unlocked).
func (m *Machine) Accel() string { return m.accel }

// CPUs is the number of vCPUs when the machine was opened; 0 where that is not known.
func (m *Machine) CPUs() int { return m.cpus }

// Ranges gives the guest's RAM as it lay when the machine was opened; what its firmware has made read-only is
// left out.
func (m *Machine) Ranges() []interval.Range { return slices.Clone(m.ranges) }

// Bytes implements phys.Memory.
func (m *Machine) Bytes(pa uint64, n int) []byte {
	if n < 0 {
		return nil
	}
	for _, p := range m.pieces {
		if pa >= p.start && pa < p.end && uint64(n) <= p.end-pa {
			off := p.off + (pa - p.start)
			return m.ram[off : off+uint64(n) : off+uint64(n)]
		}
	}
	return nil
}

// Shared gives the memory of the ivshmem device and its guest-physical address; 0 and nil
// without one. The address is 0 where it is not known (Options.Unlocked).
func (m *Machine) Shared() (pa uint64, mem []byte) { return m.ringPA, m.ring }

// Claim gives the machine to one engine of this process, until Release; false: another has it. The
// lock on the machine keeps other processes out.
func (m *Machine) Claim() bool { return m.claimed.CompareAndSwap(false, true) }

// Release ends what Claim has begun.
func (m *Machine) Release() { m.claimed.Store(false) }

// Close removes all breakpoints and watchpoints, lets the vCPUs run if they ran before, and ends the
// connections. The memory is gone with it: nobody may use bytes of it any more.
func (m *Machine) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	err := m.leave()
	if m.guardian != nil {
		err = errors.Join(err, dismiss(m.guardian, err == nil))
	}
	m.leaving.Store(true)
	if m.mon != nil {
		m.mon.close()
	}
	m.unmap()
	return err
}

// dismiss ends a guardian. One that is not told bye tidies up after us.
func dismiss(w io.WriteCloser, clean bool) error {
	var err error
	if clean {
		_, err = io.WriteString(w, bye)
	}
	return errors.Join(err, w.Close())
}

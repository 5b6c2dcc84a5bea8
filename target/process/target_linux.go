package process

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
	_ "kprobes.dev/kprobes/native" // names of C++ and Rust
)

// TargetOptions are the choices of Attach; nil means all defaults.
type TargetOptions struct {
	// Buffer is how many bytes of records a CPU may hold that have not been read: a power of two from 4 KiB to 256 MiB.
	// 0: what the number of its CPUs and the limits on its memory allow.
	Buffer int
	// Events is how many events and probes may have a number at a time, the engine's own among them: at most 1<<20, and
	// fewer if the process's memory is limited. 0: 4096.
	Events int
	// Stopped is a process that Start has made and that has not run yet: the first
	// stop is this one, and it is released by Run.
	Stopped *Stopped
	// HandlerWait is how long a thread waits for a handler (NewCall), also for that of a
	// tracer that has been killed; up to a minute. 0: 100 ms.
	HandlerWait time.Duration
	// Text says whether the pages of the program's text that probes stand in become private
	// copies, which kernel uprobes do not reach.
	Text TextMode
	// Files is shared with other targets; nil: the target reads files for itself alone.
	Files *Files
}

// Target makes a process a target.Target.
type Target struct {
	proc       *Proc // p is its process
	p          *ptrace.Process
	o          TargetOptions
	space      atomic.Pointer[symbol.Space]
	images     map[procfs.FileID]*symbol.Image
	files      *Files
	root       *os.File // of the process's file system; nil: it can not be opened. It is not closed: names are found after Close too
	module     []module
	seen       []procfs.Map // the executable mappings that module was made of
	ring       *ring.Ring
	mem        memoryPlan
	control    *controlBlock
	early      func(*ptrace.Thread)   // what the next stop asks of threads that sleep (StopOptions)
	before     map[int]*procfs.Status // of the threads, before the last stop in which they were asked for it
	code       []*patch.Piece
	rooms      []target.Room // what Prepare maps for code
	sites      int           // that it makes room for in the tables
	writer     arch.CodegenEnv
	noLoads    error // why no argument may read memory
	pools      []poolUse
	idle       map[*arch.Pool]bool            // pools that no probe uses
	part       uint64                         // of the pools, that Crowded looks at next
	stops      sync.Mutex                     // held by who stops the process, or has it go on
	held       atomic.Pointer[ptrace.Stopped] // the stop that is on: until Run that of Start; nil: none is
	begun      atomic.Bool                    // the program runs, or has run: Start has not made it, or Run has been called
	golang     *goProgram
	setters    []target.Sharing  // of a Go program with C code: what replaces handlers of signals; nil: that is not known
	masked     map[uint64]string // of a Go program: functions that may run with signals blocked; nil: it is not known of any
	begins     bool              // a Go program whose runtime has not installed its handlers yet: ours are not there either
	beginWaits bool              // and a thread may wait until they are
	tryBegin   struct {          // Begin failed
		next  time.Time
		pause time.Duration
	}
	faults   *faultTable
	ringID   procfs.FileID              // of the ring's memory file: fork children have it mapped too
	foreign  []uint64                   // places that somebody else patched, found when a site was to be removed
	zombie   []*target.Site             // taken out, but a thread may still be in the detour
	kernel   atomic.Pointer[kernelRing] // what the kernel's uprobes write to; nil: none was needed
	watch    watchSet
	changes  uint64                   // that have taken sites out
	notes    []*target.Site           // probes that wait: see Note
	mailID   procfs.FileID            // of the mailbox's memory file
	shares   error                    // why threads may share a block, by the code that is mapped; nil: by Sharers alone
	plans    map[*target.Change]*plan // of the changes of a Commit in progress
	gone     []*target.Site           // taken out in this stop: their entries are still in the tables
	sharers  []target.Sharing
	acts     bool      // code that is mapped may replace handlers of signals without the C library
	mail     *mailSide // of threads that wait for handlers; nil: there was no handler
	inLine   *inLine   // for handlers that run in the process; nil: there was no module
	kmods    []*kmodule
	threadID procfs.FileID // of the memory file of inLine.thread

	asked sync.Mutex // held to change what Remaining, CodeUsed and SharedText tell

	text privateText

	filters filters

	stubs       atomic.Pointer[stubs] // nil: no function has a trampoline
	trampolines trampolines
	inCall      bool // Close has left the trampolines mapped
	closed      bool // CloseStopped has taken everything out

	children []int           // see Children
	memories []*sharedMemory // of ShareMemory
}

var _ target.Sequencer = (*Target)(nil)

// poolUse is a pool and what keys it: needed to find instances that unwinding left.
type poolUse struct {
	pool *arch.Pool
	addr uint64
}

// Attach makes process p a target. It reads its files and changes nothing. A child of this process
// is refused with ErrChild: see Open.
func Attach(p *Proc, o *TargetOptions) (*Target, error) {
	if err := p.Stoppable(); err != nil {
		return nil, err
	}
	t := &Target{proc: p, p: p.Process, images: map[procfs.FileID]*symbol.Image{}}
	if o != nil {
		t.o = *o
		t.held.Store(o.Stopped)
	}
	t.begun.Store(t.o.Stopped == nil)
	if t.files = t.o.Files; t.files == nil {
		t.files = new(Files)
	}
	t.initText(t.o.Text)
	if _, err := t.Refresh(); err != nil {
		return nil, err
	}
	return t, nil
}

// Proc is the process.
func (t *Target) Proc() *Proc { return t.proc }

// Ended says whether the process has ended, or executes another program.
func (t *Target) Ended() bool { return !t.p.Alive() || errors.Is(t.p.CheckImage(), ErrExec) }

// Arch is x86-64.
func (t *Target) Arch() arch.Arch { return native.Arch }

// Space finds names in the program and the objects mapped now.
func (t *Target) Space() *symbol.Space { return t.space.Load() }

// Ring is the ring, after Prepare.
func (t *Target) Ring() *ring.Ring { return t.ring }

// CodegenEnv describes the process to generated code, after Prepare.
func (t *Target) CodegenEnv() *arch.CodegenEnv { return &t.writer }

// asGone has an error say target.ErrGone where the process has ended, or executes another program.
func asGone(err error) error {
	if errors.Is(err, target.ErrGone) || !errors.Is(err, ErrNoProcess) && !errors.Is(err, ErrExec) {
		return err
	}
	return fmt.Errorf("%w: %w", target.ErrGone, err)
}

// stopped runs f while the process is stopped: in the stop whose f calls it or that Start has made, else in
// one for it. All of it is on the tracer's thread: what is asked of each of thousands of threads is not to cross
// from one thread of the tracer's to another and back each time.
func (t *Target) stopped(f func(*ptrace.Stopped) error) (err error) {
	defer func() { err = asGone(err) }()
	if s := t.within(); s != nil {
		return f(s)
	}
	t.stops.Lock()
	defer t.stops.Unlock()
	s := t.held.Load()
	if s == nil {
		if s, err = t.p.Stop(&ptrace.StopOptions{Early: t.early}); err != nil {
			return err
		}
		t.held.Store(s)
		defer func() {
			t.held.Store(nil)
			err = errors.Join(err, s.Release())
		}()
	}
	return s.Do(func() error { return f(s) })
}

// within gives the stop in which the caller runs; nil: in none.
func (t *Target) within() *ptrace.Stopped {
	if s := t.held.Load(); s != nil && s.Within() {
		return s
	}
	return nil
}

// Run lets a process go on that Start made, once nobody works in its stop; of any other it does nothing. It may be called while others use
// the target.
func (t *Target) Run() error {
	t.stops.Lock()
	defer t.stops.Unlock()
	t.begun.Store(true)
	s := t.held.Swap(nil)
	if s == nil {
		return nil
	}
	return s.Release()
}

// Read reads the process's memory.
func (t *Target) Read(addr uint64, b []byte) error { return asGone(t.p.ReadMem(addr, b)) }

// Discard gives back the memory of the ring, which else stays until this program ends, and that of histograms. Precondition: Close has been called, and nobody
// reads records or counts any more.
func (t *Target) Discard() error {
	var errs []error
	for _, m := range t.memories {
		errs = append(errs, m.close())
	}
	t.memories = nil
	if t.ring != nil {
		errs = append(errs, t.ring.Close())
	}
	return errors.Join(errs...)
}

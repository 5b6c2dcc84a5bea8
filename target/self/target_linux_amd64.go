package self

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/watchpoint"
)

// Options are the choices of Attach; nil means all defaults.
type Options struct {
	// Buffer is how many bytes of records a CPU may hold that have not been read: a power of two from 4 KiB to 256 MiB.
	// 0: 1 MiB, or less where there are many CPUs.
	Buffer int
	// Events is how many events and probes may have a number at a time, the engine's own among them: at most 1<<20.
	// 0: the most.
	Events int
}

// Target makes the own process a target.Target and a target.Caller.
type Target struct {
	o       Options
	mu      sync.Mutex // held while the world is stopped, and what only Commit changes is changed
	space   atomic.Pointer[symbol.Space]
	images  map[procfs.FileID]*symbol.Image
	seen    []procfs.Map // the executable mappings that space was made of
	mem     *os.File     // /proc/self/mem
	read    []byte       // what Written reads
	lay     *layout
	places  places
	ring    *ring.Ring
	writer  arch.CodegenEnv
	control *controlBlock
	claim   *claim // while control block is there
	codeMu  sync.Mutex
	code    []*piece
	poolMu  sync.Mutex
	pools   []*arch.Pool
	idle    map[*arch.Pool]bool // pools that no probe uses
	unwind  []table             // unwind tables, and shared memory
	shared  []*sharedMemory
	part    uint64         // of the pools, that Crowded looks at next
	live    int            // sites whose detours are there
	dead    []*target.Site // whose detours were given back since the tables of the control block were made
	zombie  []*target.Site
	foreign []*target.Site // that hold bytes of somebody else: their detours stay
	calls   map[uint64]*desc
	late    []*desc                           // that have ended, and that a thread may yet come to
	path    func() (map[uint64]string, error) // functions that may run with SIGTRAP blocked
	masks   func() bool                       // whether the program can change its threads' masks by itself
	watches watchpoint.Set
	caller  target.Caller       // of handlers in line, too, if the program takes modules
	modules target.ModuleLoader // nil: it takes none
	caught  func() bool         // whether SIGSEGV and SIGBUS are open in all threads that run Go code but for path
}

var (
	_ target.Target = (*Target)(nil)
	_ target.Caller = (*Target)(nil)
)

// attached is the one Target of this process that is in use: there is one set of signals.
var attached struct {
	sync.Mutex
	t *Target
}

// Attach makes the own process a target. It validates what it knows of the Go runtime, and
// changes nothing before Prepare. Errors: EBUSY if the process is a target already or a
// debugger holds it, EOPNOTSUPP for a Go version that is not known.
func Attach(o *Options) (*Target, error) {
	attached.Lock()
	defer attached.Unlock()
	if attached.t != nil {
		return nil, errno.Errorf(unix.EBUSY, "the process probes itself already: use that target, or close it first")
	}
	if err := untraced(); err != nil {
		return nil, err
	}
	t := &Target{images: map[procfs.FileID]*symbol.Image{}, calls: map[uint64]*desc{}, idle: map[*arch.Pool]bool{}}
	if o != nil {
		t.o = *o
	}
	var err error
	if t.lay, err = findLayout(); err != nil {
		return nil, err
	}
	if err := t.lay.fitsGate(); err != nil {
		return nil, err
	}
	if _, err := t.Refresh(); err != nil {
		return nil, err
	}
	if err := t.findPlaces(); err != nil {
		return nil, err
	}
	t.path = sync.OnceValues(func() (map[uint64]string, error) { return signalPath(t.Space()) })
	t.masks = sync.OnceValue(func() bool {
		fs, err := t.Space().Main().Image.Lookup(setsMask)
		return err == nil && len(fs) > 0
	})
	t.caller = t
	if newModules != nil {
		newModules(t)
	}
	t.caught = sync.OnceValue(func() bool { return !iscgo && codescan.ChangesMasks(t.Space(), t.Read) == nil })
	attached.t = t
	return t, nil
}

// untraced is an error if another process traces this one.
func untraced() error {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	st, err := procfs.ParseStatus(string(b))
	if err != nil {
		return err
	}
	if st.TracerPID != 0 {
		return errno.Errorf(unix.EBUSY, "process %d traces this one, and would see its breakpoints and stops as its own: detach it first", st.TracerPID)
	}
	return nil
}

// Arch is x86-64.
func (t *Target) Arch() arch.Arch { return amd64.X86 }

// Space finds names in the program and the objects mapped now.
func (t *Target) Space() *symbol.Space { return t.space.Load() }

// Ring is the ring, after Prepare.
func (t *Target) Ring() *ring.Ring { return t.ring }

// CodegenEnv describes the process to generated code, after Prepare.
func (t *Target) CodegenEnv() *arch.CodegenEnv { return &t.writer }

// Why no breakpoint stands that was not asked for. The mask of Go code is the runtime's, whose
// rules are known; C code sets its own, and may call Go code with that.
var (
	errCode = errno.Errorf(unix.EOPNOTSUPP, "code that is not Go's may come to block SIGTRAP, and a thread that does dies of one")
	errCgo  = errno.Errorf(unix.EOPNOTSUPP, "the program has C code, which may block SIGTRAP and call Go code, and a thread dies of one there")
	errMask = errno.Errorf(unix.EOPNOTSUPP, "the program can block SIGTRAP by %s, and a thread that does dies of one", setsMask)
)

// Loads says that arguments may read memory.
func (t *Target) Loads() error { return nil }

// Loader says that there is none to watch: what a program maps later is found by Refresh.
func (t *Target) Loader() (symbol.Resolved, uint64, bool) { return symbol.Resolved{}, 0, false }

// Answer has nothing to answer.
func (t *Target) Answer() (late bool, err error) { return false, nil }

// Uprobe refuses: the kernel's probe would need the process's file on disk to be the one
// that runs, and root. Precondition of none.
func (t *Target) Uprobe(*target.Uprobe) (target.ExternalProbe, error) {
	return nil, errno.Errorf(unix.EOPNOTSUPP, "the own process is not probed by the kernel's uprobes")
}

// Refresh looks at what is mapped now.
func (t *Target) Refresh() (changed bool, err error) {
	maps, err := procfs.MapsOf("/proc/self")
	if err != nil {
		return false, err
	}
	code := executables(maps)
	if t.Space() != nil && slices.Equal(code, t.seen) {
		return false, nil
	}
	return true, t.index(code)
}

// executables picks one executable mapping of each file, the program's own first.
func executables(maps []procfs.Map) []procfs.Map {
	var exe unix.Stat_t
	isExe := func(m procfs.Map) bool {
		return unix.Stat("/proc/self/exe", &exe) == nil && m.Inode == exe.Ino
	}
	var out []procfs.Map
	seen := map[procfs.FileID]bool{}
	for _, m := range maps {
		if m.Perm&procfs.PermExec == 0 || m.Anonymous() || seen[m.FileID] || strings.HasPrefix(m.Path, "/memfd:kprobes:") {
			continue
		}
		seen[m.FileID] = true
		out = append(out, m)
	}
	if i := slices.IndexFunc(out, isExe); i > 0 {
		out[0], out[i] = out[i], out[0]
	}
	return out
}

// index makes the space out of the executable mappings. An object that can not be read is
// left out; the program itself must be there.
func (t *Target) index(code []procfs.Map) error {
	space := symbol.NewSpace()
	for i, m := range code {
		im, err := t.image(m)
		if err != nil && i == 0 {
			return fmt.Errorf("the program's own file: %w", err)
		}
		if err != nil {
			continue
		}
		if bias, ok := im.Bias(m.Start, m.Offset); ok {
			space.Add(im, bias, path.Base(m.Path))
		}
	}
	t.space.Store(space)
	t.seen = code
	return nil
}

func (t *Target) image(m procfs.Map) (*symbol.Image, error) {
	if im := t.images[m.FileID]; im != nil {
		return im, nil
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/map_files/%x-%x", m.Start, m.End), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil { // map_files asks for privileges
		if f, err = os.OpenFile(m.Path, os.O_RDONLY|unix.O_NONBLOCK, 0); err != nil {
			return nil, err
		}
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	im, err := symbol.Open(f, st.Size(), m.Path, &symbol.Options{Open: openDebug})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t.images[m.FileID] = im
	return im, nil
}

func openDebug(path string) (symbol.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// Prepare makes the ring and the control block, and puts our signal handlers before those of the
// runtime. It fails with EBUSY while another engine holds the process: see takeClaim.
func (t *Target) Prepare() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.control != nil {
		return nil
	}
	c, err := takeClaim()
	if err != nil {
		return err
	}
	if err := t.prepare(); err != nil {
		return errors.Join(err, c.release())
	}
	t.claim = c
	return nil
}

func (t *Target) prepare() error {
	if _, _, e := unix.RawSyscall(sysMembarrier, membarrierRegister, 0, 0); e != 0 {
		return fmt.Errorf("membarrier, which makes all processors see changed code: %w", e)
	}
	var err error
	if t.mem, err = os.OpenFile("/proc/self/mem", os.O_RDWR, 0); err != nil {
		return fmt.Errorf("the own code can not be written: %w", err)
	}
	// Go's threads have no restartable sequences.
	cfg := ring.Config{Events: t.o.Events, DataSize: t.o.Buffer, LockedOnly: true}
	if cfg.DataSize == 0 {
		cfg.DataSize = min(ring.DefaultData, ring.DefaultShard(runtime.NumCPU()))
	}
	if cfg.Events == 0 {
		cfg.Events = ring.MaxEvents // a program that probes itself may do so for long
	}
	r, err := ring.Create(cfg)
	if err != nil {
		return errors.Join(err, t.mem.Close())
	}
	h, err := t.newControlBlock()
	if err != nil {
		return errors.Join(err, t.mem.Close(), r.Close())
	}
	t.ring, t.control = r, h
	t.writer = arch.CodegenEnv{
		Ring: r.Addr(), Layout: r.Layout, TID: arch.TIDGo, Go: t.lay.runtime(),
		Gate: uint64(gatePC()), Features: native.Features(), Resident: h.addr + residentOff, Unwind: h.addr + unwindOff,
	}
	return nil
}

// membarrierRegister announces the use of membarrierSyncCore (membarrier(2)).
const membarrierRegister = 1 << 6

// Close takes out all that Prepare put in, but for the ring, which can still be read. While sites
// are armed it takes out nothing (EBUSY), nor while somebody else's bytes stand where one of our
// patches stood (ErrForeign): what it leads to must stay, and another Attach is refused. Once the
// bytes are ours again it takes them out.
func (t *Target) Close() error {
	attached.Lock()
	defer attached.Unlock()
	if t.control == nil {
		t.release()
		return nil
	}
	if err := t.armed(); err != nil {
		return err
	}
	t.release()
	if err := t.drain(); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := errors.Join(watch.stop(), t.control.close()); err != nil {
		return err
	}
	var err error
	for _, c := range t.code {
		err = errors.Join(err, c.unmap())
	}
	for _, p := range t.pools {
		err = errors.Join(err, unmap(p.Base, poolSize(p)))
	}
	t.keepShared()
	t.watches.Close()
	err = errors.Join(err, t.unmapUnwind(), t.closeInLine(), t.mem.Close(), t.claim.release())
	t.control, t.code, t.pools = nil, nil, nil
	return err
}

// closeInLine takes out what handlers in line have.
func (t *Target) closeInLine() error {
	if attachedLines == nil {
		return nil
	}
	return attachedLines.close()
}

// release lets another target be attached. Precondition: attached is locked.
func (t *Target) release() {
	if attached.t == t {
		attached.t = nil
	}
}

// armed fails while patches of the engine's stand, or may.
func (t *Target) armed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if again := t.foreign; len(again) > 0 {
		t.foreign = nil
		if err := t.change(&target.Change{Remove: again}); err != nil {
			t.foreign = again
			return err
		}
	}
	if len(t.foreign) > 0 {
		return fmt.Errorf("the bytes at 0x%x were changed by somebody else, and left alone with the code that they lead to: %w", t.foreign[0].Addr, ErrForeign)
	}
	if n := t.live - len(t.zombie); n > 0 {
		return errno.Errorf(unix.EBUSY, "%d sites are still armed", n)
	}
	if attachedLines != nil {
		return attachedLines.hold()
	}
	return nil
}

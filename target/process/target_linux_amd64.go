package process

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/codealloc"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
	_ "kprobes.dev/kprobes/native" // names of C++ and Rust
)

// TargetOptions are the choices of Attach; nil means all defaults.
type TargetOptions struct {
	Ring ring.Config // zero: the ring's defaults
	// Stopped is a process that Start has made and that has not run yet: the first
	// stop is this one, and it is released by Run.
	Stopped *Stopped
	// HandlerWait is how long a thread waits for a handler (NewCall), also for that of a
	// tracer that has been killed; up to a minute. 0: 100 ms.
	HandlerWait time.Duration
	// Text says whether the pages of the program's text that probes stand in become private
	// copies, which kernel uprobes do not reach.
	Text TextMode
}

// Target makes a process a target.Target.
type Target struct {
	proc    *Proc // p is its process
	p       *ptrace.Process
	o       TargetOptions
	space   atomic.Pointer[symbol.Space]
	images  map[procfs.FileID]*symbol.Image
	module  []module
	seen    []procfs.Map // the executable mappings that module was made of
	ring    *ring.Ring
	mem     memoryPlan
	control *controlBlock
	early   func(*ptrace.Thread)   // what the next stop asks of threads that sleep (StopOptions)
	before  map[int]*procfs.Status // of the threads, before the last stop in which they were asked for it
	code    []*codealloc.Piece
	rooms   []target.Room // what Prepare maps for code
	sites   int           // that it makes room for in the tables
	writer  arch.CodegenEnv
	noLoads error // why no argument may read memory
	pools   []poolUse
	idle    map[*arch.Pool]bool // pools that no probe uses
	// taskCode is what the code of objects says of threads and their blocks (learnSharing).
	taskCode   map[*symbol.Image]*taskCode
	part       uint64          // of the pools, that Crowded looks at next
	held       *ptrace.Stopped // kept between calls (Start)
	golang     *goProgram
	masked     map[uint64]string // of a Go program: functions that may run with signals blocked; nil: it is not known of any
	begins     bool              // a Go program whose runtime has not installed its handlers yet: ours are not there either
	beginWaits bool              // and a thread may wait until they are
	tryBegin   struct {          // Begin failed
		next  time.Time
		pause time.Duration
	}
	faults  *faultTable
	ringID  procfs.FileID              // of the ring's memory file: fork children have it mapped too
	foreign []uint64                   // places that somebody else patched, found when a site was to be removed
	zombie  []*target.Site             // taken out, but a thread may still be in the detour
	kernel  atomic.Pointer[kernelRing] // what the kernel's uprobes write to; nil: none was needed
	changes uint64                     // that have taken sites out
	notes   []*target.Site             // probes that wait: see Note
	mailID  procfs.FileID              // of the mailbox's memory file
	shares  error                      // why threads may share a block, by the code that is mapped; nil: by Sharers alone
	plans   map[*target.Change]*plan   // of the changes of a Commit in progress
	gone    []*target.Site             // taken out in this stop: their entries are still in the tables
	sharers []target.Sharing
	acts    bool      // code that is mapped may replace handlers of signals without the C library
	mail    *mailSide // of threads that wait for handlers; nil: there was no handler

	asked sync.Mutex // held to change what Remaining, CodeUsed and SharedText tell

	text privateText

	filters filters

	stubs       atomic.Pointer[stubs] // nil: no function has a trampoline
	trampolines trampolines
	inCall      bool // Close has left the trampolines mapped
	closed      bool // CloseStopped has taken everything out
}

var _ target.Sequencer = (*Target)(nil)

// module is an object mapped into the process.
type module struct {
	im   *symbol.Image
	bias uint64
	lo   uint64 // its mappings lie in [lo, hi)
	hi   uint64
	name string
}

// poolUse is a pool and what keys it: needed to find instances that unwinding left.
type poolUse struct {
	pool *arch.Pool
	addr uint64
}

// Attach makes process p a target. It reads its files and changes nothing. A child of ours
// is refused with ErrChild: see Open.
func Attach(p *Proc, o *TargetOptions) (*Target, error) {
	if err := p.Stoppable(); err != nil {
		return nil, err
	}
	t := &Target{proc: p, p: p.Process, images: map[procfs.FileID]*symbol.Image{}}
	if o != nil {
		t.o = *o
		t.held = o.Stopped
	}
	t.initText(t.o.Text)
	if _, err := t.Refresh(); err != nil {
		return nil, err
	}
	return t, nil
}

// Proc is the process.
func (t *Target) Proc() *Proc { return t.proc }

// Arch is x86-64.
func (t *Target) Arch() arch.Arch { return amd64.X86 }

// Space finds names in the program and the objects mapped now.
func (t *Target) Space() *symbol.Space { return t.space.Load() }

// Ring is the ring, after Prepare.
func (t *Target) Ring() *ring.Ring { return t.ring }

// CodegenEnv describes the process to generated code, after Prepare.
func (t *Target) CodegenEnv() *arch.CodegenEnv { return &t.writer }

// Refresh looks at what is mapped now: objects that came are added, those that went are
// dropped.
func (t *Target) Refresh() (changed bool, err error) {
	maps, err := t.p.Maps()
	if err != nil {
		return false, err
	}
	t.learnText(maps)
	code := executables(fileMaps(maps))
	if t.Space() != nil && slices.Equal(code, t.seen) {
		return false, nil
	}
	if err := t.index(maps, code); err != nil {
		return true, err
	}
	return true, t.shareLate()
}

// index makes the list of modules out of the executable mappings.
func (t *Target) index(maps, code []procfs.Map) error {
	space := symbol.NewSpace()
	files := fileMaps(maps)
	t.module, t.seen = nil, code
	exe := t.p.Image().Exe
	var firstErr error
	for _, m := range code {
		im, err := t.image(maps, m)
		if err != nil {
			firstErr = errors.Join(firstErr, err)
			continue
		}
		bias, ok := biasOf(im, m)
		if !ok {
			continue
		}
		mod := module{im: im, bias: bias, name: filepath.Base(m.Path)}
		mod.lo, mod.hi = extent(files, m.FileID)
		if m.FileID == exe && len(t.module) > 0 && t.module[0].im != im {
			t.module = append([]module{mod}, t.module...)
			continue
		}
		t.module = append(t.module, mod)
	}
	if len(t.module) == 0 {
		return errors.Join(fmt.Errorf("process %d: no program file could be read", t.p.PID()), firstErr)
	}
	for _, mod := range t.module {
		space.Add(mod.im, mod.bias, mod.name)
	}
	t.space.Store(space)
	return nil
}

// executables picks one executable mapping of each file.
func executables(maps []procfs.Map) []procfs.Map {
	var out []procfs.Map
	seen := map[procfs.FileID]bool{}
	for _, m := range maps {
		if m.Perm&procfs.PermExec == 0 || m.Anonymous() || seen[m.FileID] || ours(m) {
			continue
		}
		seen[m.FileID] = true
		out = append(out, m)
	}
	return out
}

// ourPaths are what the paths of mappings begin with that a tracer of this project made.
var ourPaths = []string{
	"/memfd:" + ringName, "/memfd:" + homeName, "/memfd:" + mailName, "/memfd:" + flatName, "/memfd:" + roomName,
	"/memfd:" + codeName, "/memfd:" + heapName,
}

// ours says whether a mapping is one that a tracer of this project made.
func ours(m procfs.Map) bool {
	return slices.ContainsFunc(ourPaths, func(prefix string) bool { return strings.HasPrefix(m.Path, prefix) })
}

func isMail(m procfs.Map) bool { return strings.HasPrefix(m.Path, "/memfd:"+mailName) }

func isHome(m procfs.Map) bool { return strings.HasPrefix(m.Path, "/memfd:"+homeName) }

func isRing(m procfs.Map) bool { return strings.HasPrefix(m.Path, "/memfd:"+ringName) }

// extent is the range from the first to the last mapping of a file.
func extent(maps []procfs.Map, id procfs.FileID) (lo, hi uint64) {
	for _, m := range maps {
		if m.FileID != id {
			continue
		}
		if lo == 0 {
			lo = m.Start
		}
		hi = m.End
	}
	return lo, hi
}

func (t *Target) image(maps []procfs.Map, m procfs.Map) (*symbol.Image, error) {
	if im := t.images[m.FileID]; im != nil {
		return im, nil
	}
	f, err := t.p.OpenAnyOf(maps, m)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	im, err := symbol.Open(f, st.Size(), m.Path, &symbol.Options{Open: t.openDebug})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t.images[m.FileID] = im
	return im, nil
}

// openDebug opens a separate debug file as the process's own file system has it.
func (t *Target) openDebug(path string) (symbol.File, error) {
	return os.OpenFile(filepath.Join(fmt.Sprintf("/proc/%d/%s", t.p.PID(), t.p.FileName("root")), path), os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// biasOf is what is added to a link-time address.
func biasOf(im *symbol.Image, m procfs.Map) (uint64, bool) {
	return im.Bias(m.Start, m.Offset)
}

// asGone has an error say target.ErrGone where the process has ended, or executes another program.
func asGone(err error) error {
	if errors.Is(err, target.ErrGone) || !errors.Is(err, ErrNoProcess) && !errors.Is(err, ErrExec) {
		return err
	}
	return fmt.Errorf("%w: %w", target.ErrGone, err)
}

// stopped runs f while the process is stopped: in the stop that is on already, else in
// one for it.
func (t *Target) stopped(f func(*ptrace.Stopped) error) (err error) {
	defer func() { err = asGone(err) }()
	if t.held != nil {
		return f(t.held)
	}
	s, err := t.p.Stop(&ptrace.StopOptions{Early: t.early})
	if err != nil {
		return err
	}
	t.held = s
	defer func() {
		t.held = nil
		err = errors.Join(err, s.Release())
	}()
	// All of it on the tracer's thread: what is asked of each of thousands of threads is not to cross
	// from one thread of ours to another and back each time.
	return s.Do(func() error { return f(s) })
}

// Run lets a process go on that Start made.
func (t *Target) Run() error {
	s := t.held
	t.held, t.o.Stopped = nil, nil
	if s == nil {
		return nil
	}
	return s.Release()
}

// Prepare maps the ring and the control block into the process and learns what generated code
// needs to know of it. The process is stopped for it once.
func (t *Target) Prepare() error {
	if t.control != nil {
		return nil
	}
	if err := t.proc.Lock(); err != nil {
		return err
	}
	if err := t.undoLeftovers(); err != nil {
		return err
	}
	if err := t.learnSharing(); err != nil {
		return err
	}
	t.learnMasks()
	if err := t.fit(); err != nil {
		return err
	}
	t.planRooms()
	t.planTables()
	before, err := t.p.Statuses()
	if err != nil {
		return err
	}
	t.before = before
	t.p.NoteRunning(before)
	t.askEarly((*ptrace.Thread).AskAhead)
	defer t.askEarly(nil)
	err = t.stopped(func(s *ptrace.Stopped) error {
		err := t.prepare(s)
		if err != nil {
			err = errors.Join(err, t.unprepare(s))
		}
		return err
	})
	if err != nil {
		return err
	}
	return t.warm()
}

// askEarly says what stops ask of threads that sleep (StopOptions); nil: nothing.
func (t *Target) askEarly(ask func(*ptrace.Thread)) { t.early = ask }

// askRseq asks of a thread what a stop needs that only looks whose block the thread has.
func (t *Target) askRseq(th *ptrace.Thread) {
	if t.writer.HasRseq {
		_, _ = th.Rseq()
	}
}

// alone gives the process up, with an ErrOwn, if its own engine has come meanwhile that does not see
// our lock. That engine maps its memory first and then looks for our control block; we have mapped the control block
// and look for that memory. So one of the two sees the other, or both do. Precondition: the world is
// stopped.
func (t *Target) alone(s *ptrace.Stopped) error {
	maps, err := s.FileMaps()
	if err != nil {
		return err
	}
	own := ownEngine(t.p, maps)
	if own == nil {
		return nil
	}
	err = t.unmapOwn(s, maps)
	t.control = nil
	t.proc.Unlock()
	return errors.Join(own, err)
}

// prepare is Prepare's work in one stop. Precondition: the world is stopped.
func (t *Target) prepare(s *ptrace.Stopped) error {
	if err := t.learnLocks(s); err != nil {
		return err
	}
	if err := t.makeRing(s); err != nil {
		return err
	}
	if err := t.mapHome(s); err != nil {
		return err
	}
	if err := t.alone(s); err != nil {
		return err
	}
	if err := t.learn(s); err != nil {
		return err
	}
	if err := t.mapRooms(s); err != nil {
		return err
	}
	return t.reserveTables()
}

// unprepare takes out what a prepare that failed has brought in: the next tracer is to find nothing.
// Precondition: the world is stopped.
func (t *Target) unprepare(s *ptrace.Stopped) error {
	if t.ring != nil {
		t.ring.Close() // nobody has read it
	}
	t.ring, t.control, t.faults = nil, nil, nil
	t.setCode(nil)
	maps, err := t.p.Maps()
	if err == nil {
		maps, err = leftMaps(t.p, maps)
	}
	if err != nil {
		return ignoreEnded(err)
	}
	return ignoreEnded(errors.Join(closeLeft(s), unmap(s, false, maps)))
}

// undoLeftovers takes out what a tracer has left that is gone: nobody else holds the
// process, for we do.
func (t *Target) undoLeftovers() error {
	l, err := findLeftover(t.p)
	if err != nil || l == nil {
		return err
	}
	if t.held != nil {
		return errno.Errorf(unix.EBUSY, "process %d: mappings of ours are in a program that has not run yet", t.p.PID())
	}
	u, err := l.Undo()
	if err == nil && len(u.Foreign) > 0 {
		err = fmt.Errorf("0x%x: %w", u.Foreign, ErrForeign)
	}
	if err != nil {
		return fmt.Errorf("process %d: what %s has left can not be taken out: %w", t.p.PID(), l.tracer(), err)
	}
	return nil
}

// tracer names the tracer that has left something.
func (l *Leftover) tracer() string {
	if l.Holder == 0 { // it ended before it wrote down who it is
		return "an earlier tracer"
	}
	return fmt.Sprintf("an earlier tracer (pid %d)", l.Holder)
}

// memfd makes a memory file in the process and opens it here. The process's own
// descriptor is given to use, and closed after.
func (t *Target) memfd(s *ptrace.Stopped, name string, use func(local *os.File, fd int) error) (err error) {
	local, fd, err := t.openMemfd(s, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.CloseFD(fd)) }()
	return use(local, fd)
}

// openMemfd makes a memory file in the process and opens it here.
func (t *Target) openMemfd(s *ptrace.Stopped, name string) (local *os.File, fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = s.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL) // never to be executed as a file: what vm.memfd_noexec may ask for
	if errors.Is(err, unix.EINVAL) {
		fd, err = s.MemfdCreate(name, flags) // before Linux 6.3
	}
	if err != nil {
		return nil, 0, err
	}
	path := fmt.Sprintf("/proc/%d/%s", t.p.PID(), t.p.FileName(fmt.Sprintf("fd/%d", fd)))
	link, err := os.Readlink(path)
	if err == nil && !strings.HasPrefix(link, "/memfd:"+name) {
		err = fmt.Errorf("descriptor %d of process %d is %q, not the memory file just made", fd, t.p.PID(), link)
	}
	if err == nil {
		local, err = os.OpenFile(path, os.O_RDWR|tracerFlag, 0)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("memory file of process %d: %w", t.p.PID(), err), s.CloseFD(fd))
	}
	return local, fd, nil
}

func (t *Target) mapHome(s *ptrace.Stopped) error {
	size := homeSize + t.roomForTables()
	addr, err := t.mapPrivate(s, homeName, 0, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	t.control = newHome(t.p, addr)
	t.control.end = addr + size
	t.control.more = t.moreHeap
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return err
	}
	since, err := selfStart()
	if err != nil {
		return err
	}
	return t.control.init(binary.LittleEndian.Uint64(b[:]), uint64(os.Getpid()), since, t.writer.Ring, t.ring.Size())
}

// selfStart is the tracer's own start time, in clock ticks after boot.
func selfStart() (uint64, error) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	st, err := procfs.ParseStat(string(b))
	if err != nil {
		return 0, err
	}
	return st.Start, nil
}

// mapPrivate maps a fresh memory file privately, so that what is written is the
// process's alone and the mapping keeps its name.
func (t *Target) mapPrivate(s *ptrace.Stopped, name string, at, size uint64, prot int) (addr uint64, err error) {
	err = t.memfd(s, name, func(local *os.File, fd int) error {
		if addr, err = t.mapSealed(s, local, fd, at, size, prot); err != nil {
			return errors.Join(err, local.Close())
		}
		t.p.AddBacking(addr, size, local)
		return nil
	})
	return addr, err
}

// mapSealed maps a memory file privately, once nobody can change it any more.
func (t *Target) mapSealed(s *ptrace.Stopped, local *os.File, fd int, at, size uint64, prot int) (uint64, error) {
	if err := local.Truncate(int64(size)); err != nil {
		return 0, err
	}
	if err := seal(local); err != nil {
		return 0, err
	}
	flags := unix.MAP_PRIVATE | unix.MAP_NORESERVE
	if at != 0 {
		flags |= unix.MAP_FIXED_NOREPLACE
	}
	return s.Mmap(at, size, prot, flags, fd, 0)
}

// seal lets nobody change a memory file any more.
func seal(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	return err
}

// Read reads the process's memory.
func (t *Target) Read(addr uint64, b []byte) error { return t.p.ReadMem(addr, b) }

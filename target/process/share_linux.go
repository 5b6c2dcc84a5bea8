package process

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// Whether a thread's FS base leads to its own block (internal/arch/amd64, share.go) is decided by the code of the program
// and its objects. Only the C library's is trusted to do nothing else than its functions promise: these are
// given to the engine to be probed (Sharers). An instruction of any other object that may make a task, or move an FS
// base, means that nothing is used of what FS leads to (errShares).

// taskCode is what the code of one object says.
type taskCode struct {
	shares error // why its threads may share a block, or have another; nil: they do not by its code
	clone3 uint64
	acts   bool // it may replace handlers of signals, by a system call of its own
}

// cLibraries are the names that C libraries give themselves, and their loaders: of glibc, and of musl, whose
// loader is the library.
var cLibraries = []string{"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "libc.so", "libc.musl-x86_64.so.1"}

func isCLibrary(im *symbol.Image) bool { return slices.Contains(cLibraries, im.Soname()) }

// tasks reads the code of an object, once for all targets that have its image.
func tasks(im *symbol.Image) (*taskCode, error) {
	return symbol.Derive(im, func() (*taskCode, error) { return scanTasks(im) })
}

func scanTasks(im *symbol.Image) (*taskCode, error) {
	c := &taskCode{}
	function := func(vaddr uint64) (lo, hi uint64, ok bool) {
		if fn, _, ok := im.At(vaddr); ok {
			return fn.Addr, fn.End(), true
		}
		return 0, 0, false
	}
	for _, r := range im.TextRanges() {
		insts, err := native.ScanTaskInsts(interval.Range{Start: r.Start, End: r.End}, im.ReadAt, function)
		if err != nil {
			return nil, err
		}
		for i := range insts {
			c.note(im, &insts[i])
		}
	}
	return c, nil
}

// note takes in one instruction.
func (c *taskCode) note(im *symbol.Image, in *native.TaskInst) {
	if isCLibrary(im) {
		if in.Number == sysClone3 {
			c.clone3 = in.Addr
		}
		if in.Number == unix.SYS_RT_SIGACTION {
			fn, _, ok := im.At(in.Addr)
			c.acts = c.acts || !ok || !named(fn, sigactionName)
		}
		return
	}
	c.acts = c.acts || in.Number == unix.SYS_RT_SIGACTION || in.Number < 0
	switch {
	case c.shares != nil:
	case in.MovesBase():
		c.shares = errno.Errorf(unix.EOPNOTSUPP, "the instruction at 0x%x of %s may give a thread another thread pointer", in.Addr, im.Path())
	case in.SharesBlock():
		c.shares = errno.Errorf(unix.EOPNOTSUPP, "the instruction at 0x%x of %s may make a thread that has no block of its own", in.Addr, im.Path())
	}
}

// sigactionName is the function by which a C library sets all actions, but for one or another of its own signals.
const sigactionName = "__libc_sigaction"

func named(fn *symbol.Func, name string) bool {
	for _, n := range append([]string{fn.Name}, fn.Aliases...) {
		if n, _, _ = strings.Cut(n, "@"); n == name {
			return true
		}
	}
	return false
}

// sysClone3 is one of taskCalls: it has the same number everywhere.
const sysClone3 = 435

// learnSharing finds out whether what FS leads to can be trusted: by the code that is mapped now.
func (t *Target) learnSharing() error {
	t.shares, t.sharers, t.acts = nil, nil, false
	libraries := 0
	for _, m := range t.Space().Modules() {
		c, err := tasks(m.Image)
		if err != nil {
			return err
		}
		if c.shares != nil {
			t.shares = c.shares
			return nil
		}
		t.acts = t.acts || c.acts
		if !isCLibrary(m.Image) {
			continue
		}
		points, err := sharersOf(m, c)
		if err != nil {
			t.shares = err
			return nil
		}
		if len(points) > 0 {
			libraries++
			t.sharers = append(t.sharers, points...)
		}
	}
	if libraries != 1 {
		t.shares = errno.Errorf(unix.EOPNOTSUPP, "the program has %d C libraries", libraries)
	}
	return nil
}

// sharersOf lists the functions of a C library by which threads may come to share a block. A loader, and glibc's old
// library of threads, has none.
func sharersOf(m *symbol.Module, c *taskCode) (out []target.Sharing, err error) {
	if s := m.Image.Soname(); s != "libc.so.6" && !strings.HasPrefix(s, "libc.") {
		return nil, nil
	}
	var text interval.Range
	for _, r := range m.Image.TextRanges() {
		if text.Start == 0 {
			text.Start = m.Runtime(r.Start)
		}
		text.End = m.Runtime(r.End)
	}
	add := func(fn *symbol.Func, how arch.Share) {
		out = append(out, target.Sharing{
			Place: symbol.Resolved{Module: m, Func: fn, Vaddr: fn.Addr, Addr: m.Runtime(fn.Addr)},
			Share: how, Library: text,
		})
	}
	for _, w := range []struct {
		name string
		how  arch.Share
	}{{"vfork", arch.ShareVfork}, {"clone", arch.ShareClone}, {"syscall", arch.ShareSyscall}, {"arch_prctl", arch.ShareBase}} {
		fns, err := m.Image.Lookup(w.name)
		switch {
		case err == nil && len(fns) == 1:
			add(fns[0], w.how)
		case w.how != arch.ShareBase: // musl has it under no name: only its own start calls it
			return nil, errno.Errorf(unix.EOPNOTSUPP, "%s of %s is not known: %w", w.name, m.Name, err)
		}
	}
	if fns := m.Image.All(sigactionName); len(fns) == 1 {
		add(fns[0], arch.ShareAction)
	}
	if c.clone3 != 0 {
		fn, off, ok := m.Image.At(c.clone3)
		if !ok || off > clone3Reach {
			return nil, errno.Errorf(unix.EOPNOTSUPP, "the function of %s that calls clone3 is not known", m.Name)
		}
		add(fn, arch.ShareClone3)
	}
	return out, nil
}

// clone3Reach is how far behind its start the C library's function clone3 makes the system call, at most: from
// there on it gets what the system call gets.
const clone3Reach = 64

// Sharers lists the functions that must be probed (arch.RoleShare) before code is run that uses what FS leads to, or relies on the resident
// handlers; none: nothing is used of it, and the handlers are asked for. Precondition: Prepare has succeeded.
func (t *Target) Sharers() []target.Sharing {
	switch {
	case t.writer.Shared != 0:
		return t.sharers
	case t.writer.Handled != 0:
		return t.setters
	}
	return nil
}

// SetShared says that from now on what FS leads to may be another thread's, and handlers others than the resident ones.
func (t *Target) SetShared() error {
	if t.writer.Shared == 0 {
		return t.setHandled()
	}
	return t.p.WriteMem(t.writer.Shared, []byte{1, 0, 0, 0, 1, 0, 0, 0}) // and Handled
}

// setHandled says that from now on handlers may be others than the resident ones.
func (t *Target) setHandled() error {
	if t.writer.Handled == 0 {
		return nil
	}
	return t.p.WriteMem(t.writer.Handled, []byte{1, 0, 0, 0})
}

// shareLate looks at objects that have come.
func (t *Target) shareLate() error {
	if t.control == nil {
		return nil
	}
	if t.writer.Shared == 0 {
		if t.writer.Masks == nil || len(t.handlerSetters()) == len(t.setters) {
			return nil
		}
		return t.setHandled()
	}
	err := t.learnSharing()
	switch {
	case err != nil:
		return err
	case t.shares != nil:
		return t.SetShared()
	case t.acts:
		return t.setHandled()
	}
	return nil
}

// CheckOwn looks, after the functions that Sharers lists were probed, whether a thread has come to share a block
// meanwhile, or has replaced a handler, or is about to.
func (t *Target) CheckOwn() error {
	if t.writer.Shared == 0 {
		if t.writer.Handled == 0 {
			return nil
		}
		return t.stopped(t.checkHandled)
	}
	if t.held.Load() == nil { // else Commit has read them
		var err error
		if t.before, err = t.p.Statuses(); err != nil {
			return err
		}
		t.askEarly(t.askRseq)
		defer t.askEarly(nil)
	}
	return t.stopped(func(s *ptrace.Stopped) error {
		err := s.Do(func() error {
			own, err := t.ownBlocks(s)
			if err == nil && !own {
				err = t.SetShared()
			}
			return err
		})
		return errors.Join(err, t.checkHandled(s))
	})
}

// checkHandled looks whether the program has put others in the place of the resident handlers, or a thread may be about to: it is behind the place of a probe
// that would tell. Precondition: the world is stopped.
func (t *Target) checkHandled(s *ptrace.Stopped) error {
	if t.writer.Handled == 0 {
		return nil
	}
	in := t.codeOf(t.Sharers(), func(how arch.Share) bool { return how == arch.ShareSyscall || how == arch.ShareAction })
	for _, th := range s.Threads() {
		if interval.AnyContains(in, th.PC()) {
			return t.setHandled()
		}
	}
	if !t.faults.installed || t.writer.Resident == 0 { // nobody may ask for it
		return nil
	}
	a, err := s.Sigaction(int(unix.SIGSEGV))
	if err != nil {
		return err
	}
	if a.Handler != t.faults.resident.Entry {
		return t.setHandled()
	}
	return nil
}

// ownBlocks says whether every thread has what learn saw of all threads, a block of its own, and is not in code that
// may change that. Precondition: the world is stopped, and the caller runs on the tracer's thread.
func (t *Target) ownBlocks(s *ptrace.Stopped) (bool, error) {
	if len(s.Parked()) > 0 { // each has a child that shares its block
		return false, nil
	}
	threads := s.Threads()
	in, bases := t.sharing(), make(map[uint64]bool, len(threads))
	blocks, size := make([]interval.Range, len(threads)), uint64(8)
	if t.writer.TID == arch.TIDThread {
		size = max(size, uint64(t.writer.TIDOff)+4)
	}
	for i, th := range threads {
		if at := th.ThreadPointer(); !t.mayOwn(th, in) || bases[at] {
			return false, nil
		}
		bases[th.ThreadPointer()] = true
		blocks[i] = interval.Range{Start: th.ThreadPointer(), End: th.ThreadPointer() + size}
	}
	own := 0
	err := s.ReadRanges(blocks, func(i int, at uint64, b []byte) error {
		if uint64(len(b)) == size && le.Uint64(b) == at && (t.writer.TID != arch.TIDThread || t.isIDOf(threads[i], b[t.writer.TIDOff:][:4])) {
			own++
		}
		return nil
	})
	return own == len(threads), err
}

// sharing is the code in which a thread may be about to share its block: of the functions, and of the detours of what
// stands in them. The stop that arms the probes moves a thread that was behind one's place into its detour, behind its work.
func (t *Target) sharing() []interval.Range {
	return t.codeOf(t.sharers, func(how arch.Share) bool { return how != arch.ShareSyscall && how != arch.ShareAction })
}

// codeOf is the code of some of the functions, and the detours of what stands in them.
func (t *Target) codeOf(fns []target.Sharing, are func(arch.Share) bool) []interval.Range {
	var in, detours []interval.Range
	for _, f := range fns {
		if are(f.Share) {
			in = append(in, interval.Range{Start: f.Place.Addr, End: f.Place.Addr + f.Place.Func.Size})
		}
	}
	for site := range t.control.sites {
		if interval.AnyContains(in, site.Addr) {
			detours = append(detours, interval.Range{Start: site.Detour.Addr, End: site.Detour.Addr + uint64(len(site.Detour.Code))})
		}
	}
	return append(in, detours...)
}

// mayOwn says whether a thread is in no code that may change whose block it has, and has its restartable sequence there.
func (t *Target) mayOwn(th *ptrace.Thread, in []interval.Range) bool {
	if slices.Contains(taskCalls, th.LastSyscall()) || interval.AnyContains(in, th.PC()) {
		return false
	}
	if !t.writer.HasRseq {
		return true
	}
	c, err := th.Rseq()
	return err == nil && c.Pointer == th.ThreadPointer()+uint64(int64(t.writer.RseqOff))
}

// useBlocks settles, once rseq and the thread id are known, how code may use what FS leads to. Precondition: the world
// is stopped.
func (t *Target) useBlocks(s *ptrace.Stopped) error {
	if t.shares != nil {
		t.writer.HasRseq, t.writer.TID = false, arch.TIDSyscall
	}
	if t.writer.HasRseq || t.writer.TID == arch.TIDThread {
		t.writer.Shared = t.control.addr + hdrShared
		t.writer.Features |= native.ThreadFeatures()
		if !t.acts && slices.ContainsFunc(t.sharers, func(s target.Sharing) bool { return s.Share == arch.ShareAction }) {
			t.writer.Handled = t.control.addr + hdrHandled
		}
	}
	why, err := t.whyNotCall(s, "ask for its id (gettid)", tidCalls)
	t.writer.NoTID = why != nil
	return err
}

// tidCalls is the question for the thread's id.
var tidCalls = []ptrace.CallData{ptrace.CallOf(unix.SYS_GETTID, [6]uint64{}, 0, 1, 2, 3, 4, 5)}

package process

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/codealloc"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/restore"
	"kprobes.dev/kprobes/internal/target"
)

// Bounds of the wait for threads that are inside detours when everything goes.
const (
	drainTries = 100
	drainWait  = 5 * time.Millisecond
)

// ErrInDetour says that code stays mapped because a thread may still come back to it.
var ErrInDetour = errors.New("a thread may still return into a detour: its code stays mapped, and harms nothing")

// Close takes everything out of the process that Prepare and Commit put in, once all
// sites have been removed: the dispositions, the code, the control block and the ring. Records
// can still be read. Handlers that run are waited for. If the process has ended there is
// nothing else to do.
func (t *Target) Close() error {
	if k := t.kernel.Swap(nil); k != nil {
		k.close()
	}
	if t.control == nil && !t.closed {
		return nil
	}
	var err error
	if !t.closed {
		err = t.closeHome()
	}
	if err == nil {
		t.control, t.closed = nil, false
		t.text.close()
		err = t.closeMailbox()
		if t.inCall {
			err = errors.Join(err, fmt.Errorf("process %d: %w", t.p.PID(), ErrInCall))
		}
	}
	if len(t.foreign) > 0 {
		err = errors.Join(err, fmt.Errorf("process %d: bytes at 0x%x were changed by somebody else and left alone: %w", t.p.PID(), t.foreign, ErrForeign))
	}
	return errors.Join(err, t.closeChildren())
}

// closeHome takes everything out, in as many stops as it takes until no thread is in the way.
func (t *Target) closeHome() (err error) {
	if t.mail != nil {
		t.mail.Shut()
	}
	for range drainTries {
		if err = t.control.letLoadersGo(); err != nil {
			break
		}
		if err = t.stopped(t.closeStopped); err == nil || !errors.Is(err, ErrInDetour) {
			break
		}
		time.Sleep(drainWait)
	}
	return ignoreEnded(err)
}

// CloseStopped takes everything out in the stop that has taken out the last sites. Not if handlers were called, which
// may run for a while yet, or a function had a trampoline, whose calls need time; and not if a thread is in the
// way. Then Close does it in stops of its own.
func (t *Target) CloseStopped() {
	if t.held == nil || t.control == nil || t.mail != nil || t.stubs.Load() != nil || t.armed() {
		return
	}
	sites := t.control.sites
	t.control.sites = nil // their bytes are the file's, and their entries go with the control block
	if err := t.closeStopped(t.held); err != nil {
		t.control.sites = sites
		return
	}
	t.control, t.closed = nil, true
}

// armed says whether an entry is in the tables that is neither of a site taken out in this stop nor of one that waits.
func (t *Target) armed() bool {
	out, n := make([]bool, t.control.used), 0 // by the number of the entry
	for _, s := range slices.Concat(t.gone, t.notes) {
		if at, ok := t.control.sites[s]; ok && !out[at] {
			out[at] = true
			n++
		}
	}
	return n < len(t.control.sites)
}

// closeChildren takes our patches out of the processes that were forked from this one
// and have not executed another program. Their hits went to the same ring.
func (t *Target) closeChildren() error {
	pids, err := t.p.Mapping(t.ringID)
	errs := []error{err}
	for _, pid := range pids {
		errs = append(errs, undoChild(pid))
	}
	return errors.Join(errs...)
}

// undoChild takes out what a fork child has inherited; one that has ended meanwhile has
// nothing left. It may have become our child when its parent ended: then it is not one that
// we have started, and wait for.
func undoChild(pid int) error {
	p, err := OpenUnwaited(pid)
	if err != nil {
		return ignoreEnded(err)
	}
	defer p.Close()
	l, err := FindLeftover(p)
	if err != nil || l == nil {
		return ignoreEnded(err)
	}
	if _, err = l.Undo(); ignoreEnded(err) != nil {
		return fmt.Errorf("fork child %d still holds probes (kprobe detach -p %d): %w", pid, pid, err)
	}
	return nil
}

func ignoreEnded(err error) error {
	if errors.Is(err, ErrNoProcess) || errors.Is(err, ErrExec) {
		return nil
	}
	return err
}

// closeStopped takes everything out. Precondition: the world is stopped.
func (t *Target) closeStopped(s *ptrace.Stopped) error {
	if n := len(t.control.sites); n > 0 {
		return fmt.Errorf("process %d: %d sites are still armed", t.p.PID(), n)
	}
	if t.mail != nil {
		t.mail.Refuse() // a thread may have been on its way to post
	}
	t.reclaim(s)
	if len(t.zombie) > 0 {
		return ErrInDetour
	}
	if t.faults != nil {
		if err := t.faults.settled(s); err != nil {
			return err
		}
		if err := t.faults.uninstall(s); err != nil {
			return err
		}
	}
	if err := inHandler(s, t.code); err != nil {
		return err
	}
	if err := t.gateBusy(s); err != nil {
		return err
	}
	sure, err := t.endStubs(s)
	if err != nil {
		return err
	}
	t.inCall = !sure
	maps, err := s.FileMaps()
	if err != nil {
		return err
	}
	if err := t.returnText(s); err != nil { // which leaves what is ours
		return err
	}
	return t.unmapOwn(s, maps)
}

// inHandler fails if a thread is in the code that is about to go.
func inHandler(s *ptrace.Stopped, code []*codealloc.Piece) error {
	for _, th := range s.Everyone() {
		for _, c := range code {
			if c.Holds(th.ResumePC()) {
				return ErrInDetour
			}
		}
	}
	return nil
}

// unmapOwn unmaps what this tracer has mapped, by the mappings of files: its ring, code and control block. Precondition: the
// world is stopped.
func (t *Target) unmapOwn(s *ptrace.Stopped, maps []procfs.Map) error {
	stays, err := t.faults != nil && t.faults.replaced, error(nil)
	if stays {
		if stays, err = stay(s, t.control.addr); err != nil {
			return err
		}
		if maps, err = s.FileMaps(); err != nil { // a part of the code is no mapping of ours any more
			return err
		}
	}
	return unmap(s, stays, slices.DeleteFunc(slices.Clone(maps), func(m procfs.Map) bool {
		foreign := isRing(m) && m.FileID != t.ringID || isMail(m) && m.FileID != t.mailID ||
			isStubs(m) && (t.inCall || !t.stubs.Load().maps(m))
		return !ours(m) || foreign // the process may be a tracer too
	}))
}

// unmap unmaps what is ours, the control block last: it tells what is left. stays: but for what the handlers
// need (see stay). Precondition: the world is stopped.
func unmap(s *ptrace.Stopped, stays bool, maps []procfs.Map) error {
	var last []procfs.Map
	for _, m := range maps {
		if !isHome(m) {
			continue
		}
		last = append(last, m)
		if m.Offset != 0 {
			continue
		}
		// The numbers of what stands in the heap: nobody is to look for it there any more.
		if err := s.Process().WriteMem(m.Start+hdrSites, make([]byte, hdrWait-hdrSites)); err != nil {
			return err
		}
	}
	if err := s.MunmapAll(slices.DeleteFunc(slices.Clone(maps), isHome)); err != nil {
		return err
	}
	slices.Reverse(last) // what tells of the rest is at the start
	for _, m := range last {
		gone := func() error { return s.Munmap(m.Start, m.Size()) }
		if stays && m.Offset == 0 {
			gone = func() error { return stayHome(s, m) }
		}
		if err := gone(); err != nil {
			return err
		}
	}
	return nil
}

// Leftover is what an earlier tracer left in a process.
type Leftover struct {
	p     *ptrace.Process
	Home  uint64 // address of its control block, 0 if there is none
	Sites []Patched
	// Holder is the tracer that made it, as it wrote itself: pid and start time.
	Holder, Since uint64
	code          []procfs.Map
	mail          []procfs.Map
	stubs         []*stubs
}

// Patched is one patch that stands in a process.
type Patched struct {
	Addr        uint64
	Orig, Patch []byte
	Detour      uint64
	Points      []target.Point
	reason      target.Reason
	name        string
}

// Gone says whether the object that it stood in is not mapped any more, and where in it that was.
func (p *Patched) Gone() (place string, ok bool) { return p.name, p.reason == target.ReasonGone }

// Why is why the patch is a breakpoint and no jump, or why a path that a handler changes is taken at a
// jump; "" if there is no reason, or none that is known.
func (p *Patched) Why() string {
	switch r := p.reason; {
	case r == target.ReasonPost:
		return "has a post handler"
	case r == target.ReasonStraight:
		return "kprobes-optimization is off"
	case r == target.ReasonQueued:
		return "queued: a thread is in the way of a jump"
	case r == target.ReasonAsked:
		return "this tactic was asked for"
	case r > target.ReasonRule:
		return string(amd64.RuleOf(uint8(r - target.ReasonRule)))
	}
	return ""
}

// FindLeftover looks for what an earlier tracer left. nil: nothing of ours is there. What
// the process has as a tracer of others is its own. The error is an ErrOwn if the process probes
// itself: what is there is in use.
func FindLeftover(p *Proc) (*Leftover, error) { return findLeftover(p.Process) }

func findLeftover(p *ptrace.Process) (*Leftover, error) {
	maps, err := p.Maps()
	if err != nil {
		return nil, err
	}
	if err := ownEngine(p, maps); err != nil {
		return nil, err
	}
	if maps, err = leftMaps(p, maps); err != nil {
		return nil, err
	}
	if len(maps) == 0 {
		fds, err := leftDescriptors(p)
		if err != nil || len(fds) == 0 {
			return nil, err
		}
		return &Leftover{p: p}, nil // killed before the first of our files was mapped
	}
	l := &Leftover{p: p}
	for _, m := range maps {
		if isHome(m) && l.Home == 0 {
			l.Home = m.Start
		}
		switch {
		case m.Perm&procfs.PermExec == 0:
		case isStubs(m):
			if n := len(l.stubs); n == 0 || !l.stubs[n-1].maps(m) {
				l.stubs = append(l.stubs, stubsOf(p, m))
			}
		default:
			l.code = append(l.code, m)
		}
		if isMail(m) {
			l.mail = append(l.mail, m)
		}
	}
	if l.Home == 0 {
		return l, nil
	}
	return l, l.read()
}

func (l *Leftover) read() error {
	h := newHome(l.p, l.Home)
	magic, err := h.get(hdrMagic)
	if err != nil || magic == 0 { // killed before the control block was complete: nothing was patched
		return err
	}
	if err := h.open(); err != nil {
		return err
	}
	if l.Holder, err = h.get(hdrHolder); err != nil {
		return err
	}
	if l.Since, err = h.get(hdrSince); err != nil {
		return err
	}
	sites, err := h.list()
	for _, s := range sites {
		l.Sites = append(l.Sites, Patched{Addr: s.addr, Orig: s.orig, Patch: s.patch, Detour: s.detour, Points: s.points, reason: s.reason, name: s.name})
	}
	return err
}

// Jump says whether the patch is a jump, not a breakpoint.
func (p *Patched) Jump() bool { return len(p.Patch) == amd64.JumpLen }

// Undone tells what Undo did.
type Undone struct {
	Restored int      // sites whose bytes were put back
	Foreign  []uint64 // sites that hold bytes of neither ours nor the file: left alone
	Pages    int      // mappings that were unmapped
	InCall   bool     // trampolines stay mapped: a call may still return through one (ErrInCall)
	Copies   int      // pages of text that stay private copies, with the file's bytes
	Why      error    // why they do
	Kept     *Kept    // uprobes that the kernel had kept
}

// Undo takes out what is left: uprobes that the kernel has kept, the bytes of every site, the dispositions,
// the memory. Threads inside detours are waited for.
func (l *Leftover) Undo() (*Undone, error) {
	u := &Undone{}
	sites, err := l.mapped()
	if err != nil {
		return u, err
	}
	// First: who is killed in it leaves what tells the next one to do it again.
	u.Kept = dropKept(l.p, keptCase{ours: sites, killed: true})
	for range drainTries {
		if err = l.undoOnce(u); err == nil || !errors.Is(err, ErrInDetour) {
			return u, err
		}
		time.Sleep(drainWait)
	}
	return u, err
}

// undoOnce puts the bytes back, and takes out the handlers and the memory too once no
// thread needs them any more.
func (l *Leftover) undoOnce(u *Undone) (err error) {
	s, err := l.p.Stop(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Release()) }()
	if err := l.disown(); err != nil {
		return err
	}
	if err := l.restore(u); err != nil {
		return err
	}
	if err := l.moveOut(s); err != nil {
		return err
	}
	returns := l.endStubs(s, u)
	for _, m := range l.mail {
		if err := letWaitersGo(l.p, m); err != nil {
			return err
		}
	}
	if l.Home != 0 {
		if err := (&controlBlock{p: l.p, addr: l.Home}).letLoadersGo(); err != nil {
			return err
		}
	}
	if err := cmp.Or(l.drained(s), returns); err != nil {
		return err
	}
	if u.Copies, u.Why, err = textBack(s, nil); err != nil {
		return err
	}
	stays := false
	if l.Home != 0 {
		if stays, err = l.dispositions(s); err != nil {
			return err
		}
	}
	if stays {
		if stays, err = stay(s, l.Home); err != nil {
			return err
		}
	}
	maps, err := l.p.Maps()
	if err != nil {
		return err
	}
	if maps, err = leftMaps(l.p, maps); err != nil {
		return err
	}
	maps = slices.DeleteFunc(maps, func(m procfs.Map) bool { return isStubs(m) && u.InCall })
	u.Pages = len(maps)
	if err := closeLeft(s); err != nil {
		return err
	}
	return unmap(s, stays, maps)
}

// restore puts the original bytes back wherever our patches stand. An entry whose patch was
// never written, or is gone already, is passed over.
func (l *Leftover) restore(u *Undone) error {
	sites, err := l.mapped()
	if err != nil {
		return err
	}
	var failed error
	ws, restored, foreign := restore.Plan(sites, func(addr uint64, b []byte) error {
		err := l.p.ReadMem(addr, b)
		failed = errors.Join(failed, err)
		return err
	})
	if failed != nil {
		return failed
	}
	for _, w := range ws {
		if err := l.p.WriteMem(w.Addr, w.New); err != nil {
			return err
		}
	}
	u.Restored += restored
	u.Foreign = foreign
	return nil
}

// dispositions puts the program's own signal handlers back, and says whether it has put another in
// the place of one of ours: one that is the program's own was perhaps put back by us, before somebody
// was killed.
func (l *Leftover) dispositions(s *ptrace.Stopped) (replaced bool, err error) {
	for _, sig := range ourSignals {
		b := make([]byte, actionSize)
		if err := l.p.ReadMem(l.Home+hdrActions+uint64(sig)*actionSize, b); err != nil {
			return false, err
		}
		if binary.LittleEndian.Uint64(b) == 0 {
			continue
		}
		old := ptrace.ParseSigaction(b[8:])
		now, err := s.Sigaction(int(sig))
		if err != nil {
			return false, err
		}
		for _, c := range l.code {
			if _, now, err = restoreDisposition(s, sig, old, c.Start, c.Size()); err != nil {
				return false, err
			}
		}
		replaced = replaced || now.Handler != old.Handler
	}
	return replaced, nil
}

// maxFaultTable bounds the table of a control block that is read.
const maxFaultTable = 1 << 20

// moveOut moves threads that stand at a copied instruction to the original: one that
// waits in a system call there would stay for as long as the call takes. Preconditions:
// the world is stopped, the original bytes are back.
func (l *Leftover) moveOut(s *ptrace.Stopped) error {
	if l.Home == 0 {
		return nil
	}
	h := newHome(l.p, l.Home)
	at, err := h.get(hdrFaults)
	if err != nil {
		return err
	}
	n, err := h.get(hdrNFaults)
	if err != nil || n == 0 || n > maxFaultTable {
		return err
	}
	b := make([]byte, n*amd64.FaultEntrySize)
	if err := l.p.ReadMem(at, b); err != nil {
		return err
	}
	to := map[uint64]amd64.FaultEntry{}
	for ; len(b) >= amd64.FaultEntrySize; b = b[amd64.FaultEntrySize:] {
		if e := amd64.ReadFaultEntry(b); e.Moved {
			to[e.Lo] = e
		}
	}
	hooked, err := h.get(hdrHooked)
	if err != nil {
		return err
	}
	for _, th := range s.Threads() {
		pc := th.ResumePC()
		if e, ok := to[pc]; ok && l.inCode(pc) {
			r := th.Regs()
			r.RIP += e.To - pc
			r.RSP += e.SP
			if hooked != 0 { // it is about to step the copy: the trap flag is ours, and nobody will take its signal
				r.Flags &^= ptrace.TrapFlag
			}
			if err := th.SetRegs(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// inCode says whether an address is in a mapping of detours.
func (l *Leftover) inCode(v uint64) bool {
	for _, c := range l.code {
		if c.Contains(v) {
			return true
		}
	}
	return false
}

// drained fails while a thread may be in, or come back to, the code. It looks at what a
// later tracer can know: addresses in the pieces.
func (l *Leftover) drained(s *ptrace.Stopped) error {
	in := l.inCode
	for _, th := range s.Everyone() {
		if in(th.ResumePC()) {
			return ErrInDetour
		}
	}
	if len(l.code) > 0 {
		if err := trapPending(s); err != nil {
			return err
		}
	}
	busy := false
	t := &Target{p: l.p}
	err := t.savedContexts(s, isGo(l.p), func(v uint64) { busy = busy || in(v) })
	if err == nil && busy {
		err = ErrInDetour
	}
	return err
}

// closeLeft closes descriptors of our memory files that a tracer killed in the middle
// left open in the process. Precondition: the world is stopped.
func closeLeft(s *ptrace.Stopped) error {
	fds, err := leftDescriptors(s.Process())
	if err != nil {
		return err
	}
	for _, fd := range fds {
		if err := s.CloseFD(fd); err != nil {
			return err
		}
	}
	return nil
}

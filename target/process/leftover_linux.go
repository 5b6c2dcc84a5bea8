package process

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// Leftover is what an earlier tracer left in a process.
type Leftover struct {
	p            *ptrace.Process
	ControlBlock uint64 // its address, 0 if there is none
	Sites        []Patched
	// Holder is the tracer that made it, as it wrote itself: pid and start time.
	Holder, Since uint64
	code          []procfs.Map
	mail          []procfs.Map
	threads       []procfs.Map
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
		return native.RuleOf(uint8(r - target.ReasonRule))
	}
	return ""
}

// FindLeftover looks for what an earlier tracer left. nil: nothing of an earlier tracer is there. What
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
		if isControlBlock(m) && l.ControlBlock == 0 {
			l.ControlBlock = m.Start
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
		if isThread(m) {
			l.threads = append(l.threads, m)
		}
	}
	if l.ControlBlock == 0 {
		return l, nil
	}
	return l, l.read()
}

func (l *Leftover) read() error {
	h := controlBlockAt(l.p, l.ControlBlock)
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
func (p *Patched) Jump() bool { return len(p.Patch) == native.PatchLen }

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
	return u, drained(func() error { return l.undoOnce(u) })
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
	if err := l.letGo(); err != nil {
		return err
	}
	if err := cmp.Or(l.drained(s), returns); err != nil {
		return err
	}
	if u.Copies, u.Why, err = textBack(s, nil); err != nil {
		return err
	}
	stays := false
	if l.ControlBlock != 0 {
		if stays, err = l.dispositions(s); err != nil {
			return err
		}
	}
	if stays {
		if stays, err = stay(s, l.ControlBlock); err != nil {
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

// letGo has threads go on that wait for the tracer that has gone: for a handler, for what a module's thread is to do, or since they load an object.
func (l *Leftover) letGo() error {
	for _, m := range l.mail {
		if err := letWaitersGo(l.p, m); err != nil {
			return err
		}
	}
	for _, m := range l.threads {
		if err := letThreadGo(l.p, m); err != nil {
			return err
		}
	}
	if l.ControlBlock == 0 {
		return nil
	}
	return (&controlBlock{p: l.p, addr: l.ControlBlock}).letLoadersGo()
}

// restore puts the original bytes back wherever our patches stand. An entry whose patch was
// never written, or is gone already, is passed over.
func (l *Leftover) restore(u *Undone) error {
	sites, err := l.mapped()
	if err != nil {
		return err
	}
	var failed error
	ws, restored, foreign := patch.Restore(sites, func(addr uint64, b []byte) error {
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
// the place of the tracer's. Where the program's own handler stands, an earlier detach that was killed may have
// put it back.
func (l *Leftover) dispositions(s *ptrace.Stopped) (replaced bool, err error) {
	for _, sig := range ourSignals {
		b := make([]byte, actionSize)
		if err := l.p.ReadMem(l.ControlBlock+hdrActions+uint64(sig)*actionSize, b); err != nil {
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
	if l.ControlBlock == 0 {
		return nil
	}
	h := controlBlockAt(l.p, l.ControlBlock)
	at, err := h.get(hdrFaults)
	if err != nil {
		return err
	}
	n, err := h.get(hdrNFaults)
	if err != nil || n == 0 || n > maxFaultTable {
		return err
	}
	b := make([]byte, n*native.FaultEntrySize)
	if err := l.p.ReadMem(at, b); err != nil {
		return err
	}
	to := map[uint64]native.FaultEntry{}
	for ; len(b) >= native.FaultEntrySize; b = b[native.FaultEntrySize:] {
		if e := native.ReadFaultEntry(b); e.Moved {
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
			r.Shift(e.To-pc, e.SP)
			if hooked != 0 { // it is about to step the copy: the trap flag is ours, and nobody will take its signal
				r.Unstep()
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
	if err := anyInside(s, in); err != nil {
		return err
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

// tracer names the tracer that has left something.
func (l *Leftover) tracer() string {
	if l.Holder == 0 { // it ended before it wrote down who it is
		return "an earlier tracer"
	}
	return fmt.Sprintf("an earlier tracer (pid %d)", l.Holder)
}

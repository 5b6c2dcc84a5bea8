package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/mailbox"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// Bounds of TargetOptions.HandlerWait.
const (
	defaultHandlerWait = 100 * time.Millisecond
	maxHandlerWait     = time.Minute
)

var _ target.Caller = (*Target)(nil)

// gateCalls are the system calls of the gate, as seccomp filters see them; it lies anywhere,
// and so does the mailbox.
var gateCalls = []ptrace.CallData{
	ptrace.CallOf(unix.SYS_GETPID, [6]uint64{}, 0, 1, 2, 3, 4, 5),
	ptrace.CallOf(unix.SYS_GETTID, [6]uint64{}, 0, 1, 2, 3, 4, 5),
	ptrace.CallOf(unix.SYS_CLOCK_GETTIME, [6]uint64{unix.CLOCK_MONOTONIC}, 1, 2, 3, 4, 5),
	ptrace.CallOf(unix.SYS_FUTEX, [6]uint64{0, futexWakeOp, 1}, 0, 3, 4, 5),
	ptrace.CallOf(unix.SYS_FUTEX, [6]uint64{0, futexWaitBitsetOp, arch.MailSlotPosted, 0, 0, 1<<32 - 1}, 0, 2, 3, 4),
}

const futexWaitBitsetOp = 9

// NewCall makes a handler callable. With the first one the mailbox and the gate are put into
// the process, in a stop: the process must have been prepared. Errors: EINVAL, EOPNOTSUPP
// (Handler.Entry), EACCES (a thread that seccomp would end for the gate's system calls; after
// a filter that the program takes on later the handler is missed), ENOSPC, ESHUTDOWN after Close.
//
// The handler runs in this process while the thread that hit waits, for at most
// TargetOptions.HandlerWait. If it has not returned by then the thread goes on unchanged
// and the hit counts as missed, though the handler runs to its end. Up to eight handlers run
// at once, and beside them those that are Sleepable. The thread of a Go program that waits
// keeps its processor (P) meanwhile, and the garbage collector waits for it. Hits of fork
// children are missed: the handler's process is the one that it knows.
func (t *Target) NewCall(h *target.Handler) (*arch.Call, error) {
	switch {
	case t.control == nil:
		return nil, errno.Errorf(unix.EINVAL, "process %d: a handler needs a process that is prepared", t.p.PID())
	case h == nil:
		return nil, errno.Errorf(unix.EINVAL, "process %d: there is no handler", t.p.PID())
	case h.InLine != nil:
		if t.inLine == nil {
			return nil, errno.Errorf(unix.EINVAL, "process %d: a handler in line needs a module", t.p.PID())
		}
		return t.inLine.newCall(h)
	case h.Entry != nil:
		return nil, errno.Errorf(unix.EOPNOTSUPP, "process %d: a function can not be called here with the arguments of one there: its pointers are not ours; use a handler that is given the registers", t.p.PID())
	case h.Run == nil:
		return nil, errno.Errorf(unix.EINVAL, "process %d: the handler has no function to run", t.p.PID())
	}
	if t.mail == nil {
		if err := t.openMailbox(); err != nil {
			return nil, fmt.Errorf("handlers in process %d: %w", t.p.PID(), err)
		}
	}
	return t.mail.Add(h, t.oldest())
}

// retire notes the sites that a change has taken out.
func (t *Target) retire(sites []*target.Site) {
	t.setZombies(append(slices.Clone(t.zombie), sites...))
	t.changes++
	if len(sites) > 0 && t.faults != nil {
		t.faults.gone = true // the table of breakpoints tells of them
	}
	if t.mail == nil {
		return
	}
	t.mail.Retire(sites, t.changes)
}

// oldest is the change that took out the oldest site in whose detour a thread may be; that
// which comes next if there is none.
func (t *Target) oldest() uint64 {
	n := t.changes + 1
	for _, z := range t.zombie {
		n = min(n, t.mail.Retired(z)) // 0: before there was a mailbox
	}
	return n
}

// EndCall forgets a call, and waits for runs of its handler to end: it must not be called by
// the handler. What was missed is forgotten too.
func (t *Target) EndCall(c *arch.Call) {
	switch {
	case t.isInLine(c):
		t.inLine.end(c)
	case t.mail != nil:
		t.mail.End(c, t.changes)
	}
}

// Quiet waits until a call's handler is not run by anybody.
func (t *Target) Quiet(c *arch.Call) {
	switch {
	case t.isInLine(c):
		t.inLine.quiet(c)
	case t.mail != nil:
		t.mail.Quiet(c)
	}
}

// InHandler says whether the calling goroutine runs a handler of the process's probes.
func (t *Target) InHandler() bool {
	m, ok := mailbox.Running().(*mailSide)
	return ok && m.p == t.p
}

// Missed tells how often the call's handler was not run, or not in time (System), or was
// switched off after a fault that its owner had not dealt with (Stopped).
func (t *Target) Missed(c *arch.Call) target.Missed {
	switch {
	case t.isInLine(c):
		missed, _ := t.inLine.counts(c)
		return target.Missed{Busy: missed}
	case t.mail == nil:
		return target.Missed{}
	}
	return t.mail.Missed(c)
}

// Task gives the id of the thread that a running handler was given the registers of, as the
// thread sees it itself; 0: no handler runs on these registers.
func (t *Target) Task(r *native.Regs) uint64 {
	if t.mail == nil {
		return 0
	}
	return t.mail.Task(r)
}

// handlerWait is how long a thread waits.
func (t *Target) handlerWait() (time.Duration, error) {
	switch d := t.o.HandlerWait; {
	case d == 0:
		return defaultHandlerWait, nil
	case d < 0 || d > maxHandlerWait:
		return 0, errno.Errorf(unix.EINVAL, "a wait of %v for handlers: up to %v", d, maxHandlerWait)
	default:
		return d, nil
	}
}

// openMailbox puts the mailbox and the gate into the process.
func (t *Target) openMailbox() error {
	wait, err := t.handlerWait()
	if err != nil {
		return err
	}
	st, err := t.p.Status()
	if err != nil {
		return err
	}
	size, err := t.mailSize()
	if err != nil {
		return err
	}
	pid := innermost(st.NSTID, t.p.PID())
	var m *mailSide
	if err := t.stopped(func(s *ptrace.Stopped) (err error) {
		m, err = t.mapMailbox(s, size)
		return err
	}); err != nil {
		return err
	}
	m.Init(pid)
	env := native.GateEnv{Mailbox: m.addr, PID: uint32(pid), Wait: uint64(wait), Quiet: t.writer.Quiet}
	if err := t.writeGate(m, env); err != nil {
		return errors.Join(err, m.close(), t.stopped(func(s *ptrace.Stopped) error { return s.Munmap(m.addr, uint64(size)) }))
	}
	t.mail, t.writer.Gate = m, m.gate.Start
	return nil
}

// leastDescs is how many handlers a process has room for at least.
const leastDescs = 1 << 16

// mailSize chooses the size of the mailbox: memory is taken only for handlers that there are, but where
// the address space is limited the mailbox takes little of it.
func (t *Target) mailSize() (int, error) {
	ls, err := t.limits()
	if err != nil {
		return 0, err
	}
	descs := arch.MailDescs
	for descs > leastDescs {
		size := uint64(arch.MailSize(descs))
		if ls.Check(headroom.Take{Mapped: roomShare / 2 * size, Locked: roomShare / 2 * size}) == nil {
			break
		}
		descs /= 2
	}
	return arch.MailSize(descs), nil
}

// mapMailbox makes and maps a mailbox of so many bytes. Precondition: the world is stopped.
func (t *Target) mapMailbox(s *ptrace.Stopped, size int) (m *mailSide, err error) {
	why, err := t.whyNotCall(s, "call handlers", gateCalls)
	if why != nil || err != nil {
		return nil, errors.Join(why, err)
	}
	local, fd, err := t.openMemfd(s, mailboxName)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.CloseFD(fd)) }()
	id, err := sealMail(local, size)
	if err != nil {
		return nil, errors.Join(err, local.Close())
	}
	mem, err := mapMail(local, size)
	if err != nil {
		return nil, err
	}
	t.mailID = id
	addr, err := s.Mmap(0, uint64(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE, fd, 0)
	if err != nil {
		return nil, errors.Join(err, mem.close())
	}
	return newMailSide(t.p, mem, addr), nil
}

// sealMail gives a mailbox's memory file its size and seals it.
func sealMail(f *os.File, size int) (procfs.FileID, error) {
	if err := f.Truncate(int64(size)); err != nil {
		return procfs.FileID{}, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return procfs.FileID{}, err
	}
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return ptrace.FileID(&st), err
}

// writeGate generates the gate and writes it into the process.
func (t *Target) writeGate(m *mailSide, env native.GateEnv) error {
	near := t.module[0].lo // where detours are likely to be
	code, err := native.NewGate(near, env)
	if err != nil {
		return err
	}
	at, err := t.Code(near, near+procfs.PageSize, len(code))
	if err != nil {
		return err
	}
	if code, err = native.NewGate(at, env); err != nil {
		return err
	}
	m.gate = interval.Range{Start: at, End: at + uint64(len(code))}
	return t.p.WriteMem(at, code)
}

// resumes gives the addresses in generated code that the thread goes on at: where it stands,
// and from the gate the detour that it came from.
func (t *Target) resumes(th *ptrace.Thread) []uint64 {
	pc := th.ResumePC()
	if t.inGate(pc) {
		return []uint64{pc, t.gateGoesTo(pc, th.Regs())}
	}
	return []uint64{pc}
}

// gateGoesTo is where a thread at pc in the gate goes on: in the detour that it came from, or where
// a handler has sent it.
func (t *Target) gateGoesTo(pc uint64, r ptrace.Regs) uint64 {
	var b [8]byte
	if native.GateLeaves(pc, t.mail.gate.End) && t.p.ReadMem(r.SP(), b[:]) == nil {
		return le.Uint64(b[:])
	}
	return gateLink(&r)
}

func (t *Target) inGate(pc uint64) bool {
	return t.mail != nil && pc >= t.mail.gate.Start && pc < t.mail.gate.End
}

// gateBusy fails while a thread is in the gate, or in a signal handler that interrupted it
// there. Precondition: the world is stopped.
func (t *Target) gateBusy(s *ptrace.Stopped) error {
	if t.mail == nil {
		return nil
	}
	if err := anyInside(s, t.inGate); err != nil {
		return err
	}
	busy := false
	err := t.savedContexts(s, t.golang != nil, func(v uint64) { busy = busy || t.inGate(v) })
	if err == nil && busy {
		err = ErrInDetour
	}
	return err
}

// sweep frees slots whose thread has left the gate for good, by a jump out of a signal
// handler that had interrupted its wait. Precondition: the world is stopped.
func (t *Target) sweep(s *ptrace.Stopped) {
	if t.mail == nil || !t.mail.InUse() || t.gateBusy(s) != nil {
		return
	}
	t.mail.FreeAll()
}

// closeMailbox ends our side of the mailbox, once it is not in the process any more.
func (t *Target) closeMailbox() error {
	if t.mail == nil {
		return nil
	}
	m := t.mail
	t.mail, t.writer.Gate = nil, 0
	return m.close()
}

// letWaitersGo refuses what threads of the process have posted to a mailbox that an earlier
// tracer has left, and switches waiting off. Their sleep begins anew when they are let go
// after the stop, and ends at once since the state is another. Preconditions: the world is
// stopped, the tracer is gone.
func letWaitersGo(p *ptrace.Process, m procfs.Map) error {
	st, err := p.Status()
	if err != nil {
		return err
	}
	b := make([]byte, arch.MailDescsOff)
	if m.Size() < uint64(len(b)) {
		return nil // killed before it was whole
	}
	if err := p.ReadMem(m.Start, b); err != nil {
		return err
	}
	mine := int(le.Uint32(b[arch.MailPIDOff:])) == innermost(st.NSTID, p.PID()) // else it is a fork child's parent's
	if le.Uint64(b) != arch.MailMagic || le.Uint64(b[arch.MailVersionOff:]) != arch.MailVersion || !mine {
		return nil
	}
	put := func(off int, v uint32) error { return p.WriteMem(m.Start+uint64(off), le.AppendUint32(nil, v)) }
	errs := []error{put(arch.MailOffOff, arch.MailClosed)}
	for slot := range arch.MailSlots {
		at := mailbox.SlotAt(slot) + arch.MailStateOff
		switch le.Uint32(b[at:]) {
		case arch.MailSlotPosted, arch.MailSlotTaken:
			errs = append(errs, put(at, arch.MailSlotRefused))
		}
	}
	return errors.Join(errs...)
}

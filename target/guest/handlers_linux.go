package guest

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/mailbox"
	"kprobes.dev/kprobes/internal/target"
)

// Bounds of Options.HandlerWait.
const (
	defaultHandlerWait = 100 * time.Millisecond
	maxHandlerWait     = time.Minute
)

var _ target.Caller = (*Target)(nil)

// NewCall makes a handler callable. With the first one the mailbox and the gate are put into
// the guest, which must have been prepared. Errors: EINVAL, EOPNOTSUPP (Handler.Entry; a kernel
// that does not tell the rate of its time-stamp counter), ENOSPC, ESHUTDOWN.
//
// The handler runs in this process while the vCPU that hit waits, for at most
// Options.HandlerWait of the guest's time. Interrupts stay as they were: where the probed code
// runs with them on, the vCPU serves them and may switch to another task meanwhile. If the
// handler has not returned by then the vCPU goes on unchanged and the hit counts as missed,
// though the handler runs to its end; and so does a hit on a vCPU of which another one waits.
// As many handlers run at once as there are vCPUs, and beside them those that are Sleepable.
//
// While there is a call a goroutine looks for posts: all the time until a millisecond after the
// last one, then at intervals of some 0.1 ms, and after a second of 1 ms, which is what a hit
// may cost then. EndCall all calls, or Close and have no EBUSY, before the machine is
// closed.
func (t *Target) NewCall(h *target.Handler) (*arch.Call, error) {
	switch {
	case t.lay == nil:
		return nil, errno.Errorf(unix.EINVAL, "a handler needs a guest that is prepared")
	case h == nil:
		return nil, errno.Errorf(unix.EINVAL, "there is no handler")
	case h.InLine != nil && t.inLine == nil:
		return nil, errno.Errorf(unix.EINVAL, "a handler in line needs a guest that is prepared for modules")
	case h.InLine != nil:
		return t.inLine.newCall(h)
	case h.Entry != nil:
		return nil, errno.Errorf(unix.EOPNOTSUPP, "a function can not be called here with the arguments of one in the guest's kernel: its pointers are not ours; use a handler that is given the registers")
	case h.Run == nil:
		return nil, errno.Errorf(unix.EINVAL, "the handler has no function to run")
	}
	if err := t.alive(); err != nil {
		return nil, err
	}
	if t.mail == nil {
		if err := t.openMailbox(); err != nil {
			return nil, fmt.Errorf("handlers in the guest's kernel: %w", err)
		}
	}
	return t.mail.Add(h, t.oldest())
}

// EndCall forgets a call, and waits for runs of its handler to end: it must not be called by
// the handler. What was missed is forgotten too.
func (t *Target) EndCall(c *arch.Call) {
	if t.inLine.call(c) != nil {
		t.inLine.end(c)
		return
	}
	if t.mail != nil {
		t.mail.End(c, t.changes)
	}
}

// Quiet waits until a call's handler is not run by anybody.
func (t *Target) Quiet(c *arch.Call) {
	if t.inLine.call(c) != nil {
		t.inLine.quiet(c)
		return
	}
	if t.mail != nil {
		t.mail.Quiet(c)
	}
}

// InHandler says whether the calling goroutine runs a handler of the guest's probes.
func (t *Target) InHandler() bool {
	m, ok := mailbox.Running().(*mailSide)
	return ok && m.t == t
}

// Missed tells how often the call's handler was not run, or not in time (System), or was
// switched off after a fault that its owner had not dealt with (Stopped).
func (t *Target) Missed(c *arch.Call) target.Missed {
	if in := t.inLine.call(c); in != nil {
		return t.inLine.missed(c, in)
	}
	if t.mail == nil {
		return target.Missed{}
	}
	return t.mail.Missed(c)
}

// Task gives the id (task_struct.pid) of the thread that a running handler was given the
// registers of; 0: no handler runs on these registers, or the CPU was idle.
func (t *Target) Task(r *native.Regs) uint64 {
	if t.mail == nil {
		return 0
	}
	return t.mail.Task(r)
}

// retire notes the sites that a change has taken out.
func (t *Target) retire(sites []*target.Site) {
	t.zombie = append(t.zombie, sites...)
	t.changes++
	if t.mail != nil {
		t.mail.Retire(sites, t.changes)
	}
	t.inLine.retire(sites, t.changes)
}

// oldest is the change that took out the oldest site in whose detour a thread may be; that
// which comes next if there is none.
func (t *Target) oldest() uint64 {
	n := t.changes + 1
	for _, z := range t.zombie {
		n = min(n, t.mail.Retired(z))
	}
	return n
}

// handlerTicks is how long a vCPU waits, in ticks of its time-stamp counter.
func (t *Target) handlerTicks() (uint64, error) {
	d := t.o.HandlerWait
	switch {
	case d == 0:
		d = defaultHandlerWait
	case d < 0 || d > maxHandlerWait:
		return 0, errno.Errorf(unix.EINVAL, "a wait of %v for handlers: up to %v", d, maxHandlerWait)
	}
	return t.ticksOf(d)
}

// Descriptors of handlers that there is room for. Those of the mailbox below 1 MiB stand in
// what its first page has left.
const (
	sharedDescs = 4096
	lowDescs    = (arch.MailSlotsOff - lowFirst) / arch.MailDescSize
	lowFirst    = 256
)

// mailMem lays out a mailbox.
func (t *Target) mailMem() (m mailbox.Mem, size int) {
	m = mailbox.Mem{Slots: t.k.CPUs(), Descs: lowDescs, First: lowFirst}
	size = native.KernelMailSize(m.Slots)
	if t.lay.shared {
		m.Descs, m.First = sharedDescs, size
		size += sharedDescs * arch.MailDescSize
	}
	return m, size
}

// openMailbox puts the mailbox and the gate into the guest.
func (t *Target) openMailbox() error {
	ticks, err := t.handlerTicks()
	if err != nil {
		return err
	}
	mem, size := t.mailMem()
	off := t.heap
	if off+size > len(t.lay.data.mem) {
		return errno.Errorf(unix.ENOSPC, "the mailbox takes %d bytes, and the guest's memory for it has %d left: give it a larger ivshmem device (kprobe doctor tells how)", size, len(t.lay.data.mem)-off)
	}
	mem.B = t.lay.data.mem[off:][:size:size]
	clear(mem.B)
	mem.Init(0)
	m := &mailSide{t: t}
	addr := t.lay.data.va + uint64(off)
	gate, err := t.writeGate(native.KernelGateEnv{Mailbox: addr, Kernel: t.arch, Ticks: ticks})
	if err != nil {
		return err
	}
	t.heap += size
	m.Box = mailbox.New(mem, addr, m, mem.Slots, "the guest")
	t.control.put(hdrMail, uint64(off)+1)
	t.mail, t.writer.Gate = m, gate
	return nil
}

// writeGate generates the gate and writes it into the guest.
func (t *Target) writeGate(env native.KernelGateEnv) (uint64, error) {
	code, err := native.NewKernelGate(t.lay.code.va, env)
	if err != nil {
		return 0, err
	}
	at, err := t.Code(t.lay.code.va, t.lay.code.va, len(code))
	if err != nil {
		return 0, err
	}
	size := len(code)
	if code, err = native.NewKernelGate(at, env); err == nil {
		err = t.writeCode(at, code)
	}
	if err != nil {
		t.FreeCode(at, size)
	}
	return at, err
}

// closeMailbox ends our side of the mailbox; the vCPUs' goes with the layout.
func (t *Target) closeMailbox() {
	if t.mail == nil {
		return
	}
	if t.alive() == nil {
		t.mail.Shut()
	} else {
		t.mail.Abandon()
		t.mail.Done()
	}
}

// letWaitersGo refuses what vCPUs have posted to the layout's mailbox, and switches waiting
// off. Precondition: nobody serves it.
func letWaitersGo(l *layout, cpus int) {
	off := newControl(l.control.mem).get(hdrMail)
	size := uint64(native.KernelMailSize(cpus))
	if off == 0 || off-1 > uint64(len(l.data.mem)) || size > uint64(len(l.data.mem))-(off-1) || (off-1)%8 != 0 {
		return
	}
	m := mailbox.Mem{B: l.data.mem[off-1:], Slots: cpus}
	m.Disable()
	m.RefuseAll(nil)
}

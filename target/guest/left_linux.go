package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// Close takes out what Prepare put in, once all sites have been removed. Records can still be
// read. Code that a thread may come back to stays mapped: ErrInDetour; so it does where somebody
// else has patched over one of our patches: ErrForeign.
//
// EBUSY: some sites have not been removed. All stays then and works on, handlers too: the machine
// must stay open as long as counts or records are read or a handler may be called. After any other
// error it may be closed.
func (t *Target) Close() error {
	if t.lay == nil {
		return nil
	}
	if n := t.standing(); n > 0 && t.alive() == nil {
		return errno.Errorf(unix.EBUSY, "%d patches still stand in the guest's kernel: the code that they lead to stays", n)
	}
	t.closeMailbox()
	if len(t.foreign) > 0 && t.alive() == nil {
		t.ring.Keep()
		t.control.put(hdrHolder, 0)
		t.inLine = nil // its memory may go with the machine
		t.release()
		return fmt.Errorf("the bytes at %s were changed by somebody else, and left alone with the code that they lead to: when they are ours again kprobe detach takes them out: %w",
			places(t.foreign), ErrForeign)
	}
	err := t.drain(t.lay)
	if errors.Is(err, target.ErrGone) {
		err = nil
	}
	t.ring.Keep() // the machine may be closed before its counters are read
	stays := errors.Is(err, ErrInDetour)
	if err != nil && !stays {
		return err
	}
	if stays {
		t.lay.leave()
	}
	t.lay, t.mail, t.inLine, t.adopted, t.notes, t.pools = nil, nil, nil, nil, nil, nil
	t.release()
	return err
}

// standing is the number of our patches that stand and that nobody else has patched over.
func (t *Target) standing() int {
	n := len(t.control.sites) - len(t.notes)
	for _, s := range t.foreign {
		if _, ok := t.control.sites[s]; ok {
			n--
		}
	}
	return n
}

func places(sites []*target.Site) string {
	var b bytes.Buffer
	for i, s := range sites {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "0x%x", s.Addr)
	}
	return b.String()
}

// drain takes the layout out of the guest once nobody is in its code.
func (t *Target) drain(l *layout) error {
	var err error
	for i := range drainTries {
		if i > 0 {
			time.Sleep(drainWait * time.Duration(1+i/drainEach)) // on a busy host a vCPU may not run at all in the first ones
		}
		if err = t.stopped(func(s *qemu.Stop) error { return t.drainStopped(s, l) }); !errors.Is(err, ErrInDetour) {
			return err
		}
	}
	return err
}

// drainStopped takes the layout out. Precondition: the vCPUs are stopped.
func (t *Target) drainStopped(s *qemu.Stop, l *layout) error {
	if err := t.alive(); err != nil {
		return err
	}
	letWaitersGo(l, t.k.CPUs())
	letThreadGo(l)
	var busy error
	if err := t.words(s, func(at where, v uint64) {
		if v-l.code.va < uint64(len(l.code.mem)) {
			busy = fmt.Errorf("%w: %v, at 0x%x", ErrInDetour, at, v)
		}
	}); err != nil {
		return err
	}
	if busy != nil {
		return busy
	}
	l.remove()
	if err := s.FlushTLBs(); err != nil {
		return err
	}
	if l.shared {
		l.leave()
		return nil
	}
	if t.ring != nil && t.lay == l {
		t.ring.Keep() // its records may still be read
	}
	for _, p := range []part{l.table, l.code, l.data, l.ring, l.control} {
		clear(p.mem) // the pages were zero
	}
	return nil
}

// leave marks the layout as not in use; what it tells of code stays.
func (l *layout) leave() {
	c := newControl(l.control.mem)
	c.put(hdrSites, 0)
	c.put(hdrHolder, 0)
	c.put(hdrMail, 0)
	c.put(hdrThread, 0)
}

// errClaimed says that another engine of this process is at work in the guest.
var errClaimed = errno.Errorf(unix.EBUSY, "another engine of this process holds the guest's kernel: close that one first")

// Recover takes out what a killed tracer has left. EBUSY: one that lives holds the guest's kernel, be
// it of this process.
func (t *Target) Recover() error {
	if t.lay != nil || t.clean {
		return nil
	}
	if err := t.claim(); err != nil {
		return err
	}
	defer t.release()
	return t.recover()
}

// claim takes the machine for this engine. EBUSY: another one of this process has it.
func (t *Target) claim() error {
	if !t.claims && !t.m.Claim() {
		return errClaimed
	}
	t.claims = true
	return nil
}

// release ends what claim has begun.
func (t *Target) release() {
	if t.claims {
		t.m.Release()
	}
	t.claims = false
}

// recover is Recover. Precondition: the machine is claimed.
func (t *Target) recover() error {
	if err := t.alive(); err != nil || t.clean {
		return err
	}
	err := t.undoLeftovers()
	t.clean = err == nil
	return err
}

// undoLeftovers takes out what a tracer has left that is gone: no other process has the machine
// (its lock), and no other engine of this one (its claim), so that what names this process as its
// holder was left by an engine that has closed the machine.
func (t *Target) undoLeftovers() error {
	l, err := t.FindLeftover()
	if err != nil || l == nil {
		return err
	}
	if l.Alive() && l.Holder != uint64(os.Getpid()) {
		return errno.Errorf(unix.EBUSY, "the guest's kernel holds probes of process %d, which still runs", l.Holder)
	}
	u, err := l.Undo()
	if errors.Is(err, ErrInDetour) {
		l.lay.leave()
		t.adopted = l.lay // its patches are gone; ours go behind its code
		return nil
	}
	if err == nil && len(u.Foreign) > 0 {
		err = fmt.Errorf("0x%x: %w", u.Foreign, ErrForeign)
	}
	if err != nil {
		return fmt.Errorf("probes that an earlier tracer (pid %d) left in the guest can not be taken out: %w", l.Holder, err)
	}
	return nil
}

// startTime is the start time of a process, in clock ticks after boot.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	st, err := procfs.ParseStat(string(b))
	return st.Start, err
}

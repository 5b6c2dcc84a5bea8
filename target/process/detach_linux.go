package process

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target/patch"
)

// Close takes everything out of the process that Prepare and Commit put in, once all
// sites have been removed: the dispositions, the code, the control block and the ring. Records
// can still be read. Handlers that run are waited for. If the process has ended there is
// nothing else to do.
func (t *Target) Close() error {
	if k := t.kernel.Swap(nil); k != nil {
		k.close()
	}
	t.watch.Close()
	if t.control == nil && !t.closed {
		return nil
	}
	var err error
	if !t.closed {
		err = t.closeControlBlock()
	}
	if err == nil {
		t.control, t.closed = nil, false
		t.text.close()
		err = errors.Join(t.closeMailbox(), t.closeInLine())
		if t.inCall {
			err = errors.Join(err, fmt.Errorf("process %d: %w", t.p.PID(), ErrInCall))
		}
	}
	if len(t.foreign) > 0 {
		err = errors.Join(err, fmt.Errorf("process %d: bytes at 0x%x were changed by somebody else and left alone: %w", t.p.PID(), t.foreign, ErrForeign))
	}
	return errors.Join(err, t.closeChildren())
}

// closeControlBlock takes everything out, in as many stops as it takes until no thread is in the way.
func (t *Target) closeControlBlock() error {
	if t.mail != nil {
		t.mail.Shut()
	}
	return ignoreEnded(drained(func() error {
		if err := t.control.letLoadersGo(); err != nil {
			return err
		}
		return t.stopped(t.closeStopped)
	}))
}

// CloseStopped takes everything out in the stop that has taken out the last sites, in which it is called. Not if handlers were called, which
// may run for a while yet, or a function had a trampoline, whose calls need time; and not if a thread is in the
// way. Then Close does it in stops of its own.
func (t *Target) CloseStopped() {
	s := t.within()
	if s == nil || t.control == nil || t.mail != nil || t.stubs.Load() != nil || t.armed() {
		return
	}
	sites := t.control.sites
	t.control.sites = nil // their bytes are the file's, and their entries go with the control block
	if err := t.closeStopped(s); err != nil {
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
	t.children = pids
	for _, pid := range pids {
		errs = append(errs, undoChild(pid))
	}
	return errors.Join(errs...)
}

// Children are the processes that were forked from this one, ran the same program, and had its probes until Close took them out.
func (t *Target) Children() []int { return t.children }

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
		return cmp.Or(inHandler(s, t.code), ErrInDetour)
	}
	if t.faults != nil {
		if err := t.faults.noTrapPending(s); err != nil {
			return err
		}
		if err := t.faults.uninstall(s); err != nil {
			return err
		}
	}
	if err := inHandler(s, t.code); err != nil {
		return err
	}
	if err := cmp.Or(t.gateBusy(s), t.inLineBusy(s)); err != nil {
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
func inHandler(s *ptrace.Stopped, code []*patch.Piece) error {
	return anyInside(s, func(pc uint64) bool {
		return slices.ContainsFunc(code, func(c *patch.Piece) bool { return c.Holds(pc) })
	})
}

// unmapOwn unmaps what this tracer has mapped, by the mappings of files: its ring, code and control block. Precondition: the
// world is stopped.
func (t *Target) unmapOwn(s *ptrace.Stopped, maps []procfs.Map) error {
	stays, err := t.faults != nil && t.faults.replaced, error(nil)
	if stays {
		if stays, err = stay(s, t.control.addr); err != nil {
			return err
		}
		if maps, err = s.FileMaps(); err != nil { // a part of the code is no mapping of the tracer's any more
			return err
		}
	}
	return unmap(s, stays, slices.DeleteFunc(slices.Clone(maps), func(m procfs.Map) bool {
		foreign := isRing(m) && m.FileID != t.ringID || isMail(m) && m.FileID != t.mailID ||
			isThread(m) && m.FileID != t.threadID ||
			isStubs(m) && (t.inCall || !t.stubs.Load().maps(m))
		return !ours(m) || foreign // the process may be a tracer too
	}))
}

// unmap unmaps what is ours, the control block last: it tells what is left. stays: but for what the handlers
// need (see stay). Precondition: the world is stopped.
func unmap(s *ptrace.Stopped, stays bool, maps []procfs.Map) error {
	var last []procfs.Map
	for _, m := range maps {
		if !isControlBlock(m) {
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
	if err := s.MunmapAll(slices.DeleteFunc(slices.Clone(maps), isControlBlock)); err != nil {
		return err
	}
	slices.Reverse(last) // what tells of the rest is at the start
	for _, m := range last {
		gone := func() error { return s.Munmap(m.Start, m.Size()) }
		if stays && m.Offset == 0 {
			gone = func() error { return keepResident(s, m) }
		}
		if err := gone(); err != nil {
			return err
		}
	}
	return nil
}

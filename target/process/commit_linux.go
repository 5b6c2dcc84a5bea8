package process

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// How a change is made. All threads are stopped. Package patch has the states of a site, and decides where threads go on and
// what is written. Here the process lives on if the tracer is killed, so that this is the order:
//
//	1. A thread that is in the way, or whose saved context (a signal frame on a stack) may lead there, blocks the change, or,
//	   if the bytes are those of a group, that group: the group is left out, as if it had not been
//	   asked for, and what follows is done for the rest.
//	2. The entries of new sites are written to the control block's tables. That of breakpoints tells of
//	   the new site from here on where it takes an old one's place.
//	3. The threads are moved, and then the bytes are written, page by page: the kernel writes a
//	   page's bytes in one piece, and no jump crosses a page, so that a tracer killed between two
//	   writes leaves every site either as it was or patched, and every thread where it can go
//	   on. Where the place that a thread is sent to leads into an old patch (look.apart), the old
//	   patches are taken out first.
//	   Before the first byte of a page changes the page may become a private copy of the file's
//	   (textplan_linux.go).
//	4. A detour that a thread may still be in keeps its room until none is.
//	5. The threads go on, through a register write each: the core is serialised.
//	6. The entries of sites that are gone are cleared; until then they tell of bytes that are
//	   as the file has them.

// tries are the attempts at a change that a thread blocks.
var tries = patch.Tries{N: 60, Wait: 2 * time.Millisecond}

// ErrBlocked says that a thread stands, or may return to, where a change would harm it.
var ErrBlocked = target.ErrBlocked

// ErrForeign says that bytes of the program are neither what its file has nor ours.
var ErrForeign = errors.New("the program's code is not what its file has: another tool patched it")

// Commit makes a change, and those after it, in one stop.
func (t *Target) Commit(c *target.Change) (err error) {
	defer func() { err = asGone(err) }() // where it has ended before its threads are asked to stop, too
	if err := t.control.ours(); err != nil {
		return err
	}
	for n := c; n != nil; n = n.Next {
		n.Begin()
		n.Made = false
	}
	add := c.All()
	if err := t.refuseUprobes(add); err != nil {
		return err
	}
	if err := t.checkRoomFor(add); err != nil {
		return err
	}
	if t.inLine != nil {
		if err := t.inLine.wake(); err != nil {
			return err
		}
	}
	if err := t.writeDetours(add); err != nil {
		return err
	}
	defer t.text.forget()
	if err = t.planText(add); err != nil {
		return err
	}
	t.patched(add)
	if c.Next != nil && len(add) > 0 { // what is asked of the threads between the two
		if t.before, err = t.p.Statuses(); err != nil {
			return err
		}
		t.askEarly(t.askRseq)
		defer t.askEarly(nil)
	}
	defer func() { t.plans, t.faults.planned = nil, nil }()
	for range tries.All() {
		for c.Made && c.Next != nil {
			c = c.Next
		}
		if c.Made { // what Then does is blocked
			break
		}
		t.plan(c)
		if err = t.touchTables(add); err != nil {
			return err
		}
		if err = t.commitOnce(c); !patch.Again(c, err) {
			break
		}
	}
	return err
}

// writeDetours puts the code of new sites where no thread runs yet.
func (t *Target) writeDetours(add []*target.Site) error {
	sorted := append([]*target.Site(nil), add...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Detour.Addr < sorted[j].Detour.Addr })
	size := 0
	for _, s := range sorted {
		size += len(s.Detour.Code) + patch.Align
	}
	run := make([]byte, 0, size)
	var at uint64
	flush := func() error {
		if len(run) == 0 {
			return nil
		}
		err := t.p.WriteMem(at, run)
		run = run[:0]
		return err
	}
	for _, s := range sorted {
		gap := s.Detour.Addr - (at + uint64(len(run)))
		if len(run) == 0 || gap > patch.Align*4 {
			if err := flush(); err != nil {
				return err
			}
			at, gap = s.Detour.Addr, 0
		}
		for range gap {
			run = append(run, native.Breakpoint)
		}
		run = append(run, s.Detour.Code...)
	}
	return flush()
}

// commitOnce tries the change, and those after it, in a stop.
func (t *Target) commitOnce(c *target.Change) error {
	t.gone = nil
	err := t.stopped(func(s *ptrace.Stopped) error {
		for n := c; n != nil; n = n.Next {
			err := t.commitStopped(s, n)
			if err != nil && c.Made && (n.Next != nil || !n.Made) {
				err = errors.Join(err, t.releaseRemoved(s)) // the last one, which was not made, would have done it
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if t.control != nil { // else all is out
		err = errors.Join(err, t.control.clear(t.gone))
	}
	t.gone = nil
	return err
}

// commitStopped makes one change. Precondition: the world is stopped.
func (t *Target) commitStopped(s *ptrace.Stopped, whole *target.Change) error {
	if err := t.control.ours(); err != nil {
		return err
	}
	look, err := t.look(s, whole)
	if err != nil {
		return err
	}
	if err := s.Do(func() error { return t.makePrivate(s) }); err != nil { // by the thread that goes first
		return err
	}
	c := whole.Open()
	if err := t.apply(s, c, look, t.plannedEntries(whole, c.Add)); err != nil {
		for _, a := range c.Add {
			t.faults.drop(a) // its room is the next one's, and would be in the table twice
		}
		return errors.Join(err, t.writeFaults())
	}
	whole.Made = true
	t.gone = append(t.gone, c.Remove...)
	t.retire(c.Remove)
	if whole.Next == nil { // once for all changes of the stop
		if err := t.releaseRemoved(s); err != nil {
			return err
		}
	}
	if c.Then == nil {
		return nil
	}
	return c.Then()
}

// releaseRemoved gives back what sites that were removed do not need any more. Precondition: the world is stopped.
func (t *Target) releaseRemoved(s *ptrace.Stopped) error {
	t.reclaim(s)
	t.sweep(s)
	return t.writeFaults()
}

// apply writes the tables, with the entries of new sites, and the bytes of a change, or puts back what it has written.
func (t *Target) apply(s *ptrace.Stopped, c *target.Change, look *look, entries []byte) error {
	var done []patch.Write
	var err error
	remove := c.Remove
	if look.apart {
		if done, err = t.patch(nil, remove); err != nil {
			return errors.Join(err, t.undo(done, c))
		}
		remove = nil
	}
	if err := t.faults.add(s, c); err != nil {
		return errors.Join(err, t.undo(done, c))
	}
	if err := t.control.add(c.Add, entries); err != nil {
		return errors.Join(err, t.undo(done, c))
	}
	if err = look.move(); err == nil {
		var more []patch.Write
		if more, err = t.patch(c.Add, remove); err == nil {
			return nil
		}
		err = errors.Join(err, t.unwrite(more))
	}
	// The threads are moved back while the bytes stand that they were moved in (look.apart).
	return errors.Join(err, look.back(), t.undo(done, c))
}

// entriesOf makes the sites' entries in the control block's tables.
func entriesOf(sites []*target.Site) []byte {
	b := make([]byte, 0, len(sites)*siteSize)
	for _, a := range sites {
		r := siteRecord{addr: a.Addr, orig: a.Orig, patch: a.Patch, detour: a.Detour.Addr, points: a.Points, reason: a.Reason}
		b = r.append(b)
	}
	return b
}

// plan is what a change means, worked out before the stop: for thousands of sites that takes a while.
type plan struct {
	zombie  []*target.Site
	ways    *ways
	entries []byte // of its new sites
}

// plannedEntries is entriesOf for the sites of a change that are not blocked; where none is they are the plan's.
func (t *Target) plannedEntries(c *target.Change, open []*target.Site) []byte {
	if p := t.plans[c]; p != nil && !c.Blocked() {
		return p.entries
	}
	return entriesOf(open)
}

// plan makes the plans of a change and of those after it, with no group left out.
func (t *Target) plan(c *target.Change) {
	t.plans = map[*target.Change]*plan{}
	t.faults.planned = nil
	var add []*target.Site
	for ; c != nil; c = c.Next {
		c.Begin()
		add = append(add, c.Open().Add...)
		w := t.waysOf(c)
		t.plans[c] = &plan{zombie: slices.Clone(t.zombie), ways: w, entries: entriesOf(w.add)}
		t.faults.plan(add)
	}
}

// Note tells in the process's memory of probes that wait to be armed: entries of patches without
// a byte, which whoever restores the process passes over.
func (t *Target) Note(waiting []*target.Site) error {
	if t.control == nil {
		return nil
	}
	all, fresh, over := target.Notes(t.notes, waiting)
	var entries []byte
	for _, w := range fresh {
		r := siteRecord{addr: w.Addr, points: w.Points, reason: w.Reason, name: w.Name}
		entries = r.append(entries)
	}
	t.notes = all
	return errors.Join(t.control.clear(over), t.control.add(fresh, entries))
}

// Forget drops sites whose code was unmapped: nothing is left to restore.
func (t *Target) Forget(sites []*target.Site) error {
	t.retire(sites)
	return t.control.clear(sites)
}

// undo puts back the pages that a failed change has written, and clears its entries.
func (t *Target) undo(done []patch.Write, c *target.Change) error {
	return errors.Join(t.unwrite(done), t.control.clear(c.Add))
}

// unwrite puts back what was written, the last first.
func (t *Target) unwrite(done []patch.Write) error {
	var errs []error
	for _, w := range slices.Backward(done) {
		errs = append(errs, t.p.WriteMem(w.Addr, w.Old))
	}
	return errors.Join(errs...)
}

// patch writes sites that come and that go, page by page, and gives what it wrote. Nothing is written where a site that comes is
// to stand over other bytes than the program's own.
func (t *Target) patch(add, remove []*target.Site) (done []patch.Write, err error) {
	runs, err := patch.Runs(add, remove, procfs.PageSize)
	if err != nil {
		return nil, err
	}
	for i := range runs {
		r := &runs[i]
		if err := t.p.ReadMem(r.Addr, r.Have); err != nil {
			return nil, err
		}
		if site := r.Resolve(patch.Breakpoint); site != nil {
			if t.replaced(site.Addr) {
				return nil, fmt.Errorf("0x%x: another object is mapped there: %w", site.Addr, ErrFault)
			}
			return nil, r.Foreign(site, ErrForeign)
		}
		r.Left(t.leftForeign)
	}
	for i := range runs {
		r := &runs[i]
		if !r.Changed() {
			continue
		}
		if err := t.p.WriteMem(r.Addr, r.New); err != nil {
			return done, err
		}
		done = append(done, patch.Write{Addr: r.Addr, Old: r.Have, New: r.New})
	}
	return done, nil
}

// leftForeign notes a site that was not taken out: what somebody else wrote over our patch is not ours to change.
func (t *Target) leftForeign(s *target.Site) {
	if !slices.Contains(t.foreign, s.Addr) {
		t.foreign = append(t.foreign, s.Addr)
	}
}

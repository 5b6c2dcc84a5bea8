package process

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"sort"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/codealloc"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// How a change is made. All threads are stopped.
//
//	1. A thread may stand at an instruction inside the bytes that a jump will take:
//	   its instruction pointer is moved to that instruction's copy. One whose saved
//	   context (a signal frame on a stack) may hold such an address blocks the change, or,
//	   if the bytes are those of a group, that group: it is left out, as if it had not been
//	   asked for, and what follows is done for the rest. A thread in a detour that goes is moved
//	   to the same place in the new one, or in the program, where that is exact.
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

// Bounds of the attempts at a change that a thread blocks.
const (
	commitTries = 60
	commitWait  = 2 * time.Millisecond
)

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
	if err := t.spareFor(add); err != nil {
		return err
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
	for i := range commitTries {
		if i > 0 {
			time.Sleep(commitWait * time.Duration(i))
		}
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
		if err = t.commitOnce(c); c.Once && !c.Made || !errors.Is(err, ErrBlocked) {
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
		size += len(s.Detour.Code) + codealloc.Align
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
		if len(run) == 0 || gap > codealloc.Align*4 {
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
				err = errors.Join(err, t.settleSites(s)) // the last one, which was not made, would have done it
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
		if err := t.settleSites(s); err != nil {
			return err
		}
	}
	if c.Then == nil {
		return nil
	}
	return c.Then()
}

// settleSites gives back what sites that were removed do not need any more. Precondition: the world is stopped.
func (t *Target) settleSites(s *ptrace.Stopped) error {
	t.reclaim(s)
	t.sweep(s)
	return t.writeFaults()
}

// apply writes the tables, with the entries of new sites, and the bytes of a change, or puts back what it has written.
func (t *Target) apply(s *ptrace.Stopped, c *target.Change, look *look, entries []byte) error {
	var done []pageWrite
	var err error
	rest := c
	if look.apart {
		if done, err = t.patch(&target.Change{Remove: c.Remove}); err != nil {
			return errors.Join(err, t.undo(done, c))
		}
		rest = &target.Change{Add: c.Add}
	}
	if err := t.faults.add(s, c); err != nil {
		return errors.Join(err, t.undo(done, c))
	}
	if err := t.control.add(c.Add, entries); err != nil {
		return errors.Join(err, t.undo(done, c))
	}
	if err = look.move(); err == nil {
		var more []pageWrite
		if more, err = t.patch(rest); err == nil {
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
func (t *Target) undo(done []pageWrite, c *target.Change) error {
	return errors.Join(t.unwrite(done), t.control.clear(c.Add))
}

// unwrite puts back what was written, the last first.
func (t *Target) unwrite(done []pageWrite) error {
	var errs []error
	for _, w := range slices.Backward(done) {
		errs = append(errs, t.p.WriteMem(w.addr, w.old))
	}
	return errors.Join(errs...)
}

// pageWrite is one write, within a page.
type pageWrite struct {
	addr     uint64
	old, new []byte
}

// edit is a run of bytes to be replaced.
type edit struct {
	addr     uint64
	old, new []byte
	must     bool // what stands there must be old: a new site's
	site     *target.Site
}

// patch writes the sites of a change and gives what it wrote.
func (t *Target) patch(c *target.Change) (done []pageWrite, err error) {
	writes, err := t.pages(c)
	if err != nil {
		return nil, err
	}
	for i, w := range writes {
		if err := t.p.WriteMem(w.addr, w.new); err != nil {
			return writes[:i], err
		}
	}
	return writes, nil
}

// pages gathers the edits of a change page by page and checks that what stands there
// is what is expected.
func (t *Target) pages(c *target.Change) ([]pageWrite, error) {
	edits := make([]edit, 0, len(c.Remove)+len(c.Add))
	for _, r := range c.Remove {
		edits = append(edits, edit{addr: r.Addr, old: r.Patch, new: r.Orig, site: r})
	}
	for _, a := range c.Add {
		edits = append(edits, edit{addr: a.Addr, old: a.Orig, new: a.Patch, must: true, site: a})
	}
	slices.SortStableFunc(edits, func(a, b edit) int { return cmp.Compare(a.addr/procfs.PageSize, b.addr/procfs.PageSize) })
	var out []pageWrite
	for i := 0; i < len(edits); {
		n := i
		for n < len(edits) && edits[n].addr/procfs.PageSize == edits[i].addr/procfs.PageSize {
			n++
		}
		w, err := t.page(edits[i:n])
		if err != nil {
			return nil, err
		}
		out = append(out, w)
		i = n
	}
	return out, nil
}

// page makes the write of one page's edits, removals first: what new sites replace must be what
// the program's file has once these are made.
func (t *Target) page(edits []edit) (pageWrite, error) {
	lo, hi := edits[0].addr, edits[0].addr
	for _, e := range edits {
		lo, hi = min(lo, e.addr), max(hi, e.addr+uint64(len(e.new)))
	}
	w := pageWrite{addr: lo, old: make([]byte, hi-lo)}
	if err := t.p.ReadMem(lo, w.old); err != nil {
		return w, err
	}
	w.new = bytes.Clone(w.old)
	for _, e := range edits {
		at := w.new[e.addr-lo:][:len(e.new)]
		switch same := bytes.Equal(at, e.old); {
		case !same && e.must:
			return w, foreign(e.addr, at, e.old)
		case !same:
			want, ok := e.site.Without(at)
			if !ok {
				if !slices.Contains(t.foreign, e.addr) {
					t.foreign = append(t.foreign, e.addr)
				}
				continue // what somebody else wrote over our patch is not ours to change
			}
			copy(at, want)
			continue
		}
		copy(at, e.new)
	}
	return w, nil
}

func foreign(addr uint64, have, want []byte) error {
	return errno.Errorf(unix.EBUSY, "0x%x holds % x, not % x: %w", addr, have, want, ErrForeign)
}

package engine

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// A kernel uprobe that somebody places on a file falls into the patches of processes that have the page mapped
// from that file: the kernel writes an int3 and tells nobody. So the bytes of such patches are looked at, some of
// them each time, and a probe that somebody has written into is taken out. That does not save a program that
// runs through the place before the look. The same look finds patches that are gone: see anew.go.

// byAddr sorts sites by their addresses.
func byAddr(ws []watched) {
	sort.Slice(ws, func(i, j int) bool { return ws[i].s.Addr < ws[j].s.Addr })
}

// watchEach bounds the sites of one look.
const watchEach = 256

// listWatched lists what is to be looked at, if that has changed: listing takes a tenth of the time at most.
func (c *Core) listWatched(t target.Exposed) {
	w := &c.watching
	if w.next = 0; !w.stale || time.Now().Before(w.until) {
		return
	}
	start := time.Now()
	w.sites, w.stale, w.exposed = w.sites[:0], false, false
	for _, f := range c.fns {
		for _, s := range f.sites {
			if !ofStubs(s) {
				w.sites = append(w.sites, watched{f, s})
				w.exposed = w.exposed || t.Reachable(s)
			}
		}
	}
	byAddr(w.sites)
	w.until = time.Now().Add(9 * time.Since(start))
}

// lookForWritten looks at the bytes of some of the patches. It takes out the probes of functions in whose patches
// there are others than ours and the program's, and arms anew those whose patches are gone. The error says which were
// taken out, once. Precondition: mu is held.
func (c *Core) lookForWritten() error {
	t := c.can.Exposed
	if t == nil || c.yielded || c.closing {
		return nil
	}
	w := &c.watching
	if !w.exposed && time.Since(w.last) < keepEvery {
		return nil
	}
	w.last = time.Now()
	err := c.lookAtSome(t)
	if err == nil || err.Error() == w.told {
		return nil
	}
	w.told = err.Error()
	return err
}

// lookAtSome is lookForWritten, whoever was told before.
func (c *Core) lookAtSome(t target.Exposed) error {
	w := &c.watching
	if w.next >= len(w.sites) {
		c.listWatched(t)
	}
	some := w.sites[w.next:min(w.next+watchEach, len(w.sites))]
	w.next += len(some)
	bad, lost, err := c.written(t, some)
	if err != nil || len(bad)+len(lost) == 0 {
		return err
	}
	c.remapped() // an object that was unmapped meanwhile has no patches any more
	again := slices.Concat(bad, lost)
	byAddr(again)
	if bad, lost, err = c.written(t, again); err != nil {
		return err
	}
	anew, spent := c.lostOf(lost)
	fns, err := c.endWritten(append(bad, spent...))
	return errors.Join(c.whyWritten(fns), err, c.rearm(anew))
}

// written picks those of the sites that hold other bytes than their patches: lost hold the program's own, bad those of
// somebody else, who can write there without asking.
func (c *Core) written(t target.Exposed, some []watched) (bad, lost []watched, err error) {
	sites := c.watching.asked[:0]
	for _, w := range some {
		if slices.Contains(w.f.sites, w.s) {
			sites = append(sites, w.s)
		}
	}
	c.watching.asked = sites
	if len(sites) == 0 {
		return nil, nil, nil
	}
	others, err := t.Written(sites)
	for _, s := range others {
		i := slices.IndexFunc(some, func(w watched) bool { return w.s == s })
		switch w := some[i]; {
		case unpatched(c.t, s):
			lost = append(lost, w)
		case t.Reachable(s):
			bad = append(bad, w)
		}
	}
	return bad, lost, err
}

// markWritten ends the work of all events of a function: the code of each may come to stand elsewhere in it when
// another's goes.
func (c *Core) markWritten(w watched) {
	have := make([]byte, len(w.s.Patch))
	if err := c.t.Read(w.s.Addr, have); err != nil {
		return
	}
	what := "a breakpoint that is not ours (a kernel uprobe, a debugger) stands in its patch"
	if _, ok := patch.Without(w.s, have, patch.Breakpoint); !ok {
		what = "somebody else has patched it"
	} else if unpatched(c.t, w.s) {
		what = "somebody puts the program's own bytes back again and again"
	}
	why := errno.Errorf(unix.EBUSY, "taken out: %s: 0x%x holds % x, not % x", what, w.s.Addr, have, w.s.Patch)
	for _, e := range w.f.events {
		if e.withdrawn == nil {
			e.withdrawn = why
			e.updateOptimized()
		}
	}
}

// whyWritten tells of functions' events that were taken out, and what cannot be relied on without the
// engine's own.
func (c *Core) whyWritten(fns []*function) error {
	var errs []error
	for _, f := range fns {
		for _, e := range f.events {
			switch {
			case e.withdrawn == nil:
			case !e.internalProbe && e.h == nil:
				errs = append(errs, fmt.Errorf("event %s, on %s: %w", e.Name, f.Name, e.withdrawn))
			case !e.internalProbe:
				errs = append(errs, fmt.Errorf("%s: %w", e.h.name(), e.withdrawn))
			default:
				errs = append(errs, fmt.Errorf("the engine's own probe on %s, for %s: %w", f.Name, ownPurpose(e.work.Role), e.withdrawn))
			}
		}
	}
	return errors.Join(errs...)
}

// ownPurpose is what an engine's own probe is for, by its role.
func ownPurpose(r arch.Role) string {
	switch r {
	case arch.RoleWait:
		return "objects that are loaded, or a Go program's start: they are seen a little later now"
	case arch.RoleShare:
		return "threads that come to share a block: records go another way now"
	case arch.RoleQuiet:
		return "seccomp filters: one that comes this way is not seen any more"
	case arch.RoleUnwind:
		return "exceptions: return probes by trampoline are taken out"
	case arch.RoleCall:
		return "what a handler must not do: a panic in one ends the program now"
	}
	return ""
}

// endWritten takes the code out of functions whose patches somebody has written into, and gives the functions.
// What can not be done now the next look finds again.
func (c *Core) endWritten(bad []watched) (fns []*function, err error) {
	var evs []*Event
	var stubs, shared bool
	for _, b := range bad {
		if slices.Contains(fns, b.f) {
			continue
		}
		fns = append(fns, b.f)
		for _, e := range b.f.events {
			evs = append(evs, e)
			stubs = stubs || e.work.Role == arch.RoleUnwind || e == c.loaderProbe
			shared = shared || e.work.Role == arch.RoleShare
		}
	}
	if t := c.can.ReturnReplacer; t != nil && stubs { // before what they rely on
		if err := c.endAllStubs(t); err != nil {
			return nil, err
		}
	}
	for _, b := range bad {
		c.markWritten(b)
	}
	if t := c.can.Sharer; t != nil && shared {
		err = t.SetShared()
	}
	return fns, errors.Join(err, c.update(fns, stopping{then: c.reclaimer.InStop(callsOf(evs))}))
}

// endAllStubs has no event replace return addresses any more, and puts them back: without the probes on the
// loader and the unwinders these may not stay replaced.
func (c *Core) endAllStubs(t target.ReturnReplacer) error {
	var evs []*Event
	for _, e := range c.events {
		if byStub(e) && !e.gone && e.withdrawn == nil && e.fn != nil {
			e.withdrawn = errno.Errorf(unix.EBUSY, "return probes by trampoline have been taken out: somebody else has written into the engine's own probes on the loader or the unwinder")
			evs = append(evs, e)
		}
	}
	if len(evs) == 0 && !c.stubbed.left {
		return nil
	}
	c.stubbed.left = true
	return c.endStubs(t, evs)
}

// watches says whether there may be something to look at.
func (c *Core) watches() bool {
	return c.can.Exposed != nil && (c.watching.stale || len(c.watching.sites) > 0)
}

// keepWatching is lookForWritten for programs that do not call Sync; the next one has the error.
func (c *Core) keepWatching() {
	if err := c.lookForWritten(); err != nil && !errors.Is(err, target.ErrGone) {
		c.stubbed.syncErr = errors.Join(c.stubbed.syncErr, err)
	}
}

package engine

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/target"
)

// remapped says whether the target has objects come or gone since that was last looked at, and follows as far as it must now: the next Sync does the
// rest.
func (c *Core) remapped() bool {
	changed, err := c.t.Refresh()
	if err != nil || !changed {
		return false
	}
	c.stale = true
	c.space.Store(c.t.Space())
	return c.dropGone() == nil
}

// moved says whether err may come of an object that was away: some have come or gone, or memory was not
// mapped, which may be so again. Precondition: err is not nil.
func (c *Core) moved(err error) bool { return c.remapped() || errors.Is(err, unix.EFAULT) }

// dropGone forgets the functions whose code is not mapped any more.
func (c *Core) dropGone() error {
	var errs []error
	c.dropWatches()
	for start, f := range c.fns {
		if m := c.t.Space().ModuleAt(start); m != nil && m.Image == f.Image {
			continue
		}
		text := slices.DeleteFunc(slices.Clone(f.sites), ofStubs)
		c.stubbed.gone = append(c.stubbed.gone, slices.DeleteFunc(f.sites, func(s *target.Site) bool { return !ofStubs(s) })...)
		errs = append(errs, c.t.Forget(text))
		f.lapse()
		for _, e := range f.events {
			e.release()
			e.gone, e.fn = true, nil
			c.unmapped = true
			e.ended = e.ended || c.stubbed.walkers[start] == e
		}
		delete(c.stubbed.walkers, start)
		f.events, f.sites = nil, nil
		delete(c.fns, start)
		c.queue.Remove(f)
	}
	return errors.Join(append(errs, c.dropStubs())...)
}

// dropStubs has the stubs of functions that are gone lead to their own code again: their memory is not the object's, and a
// call that went on elsewhere by a jump may return through one yet.
func (c *Core) dropStubs() error {
	if len(c.stubbed.gone) == 0 {
		return nil
	}
	err := c.t.Commit(&target.Change{Remove: c.stubbed.gone})
	if err == nil {
		c.stubbed.gone = nil
	}
	return err
}

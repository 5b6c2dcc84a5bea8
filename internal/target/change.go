package target

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// Change is a set of sites to be put in and taken out in one stop.
type Change struct {
	// Add and Remove are made as a whole, or nothing of the change is.
	Add    []*Site
	Remove []*Site
	// Once: they are not tried again if a thread blocks them.
	Once bool
	// Groups are made each for itself: one that a thread blocks is left out.
	Groups []*Group
	// Then, if not nil, is called once the change is made, while the world is still
	// stopped.
	Then func() error
	// Next, if not nil, is made in the same stop, once this change is made and Then has succeeded. A tracer
	// that dies between the two leaves the first. What keeps Next from being made does not undo the first.
	// For targets that are a Sequencer.
	Next *Change
	// Made is set by Commit: the change is made, whatever has become of Then and of Next.
	Made bool
}

// All gives the sites that a change and those after it put in.
func (c *Change) All() (add []*Site) {
	for ; c != nil; c = c.Next {
		add = append(add, c.Open().Add...)
	}
	return add
}

// Group is what belongs together in a change: the sites of one function.
type Group struct {
	Add    []*Site
	Remove []*Site
	// Blocked is set by Commit. Not nil: the group was left out, and everything of it is
	// as it was: a thread is in the way (ErrBlocked), or would not live through a breakpoint
	// now.
	Blocked error
}

// Blocks tells which sites of a change a thread blocks, and how.
type Blocks map[*Site]error

// Block notes the first reason against a site.
func (b Blocks) Block(s *Site, why error) {
	if b[s] == nil {
		b[s] = why
	}
}

// Begin forgets what an earlier Commit has left out.
func (c *Change) Begin() {
	for _, g := range c.Groups {
		g.Blocked = nil
	}
}

// Blocked says whether a group was left out.
func (c *Change) Blocked() bool {
	return slices.ContainsFunc(c.Groups, func(g *Group) bool { return g.Blocked != nil })
}

// Open is the change without its blocked groups, as one whole.
func (c *Change) Open() *Change {
	o := &Change{Then: c.Then, Once: c.Once}
	add, remove := len(c.Add), len(c.Remove)
	for _, g := range c.Groups {
		add, remove = add+len(g.Add), remove+len(g.Remove)
	}
	o.Add, o.Remove = append(make([]*Site, 0, add), c.Add...), append(make([]*Site, 0, remove), c.Remove...)
	for _, g := range c.Groups {
		if g.Blocked == nil {
			o.Add, o.Remove = append(o.Add, g.Add...), append(o.Remove, g.Remove...)
		}
	}
	return o
}

// LeaveOut blocks the groups that have one of the sites. An error is that of a site which
// belongs to no group: then the change can not be made now.
func (c *Change) LeaveOut(b Blocks) error {
	if len(b) == 0 {
		return nil
	}
	for _, g := range c.Groups {
		for _, sites := range [][]*Site{g.Add, g.Remove} {
			for _, s := range sites {
				if g.Blocked == nil {
					g.Blocked = b[s]
				}
			}
		}
	}
	for _, sites := range [][]*Site{c.Add, c.Remove} {
		for _, s := range sites {
			if err := b[s]; err != nil {
				return err
			}
		}
	}
	return nil
}

// ErrBlocked says that a thread stands, or may return to, where a change would harm it.
var ErrBlocked = errors.New("a thread is in the code that would change")

// BusyError tells which thread blocks a change. It answers errors.Is for ErrBlocked and EBUSY.
type BusyError struct {
	TID  int    // 0: a goroutine that does not run, or a task of a guest's kernel
	Addr uint64 // where it goes on
	Why  string
}

// Error tells the thread and the place.
func (e *BusyError) Error() string {
	who := "a task"
	if e.TID > 0 {
		who = fmt.Sprintf("thread %d", e.TID)
	}
	return fmt.Sprintf("%s is in the way at 0x%x: %s", who, e.Addr, e.Why)
}

// Is recognises ErrBlocked and EBUSY.
func (e *BusyError) Is(err error) bool { return err == ErrBlocked || err == error(syscall.EBUSY) }

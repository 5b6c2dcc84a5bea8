package trace

import (
	"errors"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// countGroup is the group of the events that Count makes. No definition can name it.
const countGroup = "#count"

// Counting is an event whose hits are counted in a histogram, beside what its instance does with them.
type Counting struct {
	Events []*kprobes.Event // a copy of each of its probes
	in     *Instance
	gone   bool
}

// Count puts the probes of an event into the target once more, and has the code at their hits count them, until Stop: whether the event is enabled or not. The
// instance records as before. What counts are hits that pass the event's filter. prepare changes the copies of the definitions before they are added,
// and sets their Hist; Core.Histogram of the Events gives what is counted.
//
// Errors: ENOENT if there is no such event or its object is not loaded, EINVAL if it is no probe, and those of prepare and Core.Add.
func (in *Instance) Count(group, name string, prepare func(*event.Def) error) (*Counting, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.life.Err() != nil {
		return nil, errClosed
	}
	es, err := in.find(group, name)
	if err != nil {
		return nil, err
	}
	if group == "" || name == "" || len(es) != 1 || es[0].synthetic != nil {
		return nil, errno.Errorf(unix.EINVAL, "%s/%s: hits are counted of one event, which is a probe", group, name)
	}
	if err := noCounters(es[0].probes); err != nil {
		return nil, err
	}
	var defs []*event.Def
	for _, p := range es[0].probes {
		d := *p.aimed
		in.copies++
		d.Group, d.Copy, d.User, d.Filter = countGroup, in.copies, in.shared.User(), in.state(es[0]).filter
		if err := prepare(&d); err != nil {
			return nil, err
		}
		defs = append(defs, &d)
	}
	c := &Counting{in: in}
	c.Events, err = in.core.Add(defs, nil)
	return c, err
}

// Stop takes the copies out of the target. What they have counted can be read still. It does nothing when it is called again.
func (c *Counting) Stop() error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if c.gone {
		return nil
	}
	err := c.in.core.Remove(c.Events)
	if errors.Is(err, target.ErrGone) {
		err = nil
	}
	c.gone = err == nil
	return err
}

package trace

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
)

// Filter gives what the file filter of an event holds: the filter, "none", or what was wrong with the last one. That of a group holds
// "none" or its last filter too, as in the kernel.
func (in *Instance) Filter(group, name string) (string, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	es, err := in.find(group, name)
	switch {
	case err != nil:
		return "", err
	case name == "":
		return "### global filter ###\n# Use this to set filters for multiple events.\n# Only events with the given fields will be affected.\n# If no events are modified, an error message will be displayed here\n", nil
	}
	if shown := in.state(es[0]).shown; shown != "" {
		return shown + "\n", nil
	}
	return "none\n", nil
}

// filterFile is the length from which on the kernel takes no filter: a page. The filter before it stays (event_filter_write, Linux 6.18).
const filterFile = 4096

// SetFilter gives an event, or without a name all events of a group, a filter: hits that do not pass it are counted, and not recorded.
// "0" takes the filter away. An event that a filter does not fit has none then, and its file shows the *event.FilterError, as in the
// kernel (apply_event_filter and apply_subsystem_event_filter, Linux 6.18): for a group that is no error. An event that is
// enabled is armed anew; between is a moment in which its hits are not seen.
func (in *Instance) SetFilter(group, name, text string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(text) >= filterFile {
		return errno.Errorf(unix.EINVAL, "a filter of %d bytes: at most %d are taken", len(text), filterFile-1)
	}
	text = strings.TrimSpace(text)
	es, err := in.find(group, name)
	if err != nil {
		return err
	}
	for _, e := range es {
		err = errors.Join(err, in.setFilter(e, text, name == ""))
	}
	return err
}

// setFilter gives one event a filter, which may be meant for its whole group.
func (in *Instance) setFilter(e *entry, text string, group bool) error {
	if text == "0" {
		return in.filterAnew(e, "", "")
	}
	err := in.fits(e, text)
	var bad *event.FilterError
	switch {
	case err == nil:
		return in.filterAnew(e, text, text)
	case !errors.As(err, &bad):
		return err
	case group:
		bad, err = &event.FilterError{Code: event.FilterBadGroup, Filter: text}, nil
	}
	in.note(bad)
	return errors.Join(in.filterAnew(e, "", bad.Detail()), err)
}

// fits checks a filter of an event.
func (in *Instance) fits(e *entry, text string) error {
	if text == "" {
		return &event.FilterError{}
	}
	if e.synthetic != nil {
		in.pollMu.Lock()
		defer in.pollMu.Unlock()
		return in.set.CheckFilter(e.group, e.name, text)
	}
	for _, p := range e.probes {
		d := *p.aimed
		d.Filter = text
		if err := in.core.Check(&d, lateToo); err != nil {
			return err
		}
	}
	return nil
}

// filterAnew has an event record what passes a filter.
func (in *Instance) filterAnew(e *entry, text, shown string) error {
	s := in.state(e)
	if text == s.filter {
		s.shown = shown
		return nil
	}
	before, shownBefore := s.filter, s.shown
	anew := s.armed && !s.all
	if anew {
		if err := in.disarm(e.probes); err != nil {
			return err
		}
	}
	err := in.passing(e, text)
	s.shown = shown
	if anew && err == nil {
		err = in.arm(e.probes)
	}
	if err == nil {
		return nil
	}
	err = errors.Join(err, in.passing(e, before))
	s.shown = shownBefore
	if anew {
		return in.back(e, err)
	}
	return err
}

// passing says what hits of an event must pass from now on.
func (in *Instance) passing(e *entry, filter string) error {
	in.drain()
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	s := in.state(e)
	if s.live {
		if err := in.set.Filter(e.group, e.name, filter); err != nil {
			return err
		}
	}
	s.filter = filter
	return nil
}

package engine

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
)

// maxSkips bounds the functions that the error of a pattern names.
const maxSkips = 3

// skip leaves a function of a pattern out, and tells so.
func (c *Core) skip(d *event.Def, name string, why error, o *AddOptions) {
	s := c.skipped[d]
	if s == nil {
		if s = new(skips); c.skipped == nil {
			c.skipped = map[*event.Def]*skips{}
		}
		c.skipped[d] = s
	}
	if s.n++; len(s.why) < maxSkips {
		s.why = append(s.why, name+": "+reason(why))
	}
	o.Skip(name, why)
}

// reason is why a function was left out, without the words about the definition.
func reason(why error) string {
	var e *event.Error
	if errors.As(why, &e) && e.Err != nil {
		why = e.Err
	}
	text, _, _ := strings.Cut(fmt.Sprint(why), "\n")
	return printable(text)
}

// allSkipped refuses a pattern of which nothing is left, and says why.
func (c *Core) allSkipped(d *event.Def) error {
	s := c.skipped[d]
	text := strings.Join(s.why, "; ")
	if more := s.n - len(s.why); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return d.Refuse(event.FailRegProbe, d.Place.Pos, "",
		errno.Errorf(unix.EINVAL, "none of the %d functions that match %q can be probed: %s", s.n, d.Place.Symbol, text))
}

// noneLeft finds a pattern of which no event is left.
func (c *Core) noneLeft(defs []*event.Def, evs []*Event) error {
	left := map[*event.Def]bool{}
	for _, e := range evs {
		left[e.Given] = true
	}
	for _, d := range defs {
		if c.skipped[d] != nil && !left[d] {
			return c.allSkipped(d)
		}
	}
	return nil
}

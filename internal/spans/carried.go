package spans

import "kprobes.dev/kprobes/internal/otlp"

// Carried is the span that a context carries which a call has as an argument: one that the program has made by itself, or one of another
// program.
type Carried struct {
	Trace   otlp.TraceID
	Span    otlp.SpanID
	Sampled bool // its trace is kept
	Remote  bool // it is of another program
	// Unread: it is not known whether there is one. Nothing else is set then.
	Unread bool
}

// none says whether nothing is known of a span; what could not be read is counted.
func (c *Carried) none(s *Stats) bool {
	if c != nil && c.Unread {
		s.Unread++
	}
	return c == nil || c.Unread
}

// carries says whether a place in a trace is in the span, and in none that was carried since.
func (w *within) carries(c *Carried) bool {
	return w.carried == c.Span && w.trace == c.Trace && w.known
}

// place is that of the span itself.
func (c *Carried) place() within {
	return within{trace: c.Trace, span: c.Span, known: true, sampled: c.Sampled, carried: c.Span, outside: true, remote: c.Remote}
}

// maxOutward bounds the calls that are looked at for one with the same context.
const maxOutward = 1 << 10

// carrying is the place of a call whose context carries a span: in the innermost call that it is in, or was created in, with the same span.
// If there is none it is in that span.
func (f *flow) carrying(c *Carried) within {
	n := len(f.calls)
	for i := n - 1; i >= max(0, n-maxOutward); i-- {
		if in := &f.calls[i].in; in.carries(c) {
			return *in
		}
	}
	if f.in.carries(c) {
		return f.in
	}
	return c.place()
}

// carryingOf is carrying of the places that enclose a call, the innermost last.
func carryingOf(outer []within, c *Carried) within {
	for i := len(outer) - 1; i >= max(0, len(outer)-maxOutward); i-- {
		if outer[i].carries(c) {
			return outer[i]
		}
	}
	return c.place()
}

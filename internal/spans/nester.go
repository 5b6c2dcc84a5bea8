package spans

import (
	"cmp"
	"slices"

	"kprobes.dev/kprobes/internal/otlp"
)

// Nester makes spans of returns that say when their calls were entered. It is told of them in the order of their times. Its methods are
// called by one goroutine at a time.
type Nester struct {
	o     Options
	flows map[Flow]*nest
	queue []*held // by the times of their returns; those that others enclose by now are passed over
	held  int     // calls that are not sent
	roots uint64
	stats Stats
}

// nest is what a Nester knows of a flow.
type nest struct {
	held []*held // calls that nothing is known to enclose, by the times of their returns
	// sent is when the newest call was entered that was sent as the first of its trace.
	sent uint64
}

// held is a call that has returned.
type held struct {
	on       Flow
	entered  uint64 // the clock of the records
	span     *otlp.Span
	inner    []*held
	enclosed bool
	nanos    uint64 // when it returned
	calls    int    // it, and those inside
	remote   *Remote
	carried  *Carried
	left     bool
	kind     otlp.Kind // of the span, if it is in a span of another program
}

// NewNester makes a Nester.
func NewNester(o Options) *Nester { return &Nester{o: o, flows: map[Flow]*nest{}} }

// Call is a hit at a return.
type Call struct {
	Func  *Func
	Flow  Flow
	TID   int
	Nanos uint64 // CLOCK_MONOTONIC, or the clock of the guest
	// Entered is when the function was entered, by a clock that has another value at each entry on a flow; Took are the nanoseconds
	// from then on.
	Entered, Took uint64
	Ended         Ended
	Left          bool // there was no return: a panic has left the call, and Ended has the attributes alone
	// Remote is the span of another program that the call is in, if it is in none of this one; nil: none.
	Remote *Remote
	// Carried is the span that the call's context carries; nil: none.
	Carried *Carried
}

// Leave takes a return.
func (n *Nester) Leave(c *Call) {
	f := n.flows[c.Flow]
	if f == nil {
		f = &nest{}
		n.flows[c.Flow] = f
	}
	if f.sent >= c.Entered {
		n.stats.Split++
		f.sent = 0
	}
	s := newSpan(c.Func, c.Flow, c.TID, nil)
	ended := c.Ended
	if c.Left {
		ended = leftByPanic
		ended.Attrs = c.Ended.Attrs
	}
	ended.end(s)
	s.ID, s.End = newID(), uint64(int64(c.Nanos)+n.o.Unix)
	s.Start = s.End - min(c.Took, c.Nanos)
	h := &held{on: c.Flow, entered: c.Entered, span: s, nanos: c.Nanos, calls: 1, remote: c.Remote, left: c.Left, kind: cmp.Or(c.Func.Kind, otlp.KindServer)}
	if !c.Carried.none(&n.stats) {
		h.carried = c.Carried
	}
	at := len(f.held)
	for ; at > 0 && f.held[at-1].entered > c.Entered; at-- {
		in := f.held[at-1]
		in.enclosed = true
		h.calls += in.calls
	}
	h.inner = slices.Clone(f.held[at:])
	if len(h.inner) > 0 { // a duration is measured to some parts of 100,000 only
		s.Start = min(s.Start, h.inner[0].span.Start)
	}
	clear(f.held[at:])
	f.held = append(f.held[:at], h)
	n.queue = append(n.queue, h)
	n.held++
	n.Now(c.Nanos)
}

// Now sends what has been held long enough at a time of the hits' clock.
func (n *Nester) Now(nanos uint64) {
	for len(n.queue) > 0 {
		h := n.queue[0]
		if !h.enclosed && n.held <= maxOpen && (nanos < h.nanos || nanos-h.nanos < n.o.Wait) {
			return
		}
		n.queue[0] = nil
		n.queue = n.queue[1:]
		if !h.enclosed {
			n.send(h)
		}
	}
	n.queue = nil
}

// send sends a call as the first of its trace, and all that is inside.
func (n *Nester) send(h *held) {
	f := n.flows[h.on]
	f.held = slices.DeleteFunc(f.held, func(o *held) bool { return o == h })
	f.sent = max(f.sent, h.entered)
	if len(f.held) == 0 && len(n.flows) > maxIdle {
		delete(n.flows, h.on)
	}
	n.held -= h.calls
	root := within{sampled: true}
	switch r := h.remote; {
	case h.carried != nil: // it has a trace
	case r != nil:
		root = within{trace: r.Trace, span: r.Span, sampled: r.Sampled, carried: r.Span, remote: true}
	default:
		root.trace, root.sampled = newTrace(), n.o.Sample <= 1 || n.roots%n.o.Sample == 0
		n.roots++
	}
	n.emit(h, []within{root})
}

// maxIdle bounds the flows that are remembered when nothing of them is held: only to count what is split.
const maxIdle = 1 << 16

// emit emits a call behind those inside, as they have ended. outer are the places that it is in, the innermost last.
func (n *Nester) emit(h *held, outer []within) {
	in := outer[len(outer)-1]
	if h.carried != nil {
		in = carryingOf(outer, h.carried)
	}
	own := within{trace: in.trace, span: h.span.ID, known: true, sampled: in.sampled, carried: in.carried}
	for _, i := range h.inner {
		n.emit(i, append(outer, own))
	}
	if !in.sampled {
		n.stats.Unsampled++
		return
	}
	if h.left {
		n.stats.Left++
	}
	h.span.Trace, h.span.Parent, h.span.Outside = in.trace, in.span, in.outside
	if h.span.Remote = in.remote; in.remote {
		h.span.Kind = h.kind
	}
	n.stats.emit(&n.o, h.span)
}

// Close sends all that is held.
func (n *Nester) Close() { n.Now(^uint64(0)) }

// Stats tells what has become of calls until now.
func (n *Nester) Stats() Stats { return n.stats }

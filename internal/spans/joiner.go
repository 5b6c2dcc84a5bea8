package spans

import (
	"cmp"

	"kprobes.dev/kprobes/internal/otlp"
)

// Joiner makes spans of entries and returns, which it is told of in the order of their times. Its methods are called by one goroutine at
// a time.
type Joiner struct {
	o      Options
	flows  map[Flow]*flow
	open   int    // calls in progress
	links  int    // flows of which it is known what they were created in
	roots  uint64 // calls that have begun a trace
	losses uint64 // how often records were lost
	stats  Stats
}

// flow is a goroutine or a thread.
type flow struct {
	calls []call // in progress, the innermost last
	in    within // what it was created in
}

// within is a place in a trace.
type within struct {
	trace otlp.TraceID
	span  otlp.SpanID
	// known: there is such a place; sampled: its trace is kept.
	known, sampled bool
	// carried is the span that the context of a call carries, of the innermost one around the place that has such a context; zero: none.
	carried otlp.SpanID
	// outside: span is none that is made here, but one that was carried; remote: by another program.
	outside, remote bool
}

// call is a call in progress.
type call struct {
	fn     *Func
	depth  uint64
	in     within // its own place
	span   *otlp.Span
	at     uint64 // when it was entered
	losses uint64 // Joiner.losses then
}

// NewJoiner makes a Joiner.
func NewJoiner(o Options) *Joiner { return &Joiner{o: o, flows: map[Flow]*flow{}} }

// Entry is a hit at the entry of a function.
type Entry struct {
	Func  *Func
	Flow  Flow
	TID   int
	Nanos uint64 // CLOCK_MONOTONIC, or the clock of the guest
	// Depth counts up as the stack grows. Two calls in progress on one stack have not the same.
	Depth uint64
	// Attrs gives the arguments; it is asked only for a span that is kept.
	Attrs func() []otlp.Attr
	// Decided: that the trace of the call is kept has been decided already, if it is in none of this program.
	Decided bool
	// Remote gives the span of another program that the call is in; it is asked only for a call that is in none of this one. nil: none.
	Remote func() (Remote, bool)
	// Carried is the span that the call's context carries; nil: none.
	Carried *Carried
}

// Enter takes an entry.
func (j *Joiner) Enter(e *Entry) {
	f := j.flows[e.Flow]
	if f == nil {
		f = &flow{}
		j.flows[e.Flow] = f
	}
	for n := len(f.calls); n > 0 && j.over(&f.calls[n-1], e); n-- {
		j.leave(f, e.Nanos, leftUnseen)
	}
	if j.open >= maxOpen {
		j.stats.Unfollowed++
		j.forget(e.Flow, f)
		return
	}
	outer := f.within()
	if !e.Carried.none(&j.stats) {
		outer = f.carrying(e.Carried)
	}
	c := call{fn: e.Func, depth: e.Depth, at: e.Nanos, losses: j.losses, in: within{trace: outer.trace, span: newID(), known: true, sampled: outer.sampled, carried: outer.carried}}
	remote := outer.remote
	if !outer.known {
		remote = j.begin(e, &c, &outer)
	}
	if c.in.sampled {
		s := newSpan(e.Func, e.Flow, e.TID, e.Attrs())
		s.Trace, s.ID, s.Parent, s.Start = c.in.trace, c.in.span, outer.span, j.unix(e.Nanos)
		s.Outside = outer.outside
		if s.Remote = remote; remote {
			s.Kind = cmp.Or(e.Func.Kind, otlp.KindServer)
		}
		c.span = s
	}
	f.calls = append(f.calls, c)
	j.open++
}

// begin finds the trace of a call that is in none of this program: a new one, or that of another program, whose span is outer then.
func (j *Joiner) begin(e *Entry, c *call, outer *within) (remote bool) {
	if e.Remote != nil {
		if r, ok := e.Remote(); ok {
			c.in.trace, c.in.sampled, c.in.carried, outer.span = r.Trace, r.Sampled, r.Span, r.Span
			return true
		}
	}
	if c.in.trace, c.in.sampled = newTrace(), true; !e.Decided {
		c.in.sampled = j.o.Sample <= 1 || j.roots%j.o.Sample == 0
		j.roots++
	}
	return false
}

// sameStack is the distance within which two depths are of one stack: Go's stacks have 1 GiB at most, and those of threads less.
const sameStack = 1 << 30

// over says whether a call has been left, by what is entered now.
func (j *Joiner) over(c *call, e *Entry) bool {
	if c.depth == e.Depth {
		return !c.fn.Trampoline || c.fn == e.Func
	}
	return j.o.OneStack && c.depth > e.Depth && c.depth-e.Depth < sameStack
}

// within is the place that what the flow does next is in.
func (f *flow) within() within {
	if n := len(f.calls); n > 0 {
		return f.calls[n-1].in
	}
	return f.in
}

// Leave takes a return: of a function, on a flow, at a time, with a depth. how is asked only for a span that is kept.
func (j *Joiner) Leave(fn *Func, on Flow, nanos, depth uint64, how func() Ended) {
	f := j.flows[on]
	i := -1
	if f != nil {
		for i = len(f.calls) - 1; i >= 0 && (f.calls[i].depth != depth || f.calls[i].fn != fn); i-- {
		}
	}
	if i < 0 {
		j.stats.Unjoined++
		return
	}
	for len(f.calls) > i+1 {
		j.leave(f, nanos, leftUnseen)
	}
	c := j.pop(f)
	if c.span == nil {
		j.stats.Unsampled++
	} else {
		h := how()
		j.end(&c, nanos, &h)
	}
	j.forget(on, f)
}

// Why a call has no return.
var (
	leftUnseen  = Ended{Failed: true, Type: "left", Reason: "the call was left without a return: by a panic, an exception or a jump"}
	leftByPanic = Ended{Failed: true, Type: "panic", Reason: "a panic left the call"}
	leftByExit  = Ended{Failed: true, Type: "goexit", Reason: "the goroutine ended in the call"}
)

// leave ends the innermost call, which was left.
func (j *Joiner) leave(f *flow, nanos uint64, why Ended) {
	switch c := j.pop(f); {
	case c.losses != j.losses || c.fn.loses(c.at, &j.o):
		j.stats.Unjoined++ // its return may have been lost
	case c.span == nil:
		j.stats.Unsampled++
	default:
		j.stats.Left++
		j.end(&c, nanos, &why)
	}
}

func (j *Joiner) pop(f *flow) call {
	n := len(f.calls) - 1
	c := f.calls[n]
	f.calls[n] = call{}
	f.calls = f.calls[:n]
	j.open--
	return c
}

// end makes a call a span.
func (j *Joiner) end(c *call, nanos uint64, how *Ended) {
	c.span.End = max(j.unix(nanos), c.span.Start)
	how.end(c.span)
	j.stats.emit(&j.o, c.span)
}

func (j *Joiner) unix(nanos uint64) uint64 { return uint64(int64(nanos) + j.o.Unix) }

// forget forgets a flow of which nothing is known.
func (j *Joiner) forget(on Flow, f *flow) {
	if len(f.calls) == 0 && !f.in.known {
		delete(j.flows, on)
	}
}

// Created takes the creation of a goroutine by a flow.
func (j *Joiner) Created(by Flow, goid uint64) {
	f := j.flows[by]
	if f == nil || !f.within().known {
		return
	}
	in := f.within()
	if j.links >= maxOpen {
		j.unlink()
	}
	new := j.flows[Flow{GoID: goid}]
	if new == nil {
		new = &flow{}
		j.flows[Flow{GoID: goid}] = new
	}
	if !new.in.known {
		j.links++
	}
	new.in = in
}

// unlink forgets what goroutines were created in: the ends of many must have been lost.
func (j *Joiner) unlink() {
	for on, f := range j.flows {
		f.in = within{}
		j.forget(on, f)
	}
	j.stats.Unfollowed += uint64(j.links)
	j.links = 0
}

// Recovered takes the end of a panic of a goroutine: all calls that are deeper have been left.
func (j *Joiner) Recovered(goid, nanos, depth uint64) {
	on := Flow{GoID: goid}
	f := j.flows[on]
	if f == nil {
		return
	}
	for n := len(f.calls); n > 0 && f.calls[n-1].depth > depth; n-- {
		j.leave(f, nanos, leftByPanic)
	}
	j.forget(on, f)
}

// Ended takes the end of a goroutine.
func (j *Joiner) Ended(goid, nanos uint64) {
	on := Flow{GoID: goid}
	f := j.flows[on]
	if f == nil {
		return
	}
	for len(f.calls) > 0 {
		j.leave(f, nanos, leftByExit)
	}
	if f.in.known {
		j.links--
	}
	delete(j.flows, on)
}

// Lost takes that hits were lost on their way here, behind all that it was told of before.
func (j *Joiner) Lost() { j.losses++ }

// Stats tells what has become of calls until now.
func (j *Joiner) Stats() Stats {
	s := j.stats
	for _, f := range j.flows {
		s.Active += uint64(len(f.calls))
	}
	return s
}

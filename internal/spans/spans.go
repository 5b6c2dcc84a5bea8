package spans

import (
	"cmp"
	"encoding/binary"
	"math/rand/v2"

	"kprobes.dev/kprobes/internal/otlp"
)

// Func is a function whose calls become spans.
type Func struct {
	Name   string    // of its spans
	Symbol string    // the function's own, as the program calls it
	Kind   otlp.Kind // of its spans; 0: server of a call that is in a span of another program, else internal
	// Trampoline: its returns are seen by trampoline, so that a call of it may be in progress while another one has its depth.
	Trampoline bool
	// Lost tells how many records of its returns were lost until this moment, which is later than that of the hits that a Joiner is told
	// of; nil: none are.
	Lost func() uint64

	lost   uint64 // what Lost has told last
	lostAt uint64 // when it told more than before, by Options.Now
}

// loses says whether the return of a call that was entered at a time may have been lost.
func (f *Func) loses(since uint64, o *Options) bool {
	if f.Lost == nil {
		return false
	}
	if n := f.Lost(); n != f.lost {
		f.lost = n
		if f.lostAt = ^uint64(0); o.Now != nil {
			f.lostAt = o.Now()
		}
	}
	return f.lost > 0 && f.lostAt >= since
}

// Flow is what calls nest in: a goroutine, or a thread where there is none.
type Flow struct {
	GoID uint64
	TID  int
}

// Options of a Joiner and a Nester.
type Options struct {
	// Sample keeps one in so many traces; 0 and 1 keep all. A trace is kept as a whole.
	Sample uint64
	// Unix is what the time of a hit becomes nanoseconds since 1970 by.
	Unix int64
	// OneStack: a thread is on one stack but for signal handlers, as in a program. In a kernel interrupts have stacks of their own.
	OneStack bool
	// Now reads the clock of the hits; nil: it can not be read, and records that were lost once may have been any.
	Now func() uint64
	// Wait is how long a Nester holds a call that nothing encloses, in nanoseconds.
	Wait uint64
	// Emit takes a span, which belongs to it from then on.
	Emit func(*otlp.Span)
}

// Stats says what has become of calls.
type Stats struct {
	Spans     uint64 // were emitted
	Errors    uint64 // of these, with the status error
	Left      uint64 // of these, left without a return
	Unsampled uint64 // calls of traces that are not kept, by Options.Sample or by whose span it is that they are in
	// Unjoined are returns whose entry is not known, and calls that have an entry alone while records were lost.
	Unjoined   uint64
	Unfollowed uint64 // calls for which there was no room, and goroutines of which it was forgotten what they were created in
	Unread     uint64 // calls of whose contexts it is not known whether they carry a span
	Active     uint64 // calls in progress at the end
	Split      uint64 // calls that returned when what they enclose had been sent, as another trace
}

// maxOpen bounds the calls that are remembered. Records come from memory that the probed program can write to.
const maxOpen = 1 << 20

// Ended is how a call has ended.
type Ended struct {
	Attrs  []otlp.Attr
	Failed bool
	Type   string // of Failed: the attribute error.type; "": it is not known
	Reason string // of Failed: for people
}

// The attributes that spans have beside the arguments, by OpenTelemetry's semantic conventions (general attributes 1.37); those have none
// for goroutines.
const (
	AttrFunction  = "code.function.name"
	AttrThread    = "thread.id"
	AttrGoroutine = "go.goroutine.id"
	AttrError     = "error.type"
)

// AttrProcess is the attribute of a resource that has a process's id.
const AttrProcess = "process.pid"

// newSpan makes a span of a call, from its beginning on.
func newSpan(fn *Func, flow Flow, tid int, attrs []otlp.Attr) *otlp.Span {
	all := make([]otlp.Attr, 0, 4+len(attrs))
	all = append(all, otlp.Attr{Key: AttrFunction, Value: fn.Symbol}, otlp.Attr{Key: AttrThread, Value: int64(tid)})
	if flow.GoID != 0 {
		all = append(all, otlp.Attr{Key: AttrGoroutine, Value: flow.GoID})
	}
	return &otlp.Span{Name: fn.Name, Kind: cmp.Or(fn.Kind, otlp.KindInternal), Attrs: append(all, attrs...)}
}

// end writes down how the call of a span has ended.
func (e *Ended) end(s *otlp.Span) {
	s.Attrs = append(s.Attrs, e.Attrs...)
	if !e.Failed {
		return
	}
	s.Status, s.Message = otlp.StatusError, e.Reason
	if e.Type != "" {
		s.Attrs = append(s.Attrs, otlp.Attr{Key: AttrError, Value: e.Type})
	}
}

// emit hands a span over.
func (s *Stats) emit(o *Options, span *otlp.Span) {
	s.Spans++
	if span.Status == otlp.StatusError {
		s.Errors++
	}
	o.Emit(span)
}

func newTrace() (id otlp.TraceID) {
	binary.LittleEndian.PutUint64(id[:], rand.Uint64()|1) // not zero, which is no id
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	return id
}

func newID() (id otlp.SpanID) {
	binary.LittleEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}

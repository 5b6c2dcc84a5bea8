package spans

import "kprobes.dev/kprobes/internal/otlp"

// Span is one call: its Trace and ID, the ID of the Parent that it is in, which is zero for the first of its trace, its Name and Kind, when it
// was entered (Start) and has returned (End), in nanoseconds since 1970, its attributes (Attrs), its Status, and what went wrong (Message). With Remote, Parent
// is a span of another program. Who is given a Span must not change it.
type Span = otlp.Span

// Attr is an attribute: a Key, and a Value that is a string, bool, int64, uint64, float64, byte, or a []any of these.
type Attr = otlp.Attr

// TraceID and SpanID tell traces, and the spans of a trace, apart. Their String gives hexadecimal digits.
type (
	TraceID = otlp.TraceID
	SpanID  = otlp.SpanID
)

// Kind says on which side of a call between programs a span is.
type Kind = otlp.Kind

// The kinds of spans.
const (
	KindInternal = otlp.KindInternal
	KindServer   = otlp.KindServer
	KindClient   = otlp.KindClient
	KindProducer = otlp.KindProducer
	KindConsumer = otlp.KindConsumer
)

// Status says how a call has ended.
type Status = otlp.Status

// The statuses of spans.
const (
	StatusUnset = otlp.StatusUnset // nothing says that the call has failed
	StatusError = otlp.StatusError
)

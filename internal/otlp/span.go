package otlp

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// TraceID tells traces apart. The zero value is none.
type TraceID [16]byte

// String is the id in hexadecimal digits.
func (id TraceID) String() string { return hex.EncodeToString(id[:]) }

// SpanID tells the spans of a trace apart. The zero value is none.
type SpanID [8]byte

// String is the id in hexadecimal digits.
func (id SpanID) String() string { return hex.EncodeToString(id[:]) }

// Kind says on which side of a call, or of a message, between programs a span is.
type Kind int32

// Kinds of spans, by the numbers of the protocol.
const (
	KindInternal Kind = 1
	KindServer   Kind = 2
	KindClient   Kind = 3
	KindProducer Kind = 4
	KindConsumer Kind = 5
)

// Status says how a span has ended.
type Status int32

// The statuses, by the numbers of the protocol.
const (
	StatusUnset Status = 0
	StatusError Status = 2
)

// Span is one call. Strings may hold any bytes: what is no UTF-8 is replaced when they are sent.
type Span struct {
	Trace      TraceID
	ID         SpanID
	Parent     SpanID // zero: the span is its trace's first
	Remote     bool   // Parent is a span of another program
	Outside    bool   // Parent is a span that others make, of this program or of another one
	Name       string
	Kind       Kind
	Start, End uint64 // nanoseconds since 1970
	Attrs      []Attr
	Status     Status
	Message    string // of StatusError: what went wrong
	// Of is what the span is of; nil: the resource of its batch.
	Of *Resource
}

// Resource describes what spans are of, such as a process. Spans share one, which does not change.
type Resource struct{ Attrs []Attr }

// Attr is an attribute of a span or a resource. Value is a string, bool, int64, uint64, float64, or a []any of these; any other is sent as
// fmt prints it. A uint64 that no int64 holds is sent as a string of its decimal digits, since the protocol has no such number.
type Attr struct {
	Key   string
	Value any
}

// Batch is what is sent at once.
type Batch struct {
	Resource []Attr // of the spans that have none of their own
	Scope    Scope
	Spans    []*Span
}

// Scope is what has made the spans.
type Scope struct{ Name, Version string }

// ofResource is spans of a batch that have one resource.
type ofResource struct {
	attrs []Attr
	spans []*Span
}

// byResource gives the spans by their resources, these in the order of their first spans.
func (b *Batch) byResource() (out []ofResource) {
	at := map[*Resource]int{}
	for _, s := range b.Spans {
		i, ok := at[s.Of]
		if !ok {
			i = len(out)
			at[s.Of] = i
			one := ofResource{attrs: b.Resource}
			if s.Of != nil {
				one.attrs = s.Of.Attrs
			}
			out = append(out, one)
		}
		out[i].spans = append(out[i].spans, s)
	}
	return out
}

// plain makes one of the protocol's types of a value: string, bool, int64, float64 or []any.
func plain(v any) any {
	switch v := v.(type) {
	case string:
		return valid(v)
	case bool, int64, float64, []any:
		return v
	case uint64:
		if int64(v) >= 0 {
			return int64(v)
		}
		return strconv.FormatUint(v, 10)
	}
	return valid(fmt.Sprint(v))
}

// valid is a string as the protocol takes it.
func valid(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// Flags of a span, by the protocol. All spans that are sent are sampled ones.
const (
	flagSampled  = 1 << 0 // of W3C's trace context
	flagTold     = 1 << 8 // flagRemote tells something
	flagRemote   = 1 << 9
	flagsOfLocal = flagSampled | flagTold
)

func (s *Span) flags() uint32 {
	if s.Remote {
		return flagsOfLocal | flagRemote
	}
	return flagsOfLocal
}

// size is about how many bytes the span takes where it is sent.
func (s *Span) size() int {
	n := 128 + len(s.Name) + len(s.Message) + sizeOfAttrs(s.Attrs)
	if s.Of != nil {
		n += sizeOfAttrs(s.Of.Attrs) // it may be the only one of its resource
	}
	return n
}

func sizeOfAttrs(as []Attr) (n int) {
	for _, a := range as {
		n += 16 + len(a.Key) + sizeOf(a.Value)
	}
	return n
}

func sizeOf(v any) int {
	switch v := v.(type) {
	case string:
		return len(v)
	case []any:
		n := 0
		for _, e := range v {
			n += 8 + sizeOf(e)
		}
		return n
	}
	return 10
}

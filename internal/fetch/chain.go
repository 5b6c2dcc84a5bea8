package fetch

import (
	"encoding/binary"

	"kprobes.dev/kprobes/event"
)

// Chain says how code at the hit goes from a context.Context of Go to the span of OpenTelemetry that it carries. A context is an interface
// of two words: the address of a table, which tells its type, and the address of its value. A type's value has the context that it was
// made of, its parent, and of one type a key and a value:
//
//	context ──► cancel ──► value (another key) ──► value (the key of spans) ──► span
//
// All addresses are those of the program as it runs. Offsets count from the start of a value, in bytes.
type Chain struct {
	Limit int    // contexts that are gone through at most, at least 1
	Links []Link // each table once
	// KeyType is the type of the key of spans, and Key its value, which is not negative, of KeySize bytes: 1, 2, 4 or 8.
	KeyType uint64
	Key     int32
	KeySize int
	// KeyAt and ValueAt are where a Link with values has them: interfaces of two words, the address of a type and that of a value.
	KeyAt, ValueAt int32
	Spans          []SpanType // each type once
	// Where the parts of a trace.SpanContext are.
	Trace, Span, Flags, Remote int32
}

// Link is a type of contexts.
type Link struct {
	Table  uint64
	Kind   LinkKind
	Parent int32 // where the parent is
}

// LinkKind says what a context has.
type LinkKind uint8

// Kinds of links.
const (
	LinkParent LinkKind = iota // a parent
	LinkValue                  // a parent, a key and a value
	LinkRoot                   // nothing: it is the last
)

// SpanType is a type of spans. At is where a value has its trace.SpanContext; negative: it has none, and is no span of a trace.
type SpanType struct {
	Type uint64
	At   int32
}

// SpanSize is the size of StoreSpan in a record, in bytes: the trace's id of 16, the span's of 8, and a word. Of that the lowest byte is
// a SpanState, the next one the flags of the trace, and the third is not 0 if the span is of another program.
const SpanSize = 32

// Places in the last word of StoreSpan.
const (
	SpanFlagsShift  = 8
	SpanRemoteShift = 16
)

// SpanState says what was found at a hit.
type SpanState uint8

// What was found. Beside the first two it is not known whether there is a span.
const (
	SpanNone       SpanState = iota // the context carries no span
	SpanFound                       // a span
	SpanFault                       // a part of the chain could not be read
	SpanStrange                     // a context of a type that is no Link
	SpanLong                        // more contexts than Limit
	SpanStrangeOne                  // a span of a type that is no SpanType
)

// CarriedSpan is what a context carries. The ids are none but of SpanFound.
type CarriedSpan struct {
	State  SpanState
	Trace  [16]byte
	Span   [8]byte
	Flags  byte // of W3C's Trace Context: bit 0 says that the trace is kept
	Remote bool // the span is one of another program
}

// DecodeSpan reads the value of a StoreSpan. Ids that are 0 are none.
func DecodeSpan(v *Value) (s CarriedSpan) {
	if v.Arg.Store != StoreSpan || v.Unknown {
		return s
	}
	w := binary.LittleEndian.Uint64(v.Str[24:])
	if s.State = SpanState(w); s.State != SpanFound {
		return s
	}
	copy(s.Trace[:], v.Str)
	copy(s.Span[:], v.Str[16:])
	s.Flags, s.Remote = byte(w>>SpanFlagsShift), byte(w>>SpanRemoteShift) != 0
	if s.Trace == ([16]byte{}) || s.Span == ([8]byte{}) {
		return CarriedSpan{}
	}
	return s
}

// Carrier is an Env that knows how spans are carried by contexts of Go.
type Carrier interface {
	// Carried gives Arg.Chain, or why there is none.
	Carried() (any, error)
}

// carried has the span recorded that a context carries, which is the only thing of it that can be.
func (c *compiler) carried(v *Var) error {
	const what = "values of type context.Context are not recorded; kprobe spans takes the span that one carries: traceparent="
	why := what + c.src.Expr.Name
	if of, ok := c.env.(Carrier); ok && c.src.Type.Kind == event.TraceContext {
		chain, err := of.Carried()
		if err == nil {
			c.arg.Type, c.arg.Chain = v.Type, chain
			return nil
		}
		why = err.Error()
	}
	return c.refuse(event.NosupDatArg, c.src.Expr, why, nil)
}

// saver is what Arg.Chain is beside.
type saver interface {
	// Save has the entry of a return probe save the words of argument i.
	Save(a *Arg, i int)
}

// Save has the entry save the words of the span that argument i is. A register that one of the context's words is in is read there.
func (c *Chain) Save(a *Arg, i int) {
	for n := range SpanSize / 8 {
		b := Base{Kind: BaseSpan, N: n, Imm: uint64(i), Reg: RegConst}
		if from := [2]Base{a.Base, a.Len}[n%2]; from.Kind == BaseReg {
			b.Reg = from.Reg
		}
		a.Saved = append(a.Saved, b)
	}
}

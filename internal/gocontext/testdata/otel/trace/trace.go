// Package trace stands for OpenTelemetry's, with everything elsewhere: it has the names, and nothing else of it.
package trace

import (
	"context"
	"unsafe"
)

type traceContextKeyType int16

const (
	_ traceContextKeyType = iota + 40
	currentSpanKey
)

// SpanContext has its parts in another order.
type SpanContext struct {
	remote     bool
	state      string
	traceFlags byte
	spanID     [8]byte
	traceID    [16]byte
}

// Spans.
type (
	// Span is any of them.
	Span      interface{ IsSpan() }
	noopSpan  struct{ Span }
	recording struct {
		name        string
		sc          int
		spanContext SpanContext
	}
	remote struct {
		a, b, c int
		sc      SpanContext
	}
	other struct{ n int }
)

func (noopSpan) IsSpan()   {}
func (*recording) IsSpan() {}
func (remote) IsSpan()     {}
func (*other) IsSpan()     {}

// With gives a context that carries a span of each type.
func With(ctx context.Context) []context.Context {
	var all []context.Context
	for _, s := range []any{noopSpan{}, &recording{}, remote{}, &other{}} {
		all = append(all, context.WithValue(ctx, currentSpanKey, s))
	}
	return all
}

// Key gives the key of spans.
func Key() any { return currentSpanKey }

// Spans gives a span of each type.
func Spans() map[string]any {
	return map[string]any{"noop": noopSpan{}, "recording": &recording{}, "remote": remote{}, "other": &other{}}
}

// Offsets gives where fields are.
func Offsets() map[string]uint64 {
	return map[string]uint64{
		"recording": uint64(unsafe.Offsetof(recording{}.spanContext)), "remote": uint64(unsafe.Offsetof(remote{}.sc)),
		"traceID": uint64(unsafe.Offsetof(SpanContext{}.traceID)), "spanID": uint64(unsafe.Offsetof(SpanContext{}.spanID)),
		"traceFlags": uint64(unsafe.Offsetof(SpanContext{}.traceFlags)), "isRemote": uint64(unsafe.Offsetof(SpanContext{}.remote)),
	}
}

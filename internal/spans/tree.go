package spans

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/internal/otlp"
)

// Tree writes spans as text: those of a trace together, when its first call, or one whose parent others make, has ended, each below the one that it is in. The spans of
// goroutines that go on behind the end of the first call follow by themselves. Spans that have a resource of their own begin with its process. It is not safe for use by several goroutines.
type Tree struct {
	// Write takes the lines of a trace.
	Write func([]byte)
	// Unix is what is taken off a time to show it by the hits' clock.
	Unix int64

	traces map[otlp.TraceID]*waiting
	order  []*waiting // the oldest first; some have been written
	n      int        // spans that wait
	line   []byte
}

// waiting are spans of a trace that are not written.
type waiting struct {
	id    otlp.TraceID
	spans []*otlp.Span // none: they have been written
}

// maxWaiting bounds the spans that wait for the first call of their traces.
const maxWaiting = 1 << 16

// Add takes a span.
func (t *Tree) Add(s *otlp.Span) {
	if t.traces == nil {
		t.traces = map[otlp.TraceID]*waiting{}
	}
	w := t.traces[s.Trace]
	if w == nil {
		w = &waiting{id: s.Trace}
		t.traces[s.Trace], t.order = w, append(t.order, w)
	}
	w.spans = append(w.spans, s)
	t.n++
	if s.Parent == (otlp.SpanID{}) || s.Remote || s.Outside {
		t.print(w)
	}
	for t.n > maxWaiting {
		t.oldest()
	}
}

// oldest writes what there is of the oldest trace, if that has something.
func (t *Tree) oldest() {
	w := t.order[0]
	t.order = t.order[1:]
	if len(w.spans) > 0 {
		t.print(w)
	}
}

// Close writes what waits for calls that are still in progress.
func (t *Tree) Close() {
	for len(t.order) > 0 {
		t.oldest()
	}
}

// print writes what there is of a trace.
func (t *Tree) print(w *waiting) {
	all := w.spans
	w.spans = nil
	delete(t.traces, w.id)
	if t.n -= len(all); len(t.order) > 1024+2*len(t.traces) {
		t.order = slices.DeleteFunc(t.order, func(o *waiting) bool { return len(o.spans) == 0 })
	}
	here, inner := map[otlp.SpanID]bool{}, map[otlp.SpanID][]*otlp.Span{}
	for _, s := range all {
		here[s.ID] = true
	}
	var outer []*otlp.Span
	for _, s := range all {
		if s.Parent != (otlp.SpanID{}) && here[s.Parent] {
			inner[s.Parent] = append(inner[s.Parent], s)
		} else {
			outer = append(outer, s)
		}
	}
	t.line = t.line[:0]
	t.level(outer, inner, 0)
	t.Write(t.line)
}

// level appends spans in the order of their beginnings, and below each those that are in it.
func (t *Tree) level(all []*otlp.Span, inner map[otlp.SpanID][]*otlp.Span, depth int) {
	slices.SortStableFunc(all, func(a, b *otlp.Span) int { return cmp.Compare(a.Start, b.Start) })
	for _, s := range all {
		t.span(s, depth)
		t.level(inner[s.ID], inner, depth+1)
	}
}

// maxIndent is the depth behind which lines are not indented further.
const maxIndent = 40

// span appends the line of a span: when it began, how long it took in microseconds, its name, its arguments, and how it failed.
func (t *Tree) span(s *otlp.Span, depth int) {
	at, took := uint64(int64(s.Start)-t.Unix), s.End-s.Start
	t.line = fmt.Appendf(t.line, "%6d.%06d %9d.%03d us  %s%s", at/1e9, at%1e9/1e3, took/1e3, took%1e3, strings.Repeat("  ", min(depth, maxIndent)), s.Name)
	if s.Outside {
		t.line = fmt.Appendf(t.line, " (in span %v of trace %v)", s.Parent, s.Trace)
	} else if depth == 0 && s.Parent != (otlp.SpanID{}) && !s.Remote {
		t.line = append(t.line, " (in a call that is not shown here)"...)
	}
	if depth == 0 && s.Of != nil {
		for _, a := range s.Of.Attrs {
			if a.Key == AttrProcess {
				t.line = fmt.Appendf(t.line, " %s=%v", a.Key, a.Value)
			}
		}
	}
	for _, a := range s.Attrs {
		if a.Key == AttrFunction || a.Key == AttrThread || a.Key == AttrGoroutine || a.Key == AttrError {
			continue
		}
		t.line = append(append(append(t.line, ' '), a.Key...), '=')
		t.line = appendText(t.line, a.Value)
	}
	if s.Status == otlp.StatusError {
		t.line = append(append(t.line, "  error: "...), cmp.Or(s.Message, "no reason is known")...)
	}
	t.line = append(t.line, '\n')
}

// appendText appends a value as a line of a trace has it: strings in quotes.
func appendText(dst []byte, v any) []byte {
	switch v := v.(type) {
	case string:
		return strconv.AppendQuote(dst, v)
	case []any:
		dst = append(dst, '{')
		for i, e := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendText(dst, e)
		}
		return append(dst, '}')
	}
	return fmt.Append(dst, v)
}

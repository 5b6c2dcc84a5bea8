package spanmaker

import (
	"maps"
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/gocontext"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spans"
)

// typedByProgram says whether an argument is traceparent, and a value of the program's whose type says what it is: a header, or a context that carries a span.
func typedByProgram(a *event.Arg) bool {
	return a.Name == argRemote && a.Type.Text == "" && a.Expr != nil && a.Expr.Kind == event.ExprName
}

// takeContexts has arguments traceparent be taken as the program's types say.
func (m *Maker) takeContexts() {
	take := func(args []event.Arg) []event.Arg {
		args = slices.Clone(args) // processes share them
		for i := range args {
			if typedByProgram(&args[i]) {
				args[i].Type.Kind = event.TraceContext
			}
		}
		return args
	}
	for _, c := range m.calls {
		c.Def.Args = take(c.Def.Args)
		if or := c.Or[argRemote]; or != nil {
			c.Or = maps.Clone(c.Or)
			c.Or[argRemote] = take(or)
		}
	}
	if Contexts(m.calls) {
		m.core.TraceContexts(gocontext.Find)
	}
}

// Contexts says whether a call may have a context that carries a span.
func Contexts(calls []*Call) bool {
	return slices.ContainsFunc(calls, func(c *Call) bool {
		return slices.ContainsFunc(c.Def.Args, func(a event.Arg) bool { return typedByProgram(&a) })
	})
}

// carriedOf is the span that the context of a call carries; nil: none.
func (p *spanProbe) carriedOf(vs []fetch.Value) *spans.Carried {
	if p.context < 0 {
		return nil
	}
	switch s := fetch.DecodeSpan(&vs[p.context]); s.State {
	case fetch.SpanNone:
		return nil
	case fetch.SpanFound:
		return &spans.Carried{Trace: otlp.TraceID(s.Trace), Span: otlp.SpanID(s.Span), Sampled: s.Flags&1 != 0, Remote: s.Remote}
	}
	return &spans.Carried{Unread: true}
}

package main

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
func (g *spanning) takeContexts() {
	take := func(args []event.Arg) []event.Arg {
		args = slices.Clone(args) // processes share them
		for i := range args {
			if typedByProgram(&args[i]) {
				args[i].Type.Kind = event.TraceContext
			}
		}
		return args
	}
	for _, c := range g.calls {
		c.given.Args = take(c.given.Args)
		if or := c.or[argRemote]; or != nil {
			c.or = maps.Clone(c.or)
			c.or[argRemote] = take(or)
		}
	}
	if g.contexts() {
		g.core.TraceContexts(gocontext.Find)
	}
}

// contexts says whether a call may have a context that carries a span.
func (g *spanning) contexts() bool {
	return slices.ContainsFunc(g.calls, func(c *spanned) bool {
		return slices.ContainsFunc(c.given.Args, func(a event.Arg) bool { return typedByProgram(&a) })
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

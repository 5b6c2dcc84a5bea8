package main

import (
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spans"
	"kprobes.dev/kprobes/internal/spanset"
)

// role is what a hit of a probe tells.
type role uint8

// Roles.
const (
	roleEntry role = iota
	roleReturn
	roleCreated   // a goroutine was created
	roleEnded     // a goroutine ends
	roleRecovered // a goroutine has recovered from a panic
)

// making makes spans of hits.
type making struct {
	core    *engine.Core
	runtime map[*event.Def]role // of the probes on the runtime of Go
	probes  map[string]*spanProbe
	known   map[*hit.Event]*spanProbe
	joiner  *spans.Joiner // one of these
	nester  *spans.Nester
	values  []fetch.Value
	damaged uint64 // records
	unnamed uint64 // hits whose thread is not known
	begun   bool
	// sampling is how the probes choose traces; nil: they do not. unsampled are calls of those that they have not kept.
	sampling  *engine.Sampling
	unsampled uint64
}

// spanProbe is a probe, and where the arguments are of its records.
type spanProbe struct {
	role role
	fn   *spans.Func
	call *spanned
	// args are the arguments that become attributes; the others are -1 where there is none.
	args                         []int
	depth, failed, entered, took int
	remote                       int           // the header traceparent
	context                      int           // the context that carries a span
	failing                      *fetch.Filter // --error
	comm                         bool          // the thread's name is asked for
}

// begin makes what makes the spans, at the first hit: a guest has a clock of its own, which only its hits show.
func (g *spanning) begin(nanos uint64) {
	g.begun = true
	o := spans.Options{Sample: g.sample, OneStack: g.f.of.guest == "", Wait: uint64(g.wait), Emit: g.emit}
	switch {
	case g.f.of.guest != "":
		o.Unix = wall() - int64(nanos)
	case g.parent != nil:
		o.Unix = g.parent.all.offset()
		g.parent.out.unix(o.Unix)
	default:
		o.Unix = unixOffset()
	}
	if g.f.of.guest == "" {
		o.Now = func() uint64 { return uint64(monotonic()) }
	}
	g.out.unix(o.Unix)
	if g.filtered() {
		g.nester = spans.NewNester(o)
	} else {
		g.joiner = spans.NewJoiner(o)
	}
}

// hit takes a hit.
func (g *spanning) hit(h *hit.Hit) {
	if !g.begun {
		g.begin(h.Nanos)
	}
	pr, ok := g.known[h.Event]
	if !ok {
		pr = g.learn(h.Event)
	}
	if pr == nil {
		return
	}
	comm := h.Comm
	if comm == "" && pr.comm {
		comm = g.t.printed.print.Names.Comm(h.TID)
	}
	vs, err := h.Event.Prog.DecodeInto(g.values[:0], h.Rec, h.Event.ArgsOff, comm)
	g.values = vs
	if err != nil {
		g.damaged++
		return
	}
	if h.Unknown {
		fetch.HideResults(vs)
	}
	switch pr.role {
	case roleCreated:
		g.joiner.Created(spans.Flow{GoID: vs[0].Num}, vs[1].Num)
	case roleEnded:
		g.joiner.Ended(h.GoID, h.Nanos)
	case roleRecovered:
		g.joiner.Recovered(vs[0].Num, h.Nanos, vs[2].Num-vs[1].Num)
	default:
		g.call(pr, h, vs, comm)
	}
}

// call takes a hit at the entry or the return of a call.
func (g *spanning) call(pr *spanProbe, h *hit.Hit, vs []fetch.Value, comm string) {
	flow, ok := g.flowOf(h)
	if !ok {
		g.unnamed++
		return
	}
	if pr.role == roleEntry {
		g.joiner.Enter(&spans.Entry{Func: pr.fn, Flow: flow, TID: h.TID, Nanos: h.Nanos, Depth: vs[pr.depth].Num, Decided: g.sampling != nil && pr.remote < 0, Attrs: func() []otlp.Attr { return g.attrs(pr, vs) }, Remote: func() (spans.Remote, bool) { return pr.remoteOf(vs) }, Carried: pr.carriedOf(vs)})
		return
	}
	how := func() spans.Ended {
		e := spans.Ended{Attrs: g.attrs(pr, vs)}
		switch {
		case vs[pr.failed].Num != 0 && !vs[pr.failed].Unknown:
			e.Failed, e.Reason = true, "the last result is an error"
		case pr.failing != nil && pr.failing.Match(vs, &fetch.FilterHit{IP: h.Addr(), Ret: h.Caller, PID: uint64(h.TID), CPU: uint64(h.CPU), Comm: comm}):
			e.Failed, e.Reason = true, pr.call.failing
		}
		return e
	}
	if g.nester != nil {
		c := &spans.Call{Func: pr.fn, Flow: flow, TID: h.TID, Nanos: h.Nanos, Entered: vs[pr.entered].Num, Took: vs[pr.took].Num, Ended: how(), Carried: pr.carriedOf(vs)}
		if r, ok := pr.remoteOf(vs); ok {
			c.Remote = &r
		}
		g.nester.Leave(c)
		return
	}
	g.joiner.Leave(pr.fn, flow, h.Nanos, vs[pr.depth].Num, how)
}

// flowOf is what the calls of a hit nest in: the goroutine, else the thread, and of a kernel's idle threads, which have one number, the CPU.
func (g *spanning) flowOf(h *hit.Hit) (f spans.Flow, ok bool) {
	switch {
	case h.GoID != 0:
		return spans.Flow{GoID: h.GoID}, true
	case h.TID != 0:
		return spans.Flow{TID: h.TID}, true
	}
	return spans.Flow{TID: -1 - h.CPU}, g.f.of.guest != ""
}

// remoteOf is the span of another program that a call is in, by an argument.
func (p *spanProbe) remoteOf(vs []fetch.Value) (spans.Remote, bool) {
	if p.remote < 0 {
		return spans.Remote{}, false
	}
	return spans.ParseTraceparent(string(vs[p.remote].Str))
}

// learn finds a probe by the event of its hits, and where its arguments are; nil: it makes no spans.
func (g *spanning) learn(e *hit.Event) *spanProbe {
	g.known[e] = nil
	of := g.probes[e.Group+"/"+e.Name]
	if of == nil || e.Prog == nil {
		return nil
	}
	pr := *of
	pr.depth, pr.failed, pr.entered, pr.took, pr.remote, pr.context = -1, -1, -1, -1, -1, -1
	for i := range e.Prog.Args {
		a := &e.Prog.Args[i]
		pr.comm = pr.comm || a.Base.Kind == fetch.BaseComm
		switch a.Name {
		case argDepth:
			pr.depth = i
		case argFailed:
			pr.failed = i
		case argEntered:
			pr.entered = i
		case argTook:
			pr.took = i
		default:
			if pr.role != roleReturn || pr.call.entry == nil || !slices.ContainsFunc(pr.call.entry.Args, func(o event.Arg) bool { return o.Name == a.Name }) {
				if a.Store == fetch.StoreSpan {
					pr.context = i
					continue
				}
				pr.args = append(pr.args, i) // else the entry has it
				if a.Name == argRemote && a.Type.IsString() {
					pr.remote = i
				}
			}
		}
	}
	if pr.role == roleReturn && pr.call.failing != "" {
		f, err := failingOf(pr.call, e.Prog)
		if err != nil {
			g.say("--error %q: %v: calls of %s are no spans", pr.call.failing, err, pr.fn.Symbol)
			return nil
		}
		pr.failing, pr.comm = f, true
	}
	g.known[e] = &pr
	return &pr
}

// attrs makes attributes of a hit's arguments. What is not known is none, nor is what could not be read of an attribute with dots, whose type
// a convention tells.
func (g *spanning) attrs(pr *spanProbe, vs []fetch.Value) []otlp.Attr {
	var out []otlp.Attr
	for _, i := range pr.args {
		v := &vs[i]
		key := pr.call.attribute(v.Arg.Name)
		switch dotted := strings.Contains(key, "."); {
		case v.Unknown, dotted && maybeAbsent(v):
		case !dotted:
			out = append(out, otlp.Attr{Key: key, Value: g.attr(v)})
		default:
			if a := g.attr(v); a != fault {
				out = spanset.Conventional(out, key, a)
			}
		}
	}
	return out
}

// maybeAbsent says whether a value is the number 0 behind an interface, which stands for a value of another type too.
func maybeAbsent(v *fetch.Value) bool {
	return len(v.Arg.Checks) > 0 && v.Arg.Count == 0 && !v.Arg.Type.IsString() && v.Num == 0
}

// fault is the value of an attribute that could not be read.
const fault = "(fault)"

// attr is an argument as a value of OTLP.
func (g *spanning) attr(v *fetch.Value) any {
	switch {
	case v.Arg.Count > 0:
		all, _ := v.Any().([]any)
		for i := range all {
			all[i] = attrOf(all[i])
		}
		return all
	case v.Arg.Type.Kind == event.Symbol || v.Arg.Type.Kind == event.SymStr:
		return string(fetch.AppendSym(nil, v.Num, g.t.printed.print.Names.Symbol))
	case v.Arg.Store == fetch.StoreNone || v.Arg.Store == fetch.StoreComm:
		return string(v.Str)
	}
	return attrOf(v.Any())
}

func attrOf(v any) any {
	switch v := v.(type) {
	case nil:
		return fault
	case byte:
		return string(rune(v))
	}
	return v
}

// lost takes that hits were lost.
func (g *spanning) lost() {
	if g.joiner != nil {
		g.joiner.Lost()
	}
}

// unixOffset is what a time of CLOCK_MONOTONIC becomes nanoseconds since 1970 by. Of a few readings the one is taken during which the
// least time has passed.
func unixOffset() (offset int64) {
	least := int64(math.MaxInt64)
	for range 8 {
		from := monotonic()
		now := wall()
		if to := monotonic(); to-from < least {
			least, offset = to-from, now-from-(to-from)/2
		}
	}
	return offset
}

func monotonic() int64 { return clock(unix.CLOCK_MONOTONIC) }

func wall() int64 { return clock(unix.CLOCK_REALTIME) }

// clock reads a clock that every kernel has.
func clock(id int32) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

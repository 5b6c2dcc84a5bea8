package spanmaker

import (
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
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

// spanProbe is a probe, and where the arguments are of its records.
type spanProbe struct {
	role role
	fn   *spans.Func
	call *Call
	// args are the arguments that become attributes; the others are -1 where there is none.
	args                         []int
	depth, failed, entered, took int
	remote                       int           // the header traceparent
	context                      int           // the context that carries a span
	failing                      *fetch.Filter // what says which calls have failed; nil: nothing but a result
	comm                         bool          // the thread's name is asked for
}

// begin makes what makes the spans, at the first hit: a guest has a clock of its own, which only its hits show.
func (m *Maker) begin(nanos uint64) {
	m.begun = true
	o := spans.Options{Sample: m.o.Sample, OneStack: !m.guest, Wait: uint64(m.o.Wait), Emit: m.o.Emit}
	switch {
	case m.guest:
		o.Unix = wall() - int64(nanos)
	case m.o.Offset != nil:
		o.Unix = m.o.Offset()
	default:
		o.Unix = UnixOffset()
	}
	if !m.guest {
		o.Now = func() uint64 { return uint64(monotonic()) }
	}
	if m.o.Begun != nil {
		m.o.Begun(o.Unix)
	}
	if m.o.filtered() {
		m.nester = spans.NewNester(o)
	} else {
		m.joiner = spans.NewJoiner(o)
	}
}

// Hit takes a hit, of which it keeps nothing. Those of other events are left out.
func (m *Maker) Hit(h *hit.Hit) {
	if !m.begun {
		m.begin(h.Nanos)
	}
	pr, ok := m.known[h.Event]
	if !ok {
		pr = m.learn(h.Event)
	}
	if pr == nil {
		return
	}
	comm := h.Comm
	if comm == "" && pr.comm {
		comm = m.o.Names.Comm(h.TID)
	}
	vs, err := h.Event.Prog.DecodeInto(m.values[:0], h.Rec, h.Event.ArgsOff, comm)
	m.values = vs
	if err != nil {
		m.damaged++
		return
	}
	h.Hide(vs)
	switch pr.role {
	case roleCreated:
		m.created(vs[0].Num, vs[1].Num)
	case roleEnded:
		delete(m.hidden, h.GoID)
		if m.joiner != nil {
			m.joiner.Ended(h.GoID, h.Nanos)
		}
	case roleRecovered:
		m.joiner.Recovered(vs[0].Num, h.Nanos, vs[3].Num-vs[2].Num)
	default:
		m.call(pr, h, vs, comm)
	}
}

// created takes that a goroutine was created by another.
func (m *Maker) created(by, goid uint64) {
	switch {
	case m.hidden[by]:
		m.hidden[goid] = true
	case m.joiner != nil:
		m.joiner.Created(spans.Flow{GoID: by}, goid)
	}
}

// call takes a hit at the entry or the return of a call.
func (m *Maker) call(pr *spanProbe, h *hit.Hit, vs []fetch.Value, comm string) {
	if m.hidden[h.GoID] {
		if pr.role == roleEntry || m.nester != nil {
			m.hid++
		}
		return
	}
	flow, ok := m.flowOf(h)
	if !ok {
		m.unnamed++
		return
	}
	if pr.role == roleEntry {
		m.joiner.Enter(&spans.Entry{Func: pr.fn, Flow: flow, TID: h.TID, Nanos: h.Nanos, Depth: vs[pr.depth].Num, Decided: m.sampling != nil && pr.remote < 0, Attrs: func() []otlp.Attr { return m.attrs(pr, vs) }, Remote: func() (spans.Remote, bool) { return pr.remoteOf(vs) }, Carried: pr.carriedOf(vs)})
		return
	}
	how := func() spans.Ended {
		e := spans.Ended{Attrs: m.attrs(pr, vs)}
		switch {
		case h.Left: // it is known how
		case vs[pr.failed].Num != 0 && !vs[pr.failed].Unknown:
			e.Failed, e.Reason = true, "the last result is an error"
		case pr.failing != nil && pr.failing.Match(vs, &fetch.FilterHit{IP: h.Addr(), Ret: h.Caller, PID: uint64(h.TID), CPU: uint64(h.CPU), Comm: comm}):
			e.Failed, e.Reason = true, pr.call.Failing
		}
		return e
	}
	if m.nester != nil {
		c := &spans.Call{Func: pr.fn, Flow: flow, TID: h.TID, Nanos: h.Nanos, Entered: vs[pr.entered].Num, Took: vs[pr.took].Num, Ended: how(), Left: h.Left, Carried: pr.carriedOf(vs)}
		if r, ok := pr.remoteOf(vs); ok {
			c.Remote = &r
		}
		m.nester.Leave(c)
		return
	}
	m.joiner.Leave(pr.fn, flow, h.Nanos, vs[pr.depth].Num, how)
}

// flowOf is what the calls of a hit nest in: the goroutine, else the thread, and of a kernel's idle threads, which have one number, the CPU.
func (m *Maker) flowOf(h *hit.Hit) (f spans.Flow, ok bool) {
	switch {
	case h.GoID != 0:
		return spans.Flow{GoID: h.GoID}, true
	case h.TID != 0:
		return spans.Flow{TID: h.TID}, true
	}
	return spans.Flow{TID: -1 - h.CPU}, m.guest
}

// remoteOf is the span of another program that a call is in, by an argument.
func (p *spanProbe) remoteOf(vs []fetch.Value) (spans.Remote, bool) {
	if p.remote < 0 {
		return spans.Remote{}, false
	}
	return spans.ParseTraceparent(string(vs[p.remote].Str))
}

// learn finds a probe by the event of its hits, and where its arguments are; nil: it makes no spans.
func (m *Maker) learn(e *hit.Event) *spanProbe {
	m.known[e] = nil
	of := m.probes[e.Group+"/"+e.Name]
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
			if pr.role != roleReturn || pr.call.Entry == nil || !slices.ContainsFunc(pr.call.Entry.Args, func(o event.Arg) bool { return o.Name == a.Name }) {
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
	if pr.role == roleReturn && pr.call.Failing != "" {
		f, err := failingOf(pr.call, e.Prog)
		if err != nil {
			m.tell(Defect, "%s %q: %v: calls of %s are no spans", m.o.Words.Error, pr.call.Failing, err, pr.fn.Symbol)
			return nil
		}
		pr.failing, pr.comm = f, true
	}
	m.known[e] = &pr
	return &pr
}

// attrs makes attributes of a hit's arguments. What is not known is none, nor is what could not be read of an attribute with dots, whose type
// a convention tells.
func (m *Maker) attrs(pr *spanProbe, vs []fetch.Value) []otlp.Attr {
	var out []otlp.Attr
	for _, i := range pr.args {
		v := &vs[i]
		key := pr.call.attribute(v.Arg.Name)
		switch dotted := strings.Contains(key, "."); {
		case v.Unknown, dotted && maybeAbsent(v):
		case !dotted:
			out = append(out, otlp.Attr{Key: key, Value: m.attr(v)})
		default:
			if a := m.attr(v); a != fault {
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
func (m *Maker) attr(v *fetch.Value) any {
	switch {
	case v.Arg.Count > 0:
		all, _ := v.Any().([]any)
		for i := range all {
			all[i] = attrOf(all[i])
		}
		return all
	case v.Arg.Type.Kind == event.Symbol || v.Arg.Type.Kind == event.SymStr:
		return string(fetch.AppendSym(nil, v.Num, m.o.Names.Symbol))
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

// Lost takes that hits were lost.
func (m *Maker) Lost() {
	if m.joiner != nil {
		m.joiner.Lost()
	}
}

// Idle hands over what need not wait any longer. It is called when no hit waits.
func (m *Maker) Idle() {
	if m.nester != nil && !m.guest {
		m.nester.Now(uint64(monotonic()))
	}
}

// UnixOffset is what a time of CLOCK_MONOTONIC becomes nanoseconds since 1970 by. Of a few readings the one is taken during which the
// least time has passed.
func UnixOffset() (offset int64) {
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

package spans

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/internal/otlp"
)

// program is a program that calls, and knows for itself what calls what. Each call has a number, which is the only attribute that it records.
type program struct {
	rnd    *rand.Rand
	now    uint64
	calls  int
	flows  []*strand
	parent map[int]int  // of each call, the call that it is in; 0: none
	failed map[int]bool // was left
	wants  map[int]bool // has ended
}

// strand is a goroutine of the program.
type strand struct {
	on    Flow
	in    int // what it was created in
	stack []running
}

type running struct {
	n     int
	depth uint64
	since uint64
}

func newProgram(seed uint64) *program {
	p := &program{rnd: rand.New(rand.NewPCG(seed, 1)), parent: map[int]int{}, failed: map[int]bool{}, wants: map[int]bool{}}
	p.flows = []*strand{{on: Flow{GoID: 1}}}
	return p
}

// at is the innermost call, and its depth.
func (s *strand) at() (n int, depth uint64) {
	if len(s.stack) == 0 {
		return s.in, 0
	}
	top := s.stack[len(s.stack)-1]
	return top.n, top.depth
}

var functions = []*Func{{Name: "a", Symbol: "main.a"}, {Name: "b", Symbol: "main.b"}}

// enter has a strand call; frames without probes may lie between.
func (p *program) enter(s *strand) running {
	n, depth := s.at()
	p.calls++
	p.parent[p.calls] = n
	r := running{n: p.calls, depth: depth + 16 + 8*p.rnd.Uint64N(4), since: p.now}
	s.stack = append(s.stack, r)
	return r
}

// leave has a strand's innermost call end.
func (p *program) leave(s *strand, failed bool) running {
	r := s.stack[len(s.stack)-1]
	s.stack = s.stack[:len(s.stack)-1]
	p.wants[r.n], p.failed[r.n] = true, failed
	return r
}

// number is the attribute of a call.
func number(n int) []otlp.Attr { return []otlp.Attr{{Key: "n", Value: int64(n)}} }

// numberOf gives the number of a span's call.
func numberOf(t *testing.T, s *otlp.Span) int {
	t.Helper()
	for _, a := range s.Attrs {
		if a.Key == "n" {
			return int(a.Value.(int64))
		}
	}
	t.Fatalf("span without a number: %+v", s)
	return 0
}

// compare compares spans with the calls of the program that have ended.
func (p *program) compare(t *testing.T, got []*otlp.Span) {
	t.Helper()
	calls, ids, traces := map[otlp.SpanID]int{}, map[int]*otlp.Span{}, map[otlp.TraceID]int{}
	for _, s := range got {
		n := numberOf(t, s)
		if ids[n] != nil || calls[s.ID] != 0 || s.ID == (otlp.SpanID{}) || s.Trace == (otlp.TraceID{}) {
			t.Fatalf("call %d has two spans, or one without ids", n)
		}
		calls[s.ID], ids[n] = n, s
	}
	for n, s := range ids {
		if !p.wants[n] || s.Name != functions[n%2].Name || (s.Status == otlp.StatusError) != p.failed[n] {
			t.Fatalf("call %d: ended %v, left %v: %+v", n, p.wants[n], p.failed[n], s)
		}
		if up := p.parent[n]; up == 0 {
			if s.Parent != (otlp.SpanID{}) || traces[s.Trace] != 0 {
				t.Fatalf("call %d is the first of its trace: %+v", n, s)
			}
			traces[s.Trace] = n
		} else if of := ids[up]; of != nil && (s.Parent != of.ID || s.Trace != of.Trace) {
			t.Fatalf("call %d is in %d: %+v, %+v", n, up, s, of)
		}
	}
	if len(got) != len(p.wants) {
		t.Errorf("%d spans of %d calls", len(got), len(p.wants))
	}
}

// TestJoiner has goroutines call, return, panic and recover, and create others, at random: each call is a span, and its parent is the call
// that it was in.
func TestJoiner(t *testing.T) {
	for seed := range uint64(20) {
		p := newProgram(seed)
		var got []*otlp.Span
		j := NewJoiner(Options{OneStack: true, Emit: func(s *otlp.Span) { got = append(got, s) }})
		for range 4000 {
			p.now += 10
			i := p.rnd.IntN(len(p.flows))
			s := p.flows[i]
			switch k := p.rnd.IntN(20); {
			case k < 9 || len(s.stack) == 0:
				r := p.enter(s)
				j.Enter(&Entry{Func: functions[r.n%2], Flow: s.on, TID: p.rnd.IntN(4), Nanos: p.now, Depth: r.depth, Attrs: func() []otlp.Attr { return number(r.n) }})
			case k < 17:
				r := p.leave(s, false)
				j.Leave(functions[r.n%2], s.on, p.now, r.depth, func() Ended { return Ended{} })
			case k == 17: // some calls are left, down to one that need not have a probe
				depth := s.stack[p.rnd.IntN(len(s.stack))].depth - 8
				for len(s.stack) > 0 && s.stack[len(s.stack)-1].depth > depth {
					p.leave(s, true)
				}
				j.Recovered(s.on.GoID, p.now, depth)
			case k == 18:
				n, _ := s.at()
				new := &strand{on: Flow{GoID: uint64(len(p.flows) + 1)}, in: n}
				p.flows = append(p.flows, new)
				j.Created(s.on, new.on.GoID)
			default:
				for len(s.stack) > 0 {
					p.leave(s, true)
				}
				j.Ended(s.on.GoID, p.now)
				s.in = 0
			}
		}
		active := 0
		for _, s := range p.flows {
			active += len(s.stack)
		}
		st := j.Stats()
		p.compare(t, got)
		if st.Spans != uint64(len(got)) || st.Unjoined+st.Unsampled+st.Unfollowed != 0 || st.Active != uint64(active) || st.Left != st.Errors || st.Left == 0 {
			t.Errorf("seed %d: %+v, %d in progress", seed, st, active)
		}
		if j.open != active {
			t.Errorf("%d open, %d in progress", j.open, active)
		}
	}
}

// TestNester has the same program without panics, of which the returns alone are told: of all calls, or of those that take long.
func TestNester(t *testing.T) {
	for seed := range uint64(20) {
		p := newProgram(seed)
		slower := 100 * (seed % 3)
		var got []*otlp.Span
		n := NewNester(Options{Wait: 1 << 40, Emit: func(s *otlp.Span) { got = append(got, s) }})
		passed := map[int]bool{}
		for i := range 6000 {
			p.now += 10
			if i%7 == 0 && len(p.flows) < 8 {
				p.flows = append(p.flows, &strand{on: Flow{TID: len(p.flows)}})
			}
			s := p.flows[p.rnd.IntN(len(p.flows))]
			if len(s.stack) == 0 || i < 5000 && p.rnd.IntN(2) == 0 {
				p.enter(s)
				continue
			}
			r := p.leave(s, false)
			if p.now-r.since < slower {
				delete(p.wants, r.n)
				continue
			}
			passed[r.n] = true
			n.Leave(&Call{Func: functions[r.n%2], Flow: s.on, Nanos: p.now, Entered: r.since, Took: p.now - r.since, Ended: Ended{Attrs: number(r.n)}})
		}
		n.Close()
		for c := range p.parent { // a call in progress at the end encloses nothing that was told of
			if !passed[p.parent[c]] {
				p.parent[c] = 0
			}
		}
		p.compare(t, got)
		if st := n.Stats(); st.Spans != uint64(len(got)) || st.Split+st.Unsampled != 0 || n.held != 0 || len(n.queue) != 0 {
			t.Errorf("%+v, %d held", st, n.held)
		}
		for _, s := range got {
			if s.Start >= s.End {
				t.Errorf("from %d to %d", s.Start, s.End)
			}
		}
	}
}

// script is what a test tells a Joiner, and the spans that it expects: NAME<PARENT, with ! for an error.
type script struct {
	j   *Joiner
	got []*otlp.Span
	now uint64
}

func newScript(o Options) *script {
	s := &script{}
	o.Emit = func(one *otlp.Span) { s.got = append(s.got, one) }
	s.j = NewJoiner(o)
	return s
}

var thread = Flow{TID: 7}

func (s *script) enter(fn *Func, depth uint64) {
	s.now++
	s.j.Enter(&Entry{Func: fn, Flow: thread, TID: 7, Nanos: s.now, Depth: depth, Attrs: func() []otlp.Attr { return nil }})
}

func (s *script) leave(fn *Func, depth uint64) {
	s.now++
	s.j.Leave(fn, thread, s.now, depth, func() Ended { return Ended{} })
}

func (s *script) String() string {
	names := map[otlp.SpanID]string{{}: "-"}
	for _, one := range s.got {
		names[one.ID] = one.Name
	}
	out := ""
	for _, one := range s.got {
		out += one.Name + "<" + names[one.Parent]
		if one.Status == otlp.StatusError {
			out += "!"
		}
		out += " "
	}
	return out
}

// TestLeft has calls that are left, which is seen by what comes behind.
func TestLeft(t *testing.T) {
	f, g, h := &Func{Name: "f"}, &Func{Name: "g"}, &Func{Name: "h"}
	by := &Func{Name: "by", Trampoline: true}
	for _, tt := range []struct {
		name string
		do   func(s *script)
		want string
		st   Stats
	}{
		{"same place", func(s *script) {
			s.enter(f, 100)
			s.enter(g, 200) // left
			s.enter(h, 200)
			s.leave(h, 200)
			s.leave(f, 100)
		}, "g<f! h<f f<- ", Stats{Spans: 3, Errors: 1, Left: 1}},
		{"further out", func(s *script) {
			s.enter(f, 100)
			s.enter(g, 200)
			s.enter(g, 300) // both are left
			s.enter(h, 150)
			s.leave(h, 150)
			s.leave(f, 100)
		}, "g<g! g<f! h<f f<- ", Stats{Spans: 4, Errors: 2, Left: 2}},
		{"outer return", func(s *script) {
			s.enter(f, 100)
			s.enter(g, 200)
			s.leave(f, 100)
		}, "g<f! f<- ", Stats{Spans: 2, Errors: 1, Left: 1}},
		{"jump to another function, by trampoline", func(s *script) {
			s.enter(by, 100)
			s.enter(g, 100)
			s.leave(g, 100)
			s.leave(by, 100)
		}, "g<by by<- ", Stats{Spans: 2}},
		{"the same again, by trampoline", func(s *script) {
			s.enter(by, 100)
			s.enter(by, 100)
			s.leave(by, 100)
		}, "by<-! by<- ", Stats{Spans: 2, Errors: 1, Left: 1}},
		{"handler on another stack", func(s *script) {
			s.enter(f, 5<<30)
			s.enter(g, 1<<30) // far away
			s.leave(g, 1<<30)
			s.leave(f, 5<<30)
		}, "g<f f<- ", Stats{Spans: 2}},
		{"unknown return", func(s *script) {
			s.leave(g, 100)
			s.enter(f, 100)
			s.leave(g, 100)
			s.leave(f, 108)
			s.leave(f, 100)
		}, "f<- ", Stats{Spans: 1, Unjoined: 3}},
		{"lost", func(s *script) {
			s.enter(f, 100)
			s.enter(g, 200)
			s.j.Lost()
			s.enter(h, 200)
			s.leave(h, 200)
			s.leave(f, 100)
		}, "h<f f<- ", Stats{Spans: 2, Unjoined: 1}},
		{"in progress", func(s *script) {
			s.enter(f, 100)
			s.enter(g, 200)
			s.leave(g, 200)
		}, "g<", Stats{Spans: 1, Active: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScript(Options{OneStack: true})
			tt.do(s)
			if got, st := s.String(), s.j.Stats(); got != tt.want && got != tt.want+" " || st != tt.st {
				t.Errorf("%s, %+v; not %s, %+v", got, st, tt.want, tt.st)
			}
		})
	}
}

// TestLost has the return of g lost in the ring, at a time by the clock: calls that were entered before then may have returned, later ones
// have not.
func TestLost(t *testing.T) {
	for _, clock := range []bool{true, false} {
		lost, now := uint64(0), uint64(0)
		f, h := &Func{Name: "f"}, &Func{Name: "h"}
		g := &Func{Name: "g", Lost: func() uint64 { return lost }}
		o := Options{OneStack: true}
		if clock {
			o.Now = func() uint64 { return now }
		}
		s := newScript(o)
		left := func() {
			s.enter(g, 200)
			s.enter(h, 200)
			s.leave(h, 200)
		}
		s.enter(f, 100)
		left() // from 2 on: really left
		lost, now = 1, 50
		s.now = 39
		left() // from 40 on: it has returned, or not
		s.now = 59
		left() // from 60 on: really left; but without a clock nobody knows
		s.leave(f, 100)
		want, st := "g<f! h<f h<f g<f! h<f f<- ", Stats{Spans: 6, Errors: 2, Left: 2, Unjoined: 1}
		if !clock {
			want, st = "g<f! h<f h<f h<f f<- ", Stats{Spans: 5, Errors: 1, Left: 1, Unjoined: 2}
		}
		if s.String() != want || s.j.Stats() != st {
			t.Errorf("clock %v: %s, %+v; not %s, %+v", clock, s, s.j.Stats(), want, st)
		}
	}
}

// TestKernelStacks has an interrupt whose stack lies just above that of the task.
func TestKernelStacks(t *testing.T) {
	f, g := &Func{Name: "f"}, &Func{Name: "g"}
	s := newScript(Options{})
	s.enter(f, 5000)
	s.enter(g, 1000)
	s.leave(g, 1000)
	s.leave(f, 5000)
	if s.String() != "g<f f<- " || s.j.Stats() != (Stats{Spans: 2}) {
		t.Errorf("%s, %+v", s, s.j.Stats())
	}
}

// TestSample keeps one in three traces, as wholes, those of goroutines too that are created in them.
func TestSample(t *testing.T) {
	f, g := &Func{Name: "f"}, &Func{Name: "g"}
	s := newScript(Options{Sample: 3, OneStack: true, Unix: 1000})
	attrs := 0
	for i := range uint64(10) {
		s.enter(f, 100)
		s.enter(g, 200)
		goid := Flow{GoID: i + 1}
		s.j.Created(thread, goid.GoID)
		s.leave(g, 200)
		s.leave(f, 100)
		s.j.Enter(&Entry{Func: g, Flow: goid, Nanos: s.now, Depth: 8, Attrs: func() []otlp.Attr {
			attrs++
			return nil
		}})
		s.j.Leave(g, goid, s.now, 8, func() Ended { return Ended{Failed: true, Type: "t", Reason: "r"} })
		s.j.Ended(goid.GoID, s.now)
	}
	if st := s.j.Stats(); st != (Stats{Spans: 12, Errors: 4, Unsampled: 18}) || attrs != 4 || len(s.j.flows) != 0 || s.j.open+s.j.links != 0 {
		t.Errorf("%+v, %d of goroutines, %d flows", st, attrs, len(s.j.flows))
	}
	traces := map[otlp.TraceID]string{}
	for _, one := range s.got {
		traces[one.Trace] += one.Name
		if one.Start < 1000 || one.End < one.Start {
			t.Errorf("from %d to %d", one.Start, one.End)
		}
	}
	for _, names := range traces {
		if names != "gfg" || len(traces) != 4 {
			t.Errorf("%d traces, one of %s", len(traces), names)
		}
	}
}

// TestUnlinked has more goroutines than are remembered, of which none is seen to end.
func TestUnlinked(t *testing.T) {
	f := &Func{Name: "f"}
	s := newScript(Options{OneStack: true})
	s.enter(f, 100)
	for i := range uint64(maxOpen + 1) {
		s.j.Created(thread, i+1)
	}
	for i, n := range []int{maxOpen, maxOpen + 1} { // the last one is remembered
		on := Flow{GoID: uint64(n)}
		s.j.Enter(&Entry{Func: f, Flow: on, Depth: 1, Attrs: func() []otlp.Attr { return nil }})
		s.j.Leave(f, on, s.now, 1, func() Ended { return Ended{} })
		if in := s.got[i].Parent != (otlp.SpanID{}); in != (i == 1) {
			t.Errorf("goroutine %d: %v", n, in)
		}
	}
	if st := s.j.Stats(); st != (Stats{Spans: 2, Unfollowed: maxOpen, Active: 1}) || s.j.links != 1 || len(s.j.flows) != 2 {
		t.Errorf("%+v, %d links, %d flows", st, s.j.links, len(s.j.flows))
	}
}

// TestTraceparent reads headers, good and bad ones.
func TestTraceparent(t *testing.T) {
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for text, want := range map[string]string{
		"00-" + trace + "-" + span + "-01":                    trace + span + "true",
		"00-" + trace + "-" + span + "-00":                    trace + span + "false",
		"00-" + trace + "-" + span + "-03":                    trace + span + "true",
		"cc-" + trace + "-" + span + "-01":                    trace + span + "true",
		"cc-" + trace + "-" + span + "-01-more":               trace + span + "true",
		"00-" + trace + "-" + span + "-01-":                   "",
		"ff-" + trace + "-" + span + "-01":                    "",
		"00-" + trace + "-" + span:                            "",
		"00-" + trace + "-" + span + "-1":                     "",
		"00-" + trace + "-" + span + "-0x":                    "",
		"00-" + trace[:31] + "-" + span + "-01":               "",
		"00-" + trace[:31] + "C-" + span + "-01":              "",
		"00-00000000000000000000000000000000-" + span + "-01": "",
		"00-" + trace + "-0000000000000000-01":                "",
		"":                                                    "",
	} {
		r, ok := ParseTraceparent(text)
		got := ""
		if ok {
			got = fmt.Sprintf("%v%v%v", r.Trace, r.Span, r.Sampled)
		}
		if got != want {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
	}
}

// TestRemote has calls that are in spans of another program, which says whether their traces are kept.
func TestRemote(t *testing.T) {
	f, g := &Func{Name: "f"}, &Func{Name: "g"}
	for _, sampled := range []bool{true, false} {
		r := Remote{Trace: otlp.TraceID{1}, Span: otlp.SpanID{2}, Sampled: sampled}
		s := newScript(Options{Sample: 1000, OneStack: true})
		for _, fn := range []*Func{f, g} {
			s.j.Enter(&Entry{Func: fn, Flow: thread, Depth: s.now, Attrs: func() []otlp.Attr { return nil }, Remote: func() (Remote, bool) { return r, true }})
			s.now++
		}
		s.now = 1
		s.leave(g, 1)
		s.leave(f, 0)
		n := NewNester(Options{Sample: 1000, Wait: 100, Emit: s.j.o.Emit})
		n.Leave(&Call{Func: g, Flow: thread, Nanos: 30, Entered: 20, Took: 10, Remote: &Remote{}})
		n.Leave(&Call{Func: f, Flow: thread, Nanos: 40, Entered: 10, Took: 30, Remote: &r})
		n.Close()
		if !sampled {
			if len(s.got) != 0 || s.j.Stats() != (Stats{Unsampled: 2}) || n.Stats() != (Stats{Unsampled: 2}) {
				t.Errorf("%+v, %+v, %v", s.j.Stats(), n.Stats(), s.got)
			}
			continue
		}
		if len(s.got) != 4 {
			t.Fatalf("%d spans", len(s.got))
		}
		for i := 0; i < 4; i += 2 {
			in, out := s.got[i], s.got[i+1]
			if out.Trace != r.Trace || out.Parent != r.Span || !out.Remote || out.Kind != otlp.KindServer || in.Trace != r.Trace || in.Parent != out.ID || in.Remote || in.Kind != otlp.KindInternal {
				t.Errorf("%+v in %+v", in, out)
			}
		}
	}
}

// TestKind: spans are of the kind that their function has, also if their call is in a span of another program.
func TestKind(t *testing.T) {
	for kind, want := range map[otlp.Kind][2]otlp.Kind{0: {otlp.KindInternal, otlp.KindServer}, otlp.KindInternal: {otlp.KindInternal, otlp.KindInternal}, otlp.KindConsumer: {otlp.KindConsumer, otlp.KindConsumer}} {
		f := &Func{Name: "f", Kind: kind}
		for i, r := range []*Remote{nil, {Trace: otlp.TraceID{1}, Span: otlp.SpanID{2}, Sampled: true}} {
			s := newScript(Options{OneStack: true})
			e := &Entry{Func: f, Flow: thread, Attrs: func() []otlp.Attr { return nil }}
			if r != nil {
				e.Remote = func() (Remote, bool) { return *r, true }
			}
			s.j.Enter(e)
			s.leave(f, 0)
			n := NewNester(Options{Emit: s.j.o.Emit})
			n.Leave(&Call{Func: f, Flow: thread, Nanos: 30, Entered: 20, Took: 10, Remote: r})
			n.Close()
			if len(s.got) != 2 || s.got[0].Kind != want[i] || s.got[1].Kind != want[i] {
				t.Errorf("%d: %+v, not %d", kind, s.got, want[i])
			}
		}
	}
}

// TestHeld has a call that takes longer than others are held: it begins a trace of its own, which is counted.
func TestHeld(t *testing.T) {
	f := &Func{Name: "f"}
	var got []string
	n := NewNester(Options{Wait: 100, Emit: func(s *otlp.Span) { got = append(got, fmt.Sprintf("%d<%v", s.End, s.Parent != otlp.SpanID{})) }})
	call := func(from, to uint64) {
		n.Leave(&Call{Func: f, Flow: thread, Nanos: to, Entered: from, Took: to - from})
	}
	call(10, 20)
	call(30, 40)
	n.Now(139)
	call(5, 141) // encloses both, but the first was sent at 120
	n.Now(240)
	n.Now(241)
	if want := "[20<false 40<true 141<false]"; fmt.Sprint(got) != want {
		t.Errorf("%v, not %s", got, want)
	}
	if st := n.Stats(); st != (Stats{Spans: 3, Split: 1}) {
		t.Errorf("%+v", st)
	}
}

// TestDecided has traces some of which are kept for sure: only the others count for one in so many.
func TestDecided(t *testing.T) {
	s := newScript(Options{OneStack: true, Sample: 3})
	f, g := &Func{Name: "f"}, &Func{Name: "g"}
	for i := range 12 {
		fn := []*Func{f, g}[i%2]
		s.now++
		s.j.Enter(&Entry{Func: fn, Flow: thread, TID: 7, Nanos: s.now, Depth: 100, Decided: fn == f, Attrs: func() []otlp.Attr { return nil }})
		s.leave(fn, 100)
	}
	if have, want := s.String(), "f<- g<- f<- f<- f<- g<- f<- f<- "; have != want || s.j.Stats().Unsampled != 4 {
		t.Errorf("%q, want %q: %+v", have, want, s.j.Stats())
	}
}

// TestCarried has calls with contexts that carry spans of the program's own: such a span is the parent, or the innermost call around, or that the
// goroutine was created in, whose context carries the same.
func TestCarried(t *testing.T) {
	of := func(n byte) *Carried {
		return &Carried{Trace: otlp.TraceID{n}, Span: otlp.SpanID{n}, Sampled: n != 9, Remote: n == 8}
	}
	s := newScript(Options{OneStack: true})
	n := NewNester(Options{Wait: 1 << 30, Emit: s.j.o.Emit})
	names := map[otlp.SpanID]string{}
	for i := range byte(10) {
		names[otlp.SpanID{i}] = fmt.Sprint(i)
	}
	// Calls of two goroutines: the number of the one that each is in, and what its context carries; -1: it could not be read.
	calls := []struct {
		name    string
		in      int
		on      uint64
		carried int
		want    string
	}{
		{"a", -1, 1, 0, "a<new"},
		{"b", 0, 1, 1, "b<1"},
		{"c", 1, 1, 1, "c<b"},
		{"d", 2, 1, 0, "d<c"},
		{"e", 3, 1, 2, "e<2"},
		{"f", 4, 1, 1, "f<d"},
		{"g", 5, 1, -1, "g<f"},
		{"h", 6, 1, 9, ""},
		{"i", 7, 1, 0, ""},
		{"j", 8, 1, 8, "j<8 remote"},
		{"k", 9, 2, 8, "k<j"},
		{"l", 10, 2, 7, "l<7"},
	}
	funcs := make([]*Func, len(calls))
	for i, c := range calls {
		funcs[i] = &Func{Name: c.name}
		e := &Entry{Func: funcs[i], Flow: Flow{GoID: c.on}, Nanos: uint64(i), Depth: uint64(i), Attrs: func() []otlp.Attr { return nil }}
		if e.Carried = of(byte(c.carried)); c.carried == 0 {
			e.Carried = nil
		} else if c.carried < 0 {
			e.Carried = &Carried{Unread: true}
		}
		if c.name == "k" {
			s.j.Created(Flow{GoID: 1}, 2)
		}
		s.j.Enter(e)
	}
	for i := len(calls) - 1; i >= 0; i-- {
		s.j.Leave(funcs[i], Flow{GoID: calls[i].on}, uint64(50-i), uint64(i), func() Ended { return Ended{} })
		c := &Call{Func: funcs[i], Flow: thread, Nanos: uint64(50 - i), Entered: uint64(1 + i), Took: uint64(50 - 2*i)}
		if n := calls[i].carried; n > 0 {
			c.Carried = of(byte(n))
		} else if n < 0 {
			c.Carried = &Carried{Unread: true}
		}
		n.Leave(c)
	}
	n.Close()
	for _, sp := range s.got {
		names[sp.ID] = sp.Name
	}
	have, want := map[string]int{}, map[string]int{}
	for _, sp := range s.got {
		in := names[sp.Parent]
		if sp.Parent == (otlp.SpanID{}) {
			in = "new"
		}
		if text := sp.Name + "<" + in; sp.Remote {
			have[text+" remote"]++
		} else {
			have[text]++
		}
		if outside := in >= "0" && in <= "9"; sp.Outside != outside || outside && sp.Trace != (otlp.TraceID{sp.Parent[0]}) {
			t.Errorf("%+v", sp)
		}
	}
	for _, c := range calls {
		if c.want != "" {
			want[c.want] = 2 // by both
		}
	}
	if fmt.Sprint(have) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", have, want)
	}
	for _, st := range []Stats{s.j.Stats(), n.Stats()} {
		if st != (Stats{Spans: 10, Unsampled: 2, Unread: 1}) {
			t.Errorf("%+v", st)
		}
	}
}

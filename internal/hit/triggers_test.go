package hit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// triggerSet is a set of triggers of the events a, b and c, which record a number n.
type triggerSet struct {
	testing.TB
	*Triggers
	prog *fetch.Program
}

func newTriggerSet(t *testing.T) *triggerSet {
	t.Helper()
	s := &triggerSet{t, NewTriggers(), program(t, "p serve n=%di:u64", fetch.PointEntry)}
	for _, name := range []string{"a", "b", "c"} {
		s.Event("g", name, s.prog, func(filter string) (*fetch.Filter, error) { return s.prog.Filter(filter, fetch.FilterEnv{}) })
	}
	return s
}

// add adds `EVENT TRIGGER`, or the event's filter by `EVENT -f FILTER`.
func (s *triggerSet) add(text string) (*Histogram, error) {
	ev, text, _ := strings.Cut(text, " ")
	if filter, ok := strings.CutPrefix(text, "-f "); ok {
		return nil, s.Filter("g", ev, filter)
	}
	def, err := event.ParseTrigger(text)
	if err != nil {
		return nil, err
	}
	return s.Add("g", ev, def)
}

func (s *triggerSet) must(all ...string) (last *Histogram) {
	s.Helper()
	for _, text := range all {
		h, err := s.add(text)
		if err != nil {
			s.Fatalf("%s: %v", text, err)
		}
		last = h
	}
	return last
}

// hits has events hit with a number, `a1`, and gives what is shown: `a1`, with its stack `a1+`, and a stack alone `+a1`.
func (s *triggerSet) hits(all string) string {
	var out []string
	for i, one := range strings.Fields(all) {
		n, err := strconv.ParseUint(one[1:], 10, 64)
		if err != nil {
			s.Fatal(err)
		}
		h := Hit{Event: &Event{Group: "g", Name: one[:1], Prog: s.prog, ArgsOff: 16}, Nanos: uint64(i), TID: 7, Rec: record(n)}
		switch v := s.Hit(&h, testNames{}); v {
		case Shown{Line: true}:
			out = append(out, one)
		case Shown{Line: true, Stack: true}:
			out = append(out, one+"+")
		case Shown{Stack: true}:
			out = append(out, "+"+one)
		}
	}
	return strings.Join(out, " ")
}

// TestTriggers has what is shown of hits; a guest's kernel shows the same of most of the cases (TestTriggers in target/guest).
func TestTriggers(t *testing.T) {
	const all = "a1 b1 a2 b2 a3 b3 a4 b4 a5 b5"
	for _, c := range []struct {
		triggers []string
		hits     string
		want     string
	}{
		{nil, all, all},
		// The hit at which tracing is switched off is shown.
		{[]string{"a traceoff if n == 3"}, all, "a1 b1 a2 b2 a3"},
		{[]string{"a traceoff"}, all, "a1"},
		{[]string{"a traceoff:0"}, all, all},
		// The hit at which it is switched on is shown, unless a trigger of its event needs the record.
		{[]string{"a traceon:1"}, "b1 a2 b3", "a2 b3"},
		{[]string{"a traceon if n == 3"}, all, "b3 a4 b4 a5 b5"},
		{[]string{"a traceon if n == 3", "a -f n != 2"}, all, "a3 b3 a4 b4 a5 b5"},
		{[]string{"a traceon", "a stacktrace"}, all, "+a1 b1 a2+ b2 a3+ b3 a4+ b4 a5+ b5"},
		// The first trigger that switches something says how that begins.
		{[]string{"a traceon if n == 2", "b traceoff if n == 4"}, all, "b2 a3 b3 a4 b4"},
		{[]string{"b traceoff if n == 2", "a traceon if n == 4"}, all, "a1 b1 a2 b2 b4 a5 b5"},
		{[]string{"a enable_event:g:b if n == 2", "a disable_event:g:c if n == 2"}, "a1 b1 c1 a2 b2 c2", "a1 c1 a2 b2"},
		{[]string{"a enable_event:g:b if n == 2", "c disable_event:g:b"}, "a1 b1 a2 b2 c2 b3", "a1 a2 b2 c2"},
		{[]string{"c disable_event:g:b", "a enable_event:g:b if n == 2"}, "b0 c0 b1 a2 b2", "b0 c0 a2 b2"},
		// An event switches itself.
		{[]string{"a enable_event:g:a if n == 3"}, all, "b1 b2 a3 b3 a4 b4 a5 b5"},
		{[]string{"a enable_event:g:a"}, all, "b1 a2 b2 a3 b3 a4 b4 a5 b5"},
		{[]string{"a disable_event:g:a if n == 3"}, all, "a1 b1 a2 b2 b3 b4 b5"},
		{[]string{"a disable_event:g:a"}, all, "b1 b2 b3 b4 b5"},
		// Triggers act at hits that are not shown.
		{[]string{"a -f n > 3", "a traceoff if n == 2"}, all, "b1"},
		{[]string{"a -f n > 3", "a stacktrace:2"}, "a1 a4 a5", "+a1 a4+ a5"},
		{[]string{"b enable_event:g:a if n == 4", "a stacktrace if n == 1"}, all, "+a1 b1 b2 b3 b4 a5 b5"},
		{[]string{"a stacktrace if n != 4", "b traceoff if n == 2", "c traceon"}, all + " c1 a6", "a1+ b1 a2+ b2 c1 a6+"},
		// A count goes down when there was something to do, and the trigger's filter let the hit pass.
		{[]string{"a stacktrace:2"}, all, "a1+ b1 a2+ b2 a3 b3 a4 b4 a5 b5"},
		{[]string{"a stacktrace:2 if n > 2"}, all, "a1 b1 a2 b2 a3+ b3 a4+ b4 a5 b5"},
		{[]string{"b traceoff:1 if n == 2", "a traceon:1"}, all, "a1 b1 a2 b2 a3 b3 a4 b4 a5 b5"},
		{[]string{"b traceoff:1", "a traceon:1"}, all, "a1 b1 a2 b2 a3 b3 a4 b4 a5 b5"},
		{[]string{"b traceoff:2", "a traceon:1"}, all, "a1 b1 a2 b2"},
		{[]string{"a enable_event:g:c:1", "b disable_event:g:c:2"}, "a1 c1 a2 c2 b3 c3 b4 a5 c5", "a1 c1 a2 c2 b3 b4 a5"},
		// The last one acts first: of a stack and traceoff the last one wins.
		{[]string{"a traceoff if n == 2", "a stacktrace"}, all, "a1+ b1 a2+"},
		{[]string{"a stacktrace:2", "a traceoff if n == 2"}, all, "a1+ b1 a2"},
	} {
		s := newTriggerSet(t)
		s.must(c.triggers...)
		if got := s.hits(c.hits); got != c.want {
			t.Errorf("%q:\n%s, want\n%s", c.triggers, got, c.want)
		}
	}
}

// TestTriggerFiltered counts what a filter does not let pass, and shows an event that the set does not know.
func TestTriggerFiltered(t *testing.T) {
	s := newTriggerSet(t)
	s.must("a -f n > 3", "a traceoff if n == 2")
	s.hits("a1 a2 a3 a4 a5 b1")
	if n, ok := s.Filtered("g", "a"); n != 3 || !ok {
		t.Errorf("%d hits of a did not pass, %v", n, ok)
	}
	for _, name := range []string{"b", "none"} {
		if n, ok := s.Filtered("g", name); n != 0 || ok {
			t.Errorf("%s has a filter: %d", name, n)
		}
	}
	if got := newTriggerSet(t).Hit(&Hit{Event: &Event{Group: "other", Name: "a"}}, testNames{}); got != (Shown{Line: true}) {
		t.Errorf("an event of which nothing was told: %+v", got)
	}
	damaged := Hit{Event: &Event{Group: "g", Name: "a", Prog: s.prog, ArgsOff: 16}, Rec: record()}
	if got := s.Hit(&damaged, testNames{}); got != (Shown{}) {
		t.Errorf("a damaged record while tracing is off: %+v", got)
	}
	s = newTriggerSet(t)
	s.must("a traceoff if n == 0")
	if got := s.Hit(&damaged, testNames{}); got != (Shown{Line: true}) {
		t.Errorf("a damaged record: %+v", got)
	}
}

// TestTriggerHistograms has histograms count: also hits that are not shown, and while no trigger pauses them.
func TestTriggerHistograms(t *testing.T) {
	s := newTriggerSet(t)
	odd := s.must("a hist:keys=n:sort=n if n & 1")
	small := s.must("a hist:keys=n:sort=n if n < 4")
	paused := s.must("b hist:keys=n:sort=n:pause")
	s.must("c enable_hist:g:b:1 if n == 1", "b disable_hist:g:b if n == 5", "a -f n == 100", "c traceoff if n == 1")
	if got := s.hits("a1 b1 a2 c1 b2 b3 a3 b5 b6 c1 b7 a5"); got != "b1 c1" {
		t.Errorf("shown: %s", got)
	}
	for _, c := range []struct {
		h    *Histogram
		want string
	}{{odd, "1 3 5"}, {small, "1 2 3"}, {paused, "2 3"}} {
		var got []string
		for _, e := range c.h.sorted() {
			got = append(got, fmt.Sprint(e.keys[0].num))
		}
		if strings.Join(got, " ") != c.want || c.h.Hits() != uint64(len(got)) {
			t.Errorf("%s: %v, want %s", c.h.def, got, c.want)
		}
	}
	if text := string(paused.AppendText(nil, nil)); !strings.Contains(text, " [paused]\n") {
		t.Errorf("not paused any more: %s", text)
	}
}

// TestTriggersRefused has what is wrong with triggers beyond their text.
func TestTriggersRefused(t *testing.T) {
	for _, c := range []struct {
		triggers []string
		want     error
		text     string
	}{
		{[]string{"a traceon", "a traceoff:1 if n == 3"}, syscall.EEXIST, "g:a has traceon:unlimited already: one of a kind is taken (traceon, traceoff)"},
		{[]string{"a traceoff", "a traceoff"}, syscall.EEXIST, "traceoff:unlimited already"},
		{[]string{"a stacktrace:1", "a stacktrace:2"}, syscall.EEXIST, "stacktrace:count=1 already"},
		{[]string{"a enable_event:g:b", "a enable_event:g:c", "a disable_event:g:b:5"}, syscall.EEXIST, "enable_event:g:b:unlimited already: one of a kind is taken for each event"},
		{[]string{"a enable_event:g:b", "a enable_hist:g:b", "a disable_hist:g:b"}, syscall.EEXIST, "enable_hist:g:b:unlimited already"},
		{[]string{"a hist:keys=n", "a hist:keys=n if n > 3", "a hist:keys=n:size=4096"}, syscall.EEXIST, "already: one of a kind is taken of the same keys"},
		{[]string{"a enable_event:g:d"}, syscall.EINVAL, `column 14: there is no event g:d; did you mean "g:a"`},
		{[]string{"a enable_event:other:a"}, syscall.EINVAL, "there is no event other:a"},
		{[]string{"a traceoff if m > 3"}, syscall.EINVAL, "Field not found"},
		{[]string{"a -f m > 3"}, syscall.EINVAL, "Field not found"},
		{[]string{"a hist:keys=m"}, syscall.EINVAL, "Couldn't find field"},
		{[]string{"a hist:keys=n if m > 3"}, syscall.EINVAL, "Field not found"},
		{[]string{"a hist:keys=n:x=n:onmax($x).trace(lat,$x)"}, syscall.EINVAL, "a synthetic event is traced by kprobe hist"},
	} {
		s := newTriggerSet(t)
		last := len(c.triggers) - 1
		s.must(c.triggers[:last]...)
		if _, err := s.add(c.triggers[last]); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%q: %v, want %v, %s", c.triggers, err, c.want, c.text)
		}
	}
	s := newTriggerSet(t)
	s.must("a traceon", "b traceoff", "a stacktrace", "b stacktrace", "a enable_event:g:c", "b disable_event:g:c", "a hist:keys=n", "a hist:keys=n.hex", "b hist:keys=n")
}

// FuzzTriggers adds any triggers to two events, and has these hit: what is taken can act.
func FuzzTriggers(f *testing.F) {
	f.Add("traceon:2 if n > 2", "traceoff if n == 1", "hist:keys=n:x=n:onmax($x).save(n)", "n > 1")
	f.Add("enable_event:g:b:1", "disable_event:g:a if n & 1", "stacktrace", "")
	f.Add("disable_hist:g:b if n == 2", "enable_hist:g:a", "hist:keys=n,common_pid.execname:pause", "common_pid == 7")
	f.Fuzz(func(t *testing.T, one, two, three, filter string) {
		s := newTriggerSet(t)
		for _, text := range []string{"a " + one, "b " + two, "a " + three, "b " + three, "a -f " + filter} {
			if _, err := s.add(text); err != nil && err.Error() == "" {
				t.Fatalf("%q: an error that says nothing", text)
			}
		}
		s.hits("a1 b1 a2 b2 a3 b3 a1 b1")
	})
}

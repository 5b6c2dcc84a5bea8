package hit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// histSet is a set of histograms of three probes: in, out and text.
type histSet struct {
	*testing.T
	*Histograms
	progs map[string]*fetch.Program
	lines []string
}

func newHistSet(t *testing.T, synth ...string) *histSet {
	t.Helper()
	s := &histSet{T: t, Histograms: NewHistograms(), progs: map[string]*fetch.Program{
		"in":   program(t, "p serve id=%di:u64 size=%si:s32 low=%dx:u8", fetch.PointEntry),
		"out":  program(t, "r serve id=%di:u64 got=$retval:s64", fetch.PointReturn),
		"text": program(t, "p serve name=+0(%di):string id=%di:u64", fetch.PointEntry),
	}}
	for _, name := range []string{"in", "out", "text"} {
		s.Event("g", name, s.progs[name])
	}
	for _, text := range synth {
		def, err := event.ParseSynthetic(text)
		if err != nil {
			t.Fatal(err)
		}
		s.Synthetic(def)
	}
	s.Traced = func(def *event.Synthetic, h *Hit, vs []fetch.Value) {
		p := Printer{Names: comms{name: "comm"}}
		s.lines = append(s.lines, strings.TrimSpace(string(p.Synthetic(nil, def, h, vs))))
	}
	return s
}

// add makes a histogram; group and name are those of a synthetic event if ev has a slash.
func (s *histSet) add(ev, spec string) (*Histogram, error) {
	def, err := event.ParseHist(spec)
	if err != nil {
		return nil, err
	}
	group, name, ok := strings.Cut(ev, "/")
	if !ok {
		group, name = "g", ev
	}
	return s.Add(group, name, def)
}

func (s *histSet) must(ev, spec string) *Histogram {
	s.Helper()
	h, err := s.add(ev, spec)
	if err != nil {
		s.Fatalf("%s: %v", spec, err)
	}
	return h
}

// hit has an event hit at a time. A string is the argument name of text.
func (s *histSet) hit(ev string, nanos uint64, values ...any) {
	prog := s.progs[ev]
	vs := make([]fetch.Value, len(values))
	for i, v := range values {
		vs[i].Arg = &prog.Args[i]
		switch v := v.(type) {
		case int:
			vs[i].Num = uint64(v)
		case string:
			vs[i].Str = []byte(v)
		case nil:
			vs[i].Unknown = true
		}
	}
	s.Hit(&Hit{Event: &Event{Group: "g", Name: ev, Prog: prog}, Nanos: nanos, TID: 7, CPU: 3}, vs, "comm")
}

// lists compares the lines of a histogram's entries.
func (s *histSet) lists(h *Histogram, want ...string) {
	s.Helper()
	text := string(h.AppendText(nil, nil))
	_, text, _ = strings.Cut(text, "#\n\n")
	text, _, _ = strings.Cut(text, "\nTotals")
	if got := strings.Join(want, "\n"); strings.TrimSpace(text) != strings.TrimSpace(got) {
		s.Errorf("%s:\n%s\nwant\n%s", h.def, text, got)
	}
}

// TestLatencyByKey is the time between two events with the same id, as a synthetic event that has a histogram.
func TestLatencyByKey(t *testing.T) {
	s := newHistSet(t, "s:lat u64 ns; u64 id", "s:seen u64 us")
	in := s.must("in", "keys=id:ts0=common_timestamp")
	out := s.must("out", "keys=id:lat=common_timestamp-$ts0:onmatch(g.in).trace(lat,$lat,id):onmax($lat).save(got,common_cpu)")
	lat := s.must("synthetic/lat", "keys=ns.log2:vals=ns:sort=ns")
	s.must("text", "keys=id:us=common_timestamp.usecs:onchange($us).seen($us)")
	s.hit("out", 50, 1, 0) // there is no entry of its key
	s.hit("in", 100, 1, 0, 0)
	s.hit("in", 110, 2, 0, 0)
	s.hit("out", 164, 1, 5)
	s.hit("out", 170, 1, 6) // the variable was read
	s.hit("in", 200, 1, 0, 0)
	s.hit("out", 230, 1, 7)
	s.hit("out", 1110, 2, 8)
	s.hit("text", 5000000, "x", 9)
	s.hit("text", 5000999, "x", 9)
	s.hit("text", 6000000, "x", 9)
	s.lists(in, "{ id:          2 } hitcount:          1", "{ id:          1 } hitcount:          2")
	s.lists(out,
		"{ id:          2 } hitcount:          1", "\tmax:       1000  got:          8  common_cpu:          3",
		"{ id:          1 } hitcount:          2", "\tmax:         64  got:          5  common_cpu:          3")
	s.lists(lat, "{ ns: ~ 2^5  } hitcount:          1  ns:         30", "{ ns: ~ 2^6  } hitcount:          1  ns:         64", "{ ns: ~ 2^10 } hitcount:          1  ns:       1000")
	want := []string{"comm-7       [003] .....     0.005000: seen: us=5000", "comm-7       [003] .....     0.006000: seen: us=6000"}
	if strings.Join(s.lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q", s.lines)
	}
	if h := out; h.Hits() != 3 || h.Dropped() != 0 {
		t.Errorf("%d hits, %d dropped", h.Hits(), h.Dropped())
	}
}

// TestHistExpressions computes expressions: each as a value, at a hit with id=10 size=-3 low=7.
func TestHistExpressions(t *testing.T) {
	for expr, want := range map[string]uint64{
		"id+size":         7,
		"id-size":         13,
		"id-low-1":        2,
		"id-low*2":        math.MaxUint64 - 3,
		"id*low+2":        72,
		"id/low":          1,
		"id/3":            3,
		"100/id/2":        5,
		"2+3*4":           14,
		"0x10+010":        24,
		"5-size":          8,
		"-(id+1)":         math.MaxUint64 - 10,
		"-(id)":           math.MaxUint64 - 9,
		"common_pid*2":    14,
		"common_cpu-3":    0,
		"id.log2+1":       5,
		"low.buckets=4":   4,
		"common_pid-7":    0,
		"id/common_cpu":   3,
		"-(size)":         3,
		"id/zero0":        math.MaxUint64,
		"id*2/common_cpu": 6,
	} {
		s := newHistSet(t)
		spec := "keys=id:x=" + expr
		if expr == "low.buckets=4" || expr == "id/zero0" {
			spec = "keys=" + strings.ReplaceAll(expr, "id/zero0", "id/low")
		}
		h, err := s.add("in", spec)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		low := 7
		if expr == "id/zero0" {
			low = 0
		}
		s.hit("in", 1, 10, 0xfffffffd, low)
		for _, e := range h.entries {
			got := e.keys[0].num
			if len(e.vars) > 0 {
				got = e.vars[0].num
			}
			if got != want {
				t.Errorf("%s = %d, want %d", expr, int64(got), int64(want))
			}
		}
		if len(h.entries) != 1 {
			t.Errorf("%s: %d entries", expr, len(h.entries))
		}
	}
}

// TestHistogramsRefused has what is wrong with histograms beyond their text; a guest's kernel is asked about most of them
// (TestHistogramVariables in target/guest).
func TestHistogramsRefused(t *testing.T) {
	for _, c := range []struct {
		in, out string
		want    event.HistCode
	}{
		{"keys=id:x=size", "keys=id:y=$none", event.HistVarNotFound},
		{"keys=id:x=size", "keys=id:a=got+1,y=$a", event.HistVarNotFound},
		{"keys=id:x=size", "keys=id:y=g.out.$x", event.HistVarNotFound},
		{"keys=id:x=size", "keys=id:y=none", event.HistFieldNotFound},
		{"keys=id:x=size", "keys=$x", event.HistInvalidRefKey},
		{"keys=id:x=size", "keys=id+$x", event.HistInvalidRefKey},
		{"keys=id:x=size,x=low", "keys=id", event.HistDuplicateVar},
		{"keys=id:x=0", "keys=id:y=got/$x", event.HistDivisionByZero},
		{"keys=id:x=0", "keys=id:y=got/0", event.HistDivisionByZero},
		{"keys=id:x=common_timestamp", "keys=id:y=common_timestamp.usecs-$x", event.HistTimestampMismatch},
		{"keys=id:x=size", "keys=id:y=$x:onmax(y).save(got)", event.HistOnxNotVar},
		{"keys=id:x=size", "keys=id:y=$x:onmax($x).save(got)", event.HistOnxVarNotFound},
		{"keys=id:x=size", "keys=id:y=$x:onmax($y).save(none)", event.HistFieldNotFound},
		{"keys=id:x=size", "keys=id:yy=$x:onmax($yy).save(yy)", event.HistFieldNotFound},
		{"keys=id:x=size", "keys=id:got=$x:onmax($got).save(got)", event.HistVarCreateFindFail},
		{"keys=id:x=size", "keys=id:y=$x:onmax($y).save(got):onmax($y).save(got)", event.HistTooManySaveActions},
		{"keys=id:x=size", "keys=id:onmatch(g.none).lat($x,id)", event.HistInvalidSubsysEvent},
		{"keys=id:x=size", "keys=id:onmatch(g.in).none($x,id)", event.HistSynthEventNotFound},
		{"keys=id:x=size", "keys=id:onmatch(g.in).in($x,id)", event.HistSynthEventNotFound},
		{"keys=id:x=size", "keys=id:onmatch(g.in).lat($x,id)", event.HistSynthTypeMismatch},
		{"keys=id:x=id", "keys=id:onmatch(g.in).lat($x)", event.HistSynthCountMismatch},
		{"keys=id:x=id", "keys=id:onmatch(g.in).lat($x,id,id)", event.HistSynthTypeMismatch},
		{"keys=id:x=id", "keys=id:onmatch(g.in).lat($none,id)", event.HistParamNotFound},
		{"keys=low", "keys=id:onmatch(g.in).lat(low,id)", event.HistFieldNotFound},
		{"keys=id:x=size", "keys=id:y=$x:sort=got", event.HistInvalidSortField},
		{"keys=id", "keys=id:y=common_stacktrace+1", event.HistErrno},
		{"keys=id", "keys=-(stacktrace)", event.HistErrno},
		{"keys=id", "keys=id:vals=common_stacktrace", event.HistBadFieldModifier},
		{"keys=id", "keys=id:vals=got,stacktrace", event.HistBadFieldModifier},
		{"keys=id", "keys=id:y=common_stacktrace.log2", event.HistBadFieldModifier},
		{"keys=id", "keys=common_stacktrace.stacktrace", event.HistBadFieldModifier},
		{"keys=id", "keys=id.stacktrace", event.HistBadFieldModifier},
		{"keys=id", "keys=common_pid.stacktrace", event.HistBadFieldModifier},
		{"keys=id", "keys=id:y=got.stacktrace", event.HistBadFieldModifier},
		{"keys=id", "keys=id:y=common_stacktrace:onmax($y).save(got)", event.HistUnsupported},
		{"keys=id:y=common_stacktrace", "keys=id:z=$y+1", event.HistErrno},
		{"keys=id:y=common_stacktrace", "keys=id:z=got:onmax($z).save($y)", event.HistUnsupported},
		{"keys=id:y=common_stacktrace", "keys=id:onmatch(g.in).lat($y,id)", event.HistSynthTypeMismatch},
		{"keys=id", "keys=id:onmatch(g.in).lat(common_stacktrace,id)", event.HistSynthTypeMismatch},
		{"keys=id", "keys=id:onmatch(g.in).called(id)", event.HistSynthTypeMismatch},
		{"keys=id", "keys=id:y=got:onmax($y).save(common_stacktrace)", event.HistUnsupported},
		{"name=n:keys=id", "name=n:keys=got", event.HistNamedMismatch},
		{"name=n:keys=id", "name=n:keys=id:x=got", event.HistUnsupported},
	} {
		s := newHistSet(t, "s:lat u64 ns; u64 id", "s:called unsigned long[] by")
		_, err := s.add("in", c.in)
		if err == nil {
			_, err = s.add("out", c.out)
		}
		var e *event.HistError
		if !errors.As(err, &e) || e.Code != c.want || e.Pos >= len(e.Hist) {
			t.Errorf("%s, %s: %v, want %s", c.in, c.out, err, c.want.Text())
		}
	}
}

// stacked is a hit of a probe at 0x1000 with callers.
func (s *histSet) stacked(ev string, nanos uint64, id int, callers ...uint64) {
	prog := s.progs[ev]
	vs := make([]fetch.Value, len(prog.Args))
	for i := range vs {
		vs[i].Arg = &prog.Args[i]
	}
	vs[0].Num = uint64(id)
	rec := make([]byte, prog.Fixed)
	binary.LittleEndian.PutUint64(rec[prog.StackOff:], uint64(len(callers)))
	for i, c := range callers {
		binary.LittleEndian.PutUint64(rec[prog.StackOff+8+8*i:], c)
	}
	s.Hit(&Hit{Event: &Event{Group: "g", Name: ev, Prog: prog, Addr: 0x1000}, Rec: rec, Nanos: nanos, TID: 7, CPU: 3}, vs, "comm")
}

// TestHistStacks has stacks as variables, as fields of synthetic events, and as keys of these.
func TestHistStacks(t *testing.T) {
	s := newHistSet(t, "s:slow u64 ns; unsigned long[] by; int id", "s:last long by[]", "s:again unsigned long[4] by; unsigned long[] own")
	for _, name := range []string{"in", "out"} {
		prog := *s.progs[name]
		prog.StackOff, prog.Stack = prog.Fixed, 20
		prog.Fixed += 8 * 21
		s.progs[name] = &prog
	}
	in := s.must("in", "keys=id:ts0=common_timestamp,by=common_stacktrace")
	if got, want := in.String(), "hist:keys=id:vals=hitcount:ts0=common_timestamp,by=common_stacktrace:sort=hitcount:size=2048:clock=global [active]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.must("out", "keys=id:ns=common_timestamp-$ts0,mine=$by:onmatch(g.in).slow($ns,$by,common_pid):onmatch(g.in).again($mine,common_stacktrace)")
	slow := s.must("synthetic/slow", "keys=by.stacktrace:vals=ns:sort=by")
	both := s.must("synthetic/slow", "keys=id,by.hex,common_cpu:q=by:sort=by.descending,id:onmatch(g.in).last($q)")
	for h, want := range map[*Histogram]string{
		slow: "hist:keys=by.stacktrace:vals=hitcount,ns:sort=by:size=2048 [active]",
		both: "hist:keys=id,by.stacktrace,common_cpu:vals=hitcount:q=by:sort=by.descending,id:size=2048:onmatch(g.in).last($q) [active]",
	} {
		if h.String() != want {
			t.Errorf("%s, want %s", h, want)
		}
	}
	s.stacked("in", 100, 1, 0x2001, 0x3001)
	s.stacked("in", 110, 2)
	s.stacked("out", 164, 1, 0x5001)
	s.stacked("out", 210, 2, 0x5001)
	s.stacked("in", 300, 1, 0x2001, 0x3001)
	s.stacked("out", 310, 1)
	var many []uint64
	for i := range uint64(20) {
		many = append(many, 0x10001+i)
	}
	s.stacked("in", 320, 3, many...)
	s.stacked("out", 350, 3)
	s.lists(slow,
		"{ by.stacktrace"+frames(0x1000)+"} hitcount:          1  ns:        100",
		"{ by.stacktrace"+frames(0x1000, 0x2001, 0x3001)+"} hitcount:          2  ns:         74",
		"{ by.stacktrace"+frames(append([]uint64{0x1000}, many[:14]...)...)+"} hitcount:          1  ns:         30")
	if n := len(both.entries); n != 3 {
		t.Errorf("%d entries", n)
	}
	keys := slow.Entries()[1].Keys[0].([]uint64)
	if len(keys) != 3 || keys[0] != 0x1000 || keys[2] != 0x3001 {
		t.Errorf("%x", keys)
	}
	want := []string{
		"comm-7       [003] .....     0.000000: last: by=STACK:\n=> serve+0x0/0x20\n=> 0x00002001\n=> 0x00003001",
		"comm-7       [003] .....     0.000000: again: by=STACK:\n=> serve+0x0/0x20\n=> 0x00002001\n=> 0x00003001\nown=STACK:\n=> serve+0x0/0x20\n=> 0x00005001",
	}
	if len(s.lines) != 8 || s.lines[0] != want[0] || s.lines[1] != want[1] {
		t.Errorf("%d lines, the first %q", len(s.lines), s.lines[:2])
	}
}

// frames are the lines of a key that is a stack.
func frames(addrs ...uint64) (text string) {
	for _, a := range addrs {
		text += fmt.Sprintf("         0x%08x\n", a)
	}
	return text
}

// TestHistVarNotUnique has two events with a variable of the same name.
func TestHistVarNotUnique(t *testing.T) {
	s := newHistSet(t)
	s.must("in", "keys=id:x=size")
	s.must("text", "keys=id:x=id")
	_, err := s.add("out", "keys=id:y=$x")
	var e *event.HistError
	if !errors.As(err, &e) || e.Code != event.HistVarNotUnique {
		t.Errorf("%v", err)
	}
	h := s.must("out", "keys=id:y=g.in.$x,z=g.text.$x:onmax($y).save(got)")
	s.hit("in", 1, 1, 40, 0)
	s.hit("out", 2, 1, 3) // the other variable is not set
	if h.Hits() != 0 {
		t.Errorf("%d hits", h.Hits())
	}
	s.hit("text", 3, "a", 1)
	s.hit("out", 4, 1, 3)
	s.hit("out", 5, 1, nil) // a reference alone does not consume; a value that is not known is none
	s.lists(h, "{ id:          1 } hitcount:          2", "\tmax:         40  got:          3")
}

// TestHistStrings has strings as keys, variables and fields of synthetic events.
func TestHistStrings(t *testing.T) {
	s := newHistSet(t, "s:told char who[]; s64 n; char name[]", "s:loop u64 n")
	s.must("text", "keys=id:who=common_pid.execname,name=name")
	out := s.must("out", "keys=id:n=got:onmatch(g.text).trace(told,$who,$n,g.text.$name):onchange($n).save(id,common_pid.execname)")
	s.hit("text", 1, "two words\n", 1)
	s.hit("out", 2000, 1, -5)
	s.lists(out, "{ id:          1 } hitcount:          1", "\tchanged: 18446744073709551611  id:          1  common_pid.execname: comm")
	if len(s.lines) != 1 || !strings.HasSuffix(s.lines[0], "told: who=comm n=-5 name=two words?") {
		t.Errorf("%q", s.lines)
	}
}

// TestHistOtherField traces a field of another event, which gets a histogram for it; and an event that traces itself.
func TestHistOtherField(t *testing.T) {
	s := newHistSet(t, "s:pair u64 id; u8 low", "s:loop u64 id", "s:few u8 low")
	s.must("in", "keys=id")
	s.must("out", "keys=id:onmatch(g.in).trace(pair,id,low):onmatch(g.in).loop(id)")
	s.must("text", "keys=id:onmatch(g.in).few(low)")
	few := s.must("synthetic/few", `keys=low if low > 100 && COMM == "comm"`)
	if _, err := s.add("synthetic/few", "keys=low if none > 3"); err == nil {
		t.Error("a filter on a field that is not there")
	}
	loop := s.must("synthetic/loop", "keys=id:xx=id:onmax($xx).loop($xx)")
	s.hit("in", 1, 4, 0, 250)
	s.hit("out", 2, 4, 0)
	s.hit("out", 3, 4, 0) // such a variable is no operand
	s.hit("text", 4, "a", 4)
	s.hit("in", 5, 4, 0, 3)
	s.hit("text", 6, "a", 4)
	s.lists(few, "{ low:        250 } hitcount:          1")
	if len(s.lines) != 2 || !strings.HasSuffix(s.lines[1], "pair: id=4 low=250") || loop.Hits() != 2 {
		t.Errorf("%q, %d hits", s.lines, loop.Hits())
	}
}

// TestHistNamed has two events share a histogram, one of them counted by generated code.
func TestHistNamed(t *testing.T) {
	s := newHistSet(t)
	a := s.must("in", "name=both:keys=id:vals=id:sort=id")
	b := s.must("out", "name=both:keys=id:vals=id:sort=id if got > 3")
	s.hit("in", 1, 5, 0, 0)
	s.hit("out", 1, 5, 0)
	b.Load([]fetch.HistEntry{{Keys: []uint64{6}, Hits: 3, Sums: []uint64{18}}}, 1)
	s.lists(a, "{ id:          5 } hitcount:          2  id:         10", "{ id:          6 } hitcount:          3  id:         18")
	if !a.Shares(b) || a.Hits() != 5 || a.Dropped() != 1 {
		t.Errorf("%d hits, %d dropped", a.Hits(), a.Dropped())
	}
}

// TestHistShown has what is shown of values, and of a histogram that is paused.
func TestHistShown(t *testing.T) {
	s := newHistSet(t)
	h := s.must("in", "keys=id:vals=low.percent,low.graph,low+id:sort=low.descending:nohitcount")
	paused := s.must("out", "keys=id:pause")
	parts := s.must("text", "keys=id:vals=hitcount.percent:sort=id")
	s.hit("text", 1, "a", 1)
	s.hit("text", 1, "a", 2)
	s.lists(parts, "{ id:          1 } hitcount:          1  hitcount (%):  50.00", "{ id:          2 } hitcount:          1  hitcount (%):  50.00")
	for i, low := range []int{1, 2, 0} {
		s.hit("in", 1, i, 0, low)
		s.hit("out", 1, i, 0)
	}
	s.lists(h,
		"{ id:          1 }  low (%):  66.66  low: ####################  low+id:          3",
		"{ id:          0 }  low (%):  33.33  low: ##########            low+id:          1",
		"{ id:          2 }  low (%):   0.00  low:                       low+id:          2")
	if text := string(paused.AppendText(nil, nil)); !strings.Contains(text, "size=2048 [paused]\n") || paused.Hits() != 0 {
		t.Error(text)
	}
	for _, c := range []struct {
		v, total, want uint64
		ok             bool
	}{{0, 0, 0, true}, {1, 0, 0, false}, {1, 3, 3333, true}, {math.MaxUint64, math.MaxUint64, 10000, true}, {1 << 63, 3, 0, false}} {
		if got, ok := percentage(c.v, c.total); got != c.want || ok != c.ok {
			t.Errorf("percentage(%d, %d) = %d, %v", c.v, c.total, got, ok)
		}
	}
}

// FuzzHistograms has two events with any histograms hit: what is taken can be counted and printed.
func FuzzHistograms(f *testing.F) {
	f.Add("keys=id:ts0=common_timestamp,x=size/low", "keys=id:lat=common_timestamp-$ts0:onmatch(g.in).trace(lat,$lat,id):onmax($lat).save(got,common_pid)", "keys=ns.log2:vals=ns.graph")
	f.Add("name=n:keys=low.buckets=3,size:vals=hitcount.percent,low+id", "name=n:keys=id,common_pid.execname:x=$x:onchange($x).lat($x,g.in.low)", "keys=5,-(id):xx=id:onmax($xx).lat($xx,$xx) if ns > 3")
	f.Fuzz(func(t *testing.T, in, out, lat string) {
		s := newHistSet(t, "s:lat u64 ns; u64 id")
		var hs []*Histogram
		for _, c := range [][2]string{{"in", in}, {"out", out}, {"synthetic/lat", lat}} {
			if h, err := s.add(c[0], c[1]); err == nil {
				hs = append(hs, h)
			}
		}
		for i := range 4 {
			s.hit("in", uint64(i), i&1, -i, i)
			s.hit("out", uint64(i), i&1, i)
			s.hit("out", uint64(i), i&1, nil)
		}
		for _, h := range hs {
			h.AppendText(nil, nil)
		}
	})
}

package hit

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// liveSet is a live set of the events a, b and c, which record a number n, and of the synthetic events that are defined.
type liveSet struct {
	*triggerSet
	host   Host
	told   []string // what the host was told
	refuse error    // of Need and Reserve, of what is needed
}

func newLiveSet(t *testing.T, syn *Synthetics) *liveSet {
	t.Helper()
	s := &liveSet{}
	s.host = Host{
		Need: func(group, name string, n Need) error {
			if n.Hits && s.refuse != nil {
				return s.refuse
			}
			s.told = append(s.told, fmt.Sprintf("%s %+v", name, n))
			return nil
		},
		Snapshot: func() { s.told = append(s.told, "snapshot") },
		Reserve: func(on bool) error {
			if on && s.refuse != nil {
				return s.refuse
			}
			s.told = append(s.told, fmt.Sprint("reserve ", on))
			return nil
		},
		Traced: func(def *event.Synthetic, h *Hit, vs []fetch.Value, shown Shown) {
			p := Printer{Names: testNames{}}
			_, line, _ := strings.Cut(string(p.Synthetic(nil, def, h, vs)), ": ")
			s.told = append(s.told, fmt.Sprintf("%s%+v", strings.ReplaceAll(line, "\n", " "), shown))
		},
	}
	s.triggerSet = &triggerSet{t, NewLive(&s.host, syn), program(t, "p serve n=%di:u64", fetch.PointEntry)}
	for _, name := range []string{"a", "b", "c"} {
		s.Event("g", name, s.prog, func(filter string) (*fetch.Filter, error) { return s.prog.Filter(filter, fetch.FilterEnv{}) })
	}
	return s
}

// write writes to the trigger files of events: `EVENT TEXT`, of a synthetic event `synthetic/EVENT TEXT`.
func (s *liveSet) write(all ...string) (err error) {
	for _, one := range all {
		ev, text, _ := strings.Cut(one, " ")
		group, name, ok := strings.Cut(ev, "/")
		if !ok {
			group, name = "g", ev
		}
		if err = s.Write(group, name, text); err != nil {
			return err
		}
	}
	return nil
}

func (s *liveSet) wants(what string, want ...string) {
	s.Helper()
	if got := strings.Join(s.told, "\n"); got != strings.Join(want, "\n") {
		s.Errorf("%s:\n%s\nwant\n%s", what, got, strings.Join(want, "\n"))
	}
	s.told = nil
}

func define(t *testing.T, y *Synthetics, text string) {
	t.Helper()
	if err := y.Write(text); err != nil {
		t.Fatal(err)
	}
}

// TestLiveSwitches has nothing guessed, and events held while triggers need them.
func TestLiveSwitches(t *testing.T) {
	s := newLiveSet(t, &Synthetics{})
	if !s.Tracing() || s.State("g", "a") != (EventState{}) || s.State("g", "none").String() != "0" {
		t.Error("at first tracing is off, or an event enabled")
	}
	if err := s.write("a traceon", "b enable_event:g:c:1"); err != nil {
		t.Fatal(err)
	}
	s.wants("held", "a {Hits:true All:true Stack:0}", "c {Hits:true All:false Stack:0}", "b {Hits:true All:true Stack:0}")
	if n := s.References("g", "c"); n != 1 || !s.Tracing() || s.State("g", "c").String() != "0*" {
		t.Errorf("%d references to c, tracing %v, c %s", n, s.Tracing(), s.State("g", "c"))
	}
	if got := s.hits("a1 c1 b1 c2"); got != "c2" {
		t.Errorf("shown: %s", got)
	}
	for _, name := range []string{"a", "b", "c", "none"} {
		if err := s.Busy("g", name); errors.Is(err, syscall.EBUSY) != (name != "none") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.write("b !enable_event:g:c"); err != nil || s.State("g", "c").String() != "1" {
		t.Errorf("c is %s, %v: what a trigger has enabled stays so", s.State("g", "c"), err)
	}
	s.wants("released", "b {Hits:false All:false Stack:0}")
	if err := s.Forget("g", "c"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("an enabled event is forgotten: %v", err)
	}
	if err := errors.Join(s.SetEnabled("g", "c", false), s.Forget("g", "c")); err != nil {
		t.Error(err)
	}
	for _, err := range []error{s.SetEnabled("g", "c", true), s.Write("g", "c", "traceon"), s.Filter("g", "c", "n > 1")} {
		if !errors.Is(err, syscall.ENOENT) {
			t.Errorf("an event that is gone: %v", err)
		}
	}
	s.told = nil
	s.Close()
	s.wants("closed", "a {Hits:false All:false Stack:0}")
}

// TestLiveRefused has the host refuse what a trigger needs: then nothing has changed.
func TestLiveRefused(t *testing.T) {
	s := newLiveSet(t, &Synthetics{})
	s.refuse = syscall.ENOSPC
	for _, text := range []string{"a traceoff", "a enable_event:g:b", "a snapshot", "a hist:keys=n", "a hist:keys=n:x=n:onmax($x).snapshot()"} {
		if err := s.write(text); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", text, err)
		}
		if got := s.List("g", "a"); got != available || s.State("g", "a") != (EventState{}) || s.State("g", "b") != (EventState{}) || len(s.told) > 0 {
			t.Errorf("%s leaves %s %q", text, got, s.told)
		}
	}
	if err := s.SetEnabled("g", "a", true); !errors.Is(err, syscall.ENOSPC) || s.State("g", "a").Enabled {
		t.Errorf("enabled: %v", err)
	}
	s.refuse, s.host.Snapshot = nil, nil
	for _, text := range []string{"a snapshot", "a hist:keys=n:x=n:onmax($x).snapshot()"} {
		if err := s.write(text); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "second buffer") {
			t.Errorf("%s without snapshots: %v", text, err)
		}
	}
	s.Event("g", "late", nil, func(string) (*fetch.Filter, error) { return nil, errors.New("late") })
	if err := s.write("late hist:keys=n"); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "is not there yet") {
		t.Error(err)
	}
	s.Event("g", "late", s.prog, s.events[[2]string{"g", "a"}].compile)
	if err := s.write("late hist:keys=n if n > 2"); err != nil {
		t.Error(err)
	}
}

// TestLiveStack has what stacks need told, and a filter asked with and without triggers.
func TestLiveStack(t *testing.T) {
	s := newLiveSet(t, &Synthetics{})
	if err := errors.Join(s.SetEnabled("g", "a", true), s.Filter("g", "a", "n > 2")); err != nil {
		t.Fatal(err)
	}
	if got := s.hits("a1 a3"); got != "a3" {
		t.Errorf("without triggers: %s", got)
	}
	if err := s.write("a hist:keys=common_stacktrace", "a stacktrace:1"); err != nil {
		t.Fatal(err)
	}
	if got := s.hits("a1 a3 a4"); got != "+a1 a3 a4" {
		t.Errorf("with triggers: %s", got)
	}
	if err := s.write("a !stacktrace"); err != nil {
		t.Fatal(err)
	}
	s.Truncate("g", "a")
	s.wants("told",
		"a {Hits:true All:false Stack:0}", "a {Hits:true All:true Stack:16}", "a {Hits:true All:true Stack:127}",
		"a {Hits:true All:true Stack:16}", "a {Hits:true All:false Stack:0}")
	if err := s.Filter("g", "a", ""); err != nil || s.events[[2]string{"g", "a"}].filter != nil {
		t.Error(err)
	}
}

// TestLiveSnapshots has triggers and histograms take snapshots: of one set one histogram, at values beyond the last one's.
func TestLiveSnapshots(t *testing.T) {
	s := newLiveSet(t, &Synthetics{})
	if err := s.write("b snapshot:2 if n > 1", "a hist:keys=n.log2:x=n:onmax($x).snapshot()"); err != nil {
		t.Fatal(err)
	}
	if err := s.write("b hist:keys=n:x=n:onchange($x).snapshot()"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("two histograms: %v", err)
	}
	s.told = nil
	s.hits("b1 b2 b3 b4")
	s.wants("count", "snapshot", "snapshot")
	s.hits("a5 a5 a4 a2 a9 a8")
	s.wants("largest", "snapshot", "snapshot")
	text := string(s.AppendHist(nil, "g", "a", nil))
	const taken = "\nSnapshot taken (see tracing/snapshot).  Details:\n\ttriggering value { onmax($x) }:          9\ttriggered by event with key: { n: ~ 2^4  }\n\nTotals:\n"
	if !strings.Contains(text, taken) {
		t.Errorf("%s", text)
	}
	s.Truncate("g", "a")
	if err := s.write("b !snapshot"); err != nil {
		t.Fatal(err)
	}
	s.wants("given up", "a {Hits:false All:false Stack:0}", "reserve false", "b {Hits:false All:false Stack:0}")
}

// TestLiveSynthetics has two instances share synthetic events: an action of one shows in both, where the event is enabled.
func TestLiveSynthetics(t *testing.T) {
	var syn Synthetics
	define(t, &syn, "# comment\nlat u64 d; u64 id # more\n")
	one, two := newLiveSet(t, &syn), newLiveSet(t, &syn)
	if err := one.write("a hist:keys=n:tt=n", "b hist:keys=n:dd=n*2-$tt:onmatch(g.a).trace(lat,$dd,$tt)", "synthetic/lat hist:keys=d:vals=id"); err != nil {
		t.Fatal(err)
	}
	if err := one.Filter(event.SyntheticGroup, "lat", "__probe_ip == 0"); err == nil || !strings.Contains(err.Error(), "Field not found") {
		t.Errorf("a synthetic event has no place: %v", err)
	}
	if err := one.Filter(event.SyntheticGroup, "lat", "id > 3"); err != nil {
		t.Error(err)
	}
	one.told = nil
	if err := two.SetEnabled(event.SyntheticGroup, "lat", true); err != nil {
		t.Fatal(err)
	}
	one.hits("a3 b3 a5 b5")
	one.wants("where it is disabled softly")
	two.wants("where it is enabled", "lat: d=3 id=3 {Line:true Stack:false}", "lat: d=5 id=5 {Line:true Stack:false}")
	if got := string(one.AppendHist(nil, event.SyntheticGroup, "lat", nil)); !strings.Contains(got, "{ d:          5 } hitcount:          1  id:          5\n") {
		t.Error(got)
	}
	for _, err := range []error{syn.Write("!lat\n"), syn.Truncate(), syn.Delete("lat")} {
		if !errors.Is(err, syscall.EBUSY) {
			t.Errorf("it is traced: %v", err)
		}
	}
	if err := one.write("a !hist:keys=n:tt=n"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("its variable is read: %v", err)
	}
	one.Truncate("g", "a")
	if got := one.List("g", "a"); !strings.HasPrefix(got, "hist:keys=n:vals=hitcount:tt=n") {
		t.Errorf("truncated: %s", got)
	}
	one.Truncate("g", "b")
	one.Truncate("g", "a")
	one.Truncate(event.SyntheticGroup, "lat")
	if err := syn.Delete("lat"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("it is enabled: %v", err)
	}
	two.Close()
	if err := syn.Truncate(); err != nil || len(syn.All()) > 0 {
		t.Error(err)
	}
}

// TestLiveMade has an action take a field of another event: the histogram made for that shows as a trigger there, and goes with the action.
func TestLiveMade(t *testing.T) {
	var syn Synthetics
	define(t, &syn, "pair u64 x; u64 yy")
	s := newLiveSet(t, &syn)
	other := program(t, "p serve m=%di:u64 size=%si:u64", fetch.PointEntry)
	s.Event("g", "in", other, func(filter string) (*fetch.Filter, error) { return other.Filter(filter, fetch.FilterEnv{}) })
	const trace = "hist:keys=n:onmatch(g.in).trace(pair,g.in.$mm,size)"
	if err := s.write("in hist:keys=m:mm=m", "a "+trace); err != nil {
		t.Fatal(err)
	}
	const made = "hist:keys=m:vals=hitcount:synthetic_size=size:sort=hitcount:size=2048 [active]\n"
	if got := s.List("g", "in"); !strings.HasSuffix(got, made) {
		t.Errorf("%s", got)
	}
	if err := s.SetEnabled(event.SyntheticGroup, "pair", true); err != nil {
		t.Fatal(err)
	}
	s.told = nil
	s.Triggers.Hit(&Hit{Event: &Event{Group: "g", Name: "in", Prog: other, ArgsOff: 16}, Rec: record(4, 9)}, testNames{})
	s.hits("a4")
	s.wants("traced", "pair: x=4 yy=9 {Line:true Stack:false}")
	if err := s.write("a !" + trace); err != nil {
		t.Fatal(err)
	}
	if got := s.List("g", "in"); strings.Contains(got, "synthetic_") {
		t.Errorf("%s", got)
	}
	if err := s.write("a hist:keys=n:onmatch(g.in).trace(pair,size,none)"); err == nil || strings.Contains(s.List("g", "in"), "synthetic_") {
		t.Errorf("refused: %v, %s", err, s.List("g", "in"))
	}
}

// TestLiveNamed has two events share a histogram, which outlives the one that made it; what is paused is one event's counting.
func TestLiveNamed(t *testing.T) {
	s := newLiveSet(t, &Synthetics{})
	if err := s.write("a hist:name=x:keys=n", "b hist:name=x:keys=n", "b hist:name=x:keys=n:pause"); err != nil {
		t.Fatal(err)
	}
	if err := s.write("c hist:name=x:keys=n.hex"); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "Named hist trigger doesn't match") {
		t.Errorf("other keys: %v", err)
	}
	s.hits("a1 b1")
	if err := s.write("a !hist:name=x:keys=n", "b hist:name=x:keys=n:cont", "c hist:name=x:keys=n"); err != nil {
		t.Fatal(err)
	}
	s.hits("a1 b1 c1")
	if got := string(s.AppendHist(nil, "g", "c", nil)); !strings.Contains(got, "{ n:          1 } hitcount:          3\n") {
		t.Errorf("%s", got)
	}
	if err := s.write("b !hist:name=x:keys=n", "c !hist:name=x:keys=n", "a hist:name=x:keys=n.hex"); err != nil {
		t.Errorf("nobody has it any more: %v", err)
	}
	if got := s.List("g", "c"); got != available {
		t.Error(got)
	}
}

// TestSyntheticFormat has the kernel's layout of strings.
func TestSyntheticFormat(t *testing.T) {
	var syn Synthetics
	define(t, &syn, "s char n[16]; char any[]; gfp_t f; s8 z")
	const want = `	field:char n[];	offset:8;	size:16;	signed:1;
	field:__data_loc char[] any;	offset:264;	size:8;	signed:1;
	field:gfp_t f;	offset:272;	size:4;	signed:0;
	field:s8 z;	offset:280;	size:1;	signed:1;

print fmt: "n=%.*s, any=%.*s, f=%x, z=%d", REC->n, __get_str(any), REC->f, REC->z
`
	if got := SyntheticFormat(syn.Event("s"), 7); !strings.HasSuffix(got, want) {
		t.Error(got)
	}
	if err := syn.Write("t u64 x\nbad\nu u64 x"); !errors.Is(err, syscall.EINVAL) || syn.Event("t") == nil || syn.Event("u") != nil {
		t.Errorf("%v, %s", err, syn.String())
	}
	if err := syn.Write(strings.Repeat("#", 4095)); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// FuzzLive writes anything to the trigger files and to synthetic_events: what is taken can act, and go.
func FuzzLive(f *testing.F) {
	f.Add("hist:keys=n:ts=n", "hist:keys=n:dd=n-$ts:onmatch(g.a).trace(lat,$dd)", "lat u64 d", "hist:keys=d.log2")
	f.Add("enable_event:g:b:1 if n > 1", "snapshot:2", "!lat", "traceoff")
	f.Add("hist:name=n:keys=n", "hist:name=n:keys=n:clear", "lat char n[4]", "!hist:keys=d")
	f.Fuzz(func(t *testing.T, a, b, def, on string) {
		var syn Synthetics
		define(t, &syn, "lat u64 d")
		s := newLiveSet(t, &syn)
		for _, err := range []error{syn.Write(def), s.Write("g", "a", a), s.Write("g", "b", b), s.Write(event.SyntheticGroup, "lat", on), s.Write("g", "a", b)} {
			if err != nil && err.Error() == "" {
				t.Fatal("an error that says nothing")
			}
		}
		s.hits("a1 b1 a2 b2 a3 b3 a1 b1")
		s.AppendHist(nil, "g", "a", nil)
		s.Close()
		for _, e := range s.order {
			if e.holds != 0 || e.synth == nil && len(s.hists.event(e.group, e.name).hists) > 0 {
				t.Fatalf("%s is held %d times", e.name, e.holds)
			}
		}
		if err := errors.Join(s.SetEnabled("g", "a", false), s.SetEnabled("g", "b", false), s.Forget("g", "a"), s.Forget("g", "b")); err != nil {
			t.Fatal(err)
		}
	})
}

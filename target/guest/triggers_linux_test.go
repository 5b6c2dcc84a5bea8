package guest_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/testguest"
)

// The probes of the cases. A call `N` opens /no/N: a, then b, with the name; a call `g` is getppid: ppid, which nobody else calls.
var triggerProbes = []string{
	"p:a do_sys_openat2 name=+0(%si):ustring flags=+0(%dx):u64",
	"p:b do_filp_open name=+0(+0(%si)):string",
	"p:ppid __x64_sys_getppid",
}

// triggerLine is `EVENT TRIGGER`, or `EVENT -f FILTER`.
type triggerLine string

func (l triggerLine) split() (ev, text string, filter bool) {
	ev, text, _ = strings.Cut(string(l), " ")
	text, filter = strings.CutPrefix(text, "-f ")
	return ev, text, filter
}

// file is the guest's own file that the line belongs into.
func (l triggerLine) file() string {
	ev, _, filter := l.split()
	if filter {
		return own + ev + "/filter"
	}
	return own + ev + "/trigger"
}

// triggerCase is what is written to the guest's own files, and given to ours.
type triggerCase struct {
	lines    []triggerLine
	calls    string
	off      bool   // tracing begins so
	disabled string // the event that begins so; "": none
}

var triggerCases = []triggerCase{
	{lines: []triggerLine{`a traceoff if name == "/no/2"`}, calls: "1 2 3"},
	{lines: []triggerLine{`b traceoff if name == "/no/2"`}, calls: "1 2 3"},
	{lines: []triggerLine{`a traceon if name == "/no/2"`}, calls: "1 2 3", off: true},
	{lines: []triggerLine{`a traceon if name == "/no/2"`, `a -f name ~ "/no/*"`}, calls: "1 2 3", off: true},
	{lines: []triggerLine{`ppid traceon`}, calls: "1 g 2 g", off: true},
	{lines: []triggerLine{`ppid traceon`, `ppid stacktrace`}, calls: "1 g 2 g", off: true},
	{lines: []triggerLine{`ppid traceon`, `ppid -f common_pid == 1`}, calls: "1 g 2 g", off: true},
	{lines: []triggerLine{`ppid traceon:1`, `b traceoff:2 if name ~ "/no/*"`}, calls: "1 g 2 g 3 4", off: true},
	{lines: []triggerLine{`ppid traceoff:1`, `a traceon if name == "/no/3"`}, calls: "1 g 2 3 g 4"},
	{lines: []triggerLine{`ppid traceoff:0`}, calls: "1 g 2"},
	{lines: []triggerLine{`ppid enable_event:kprobes:b`}, calls: "1 g 2", disabled: "b"},
	{lines: []triggerLine{`ppid enable_event:kprobes:b:1`, `a disable_event:kprobes:b if name == "/no/3"`}, calls: "1 g 2 g 3 g 4", disabled: "b"},
	{lines: []triggerLine{`ppid disable_event:kprobes:b`, `a enable_event:kprobes:b:1 if name == "/no/3"`}, calls: "1 g 2 3 4 g 3"},
	{lines: []triggerLine{`a enable_event:kprobes:a if name == "/no/2"`}, calls: "1 2 3", disabled: "a"},
	{lines: []triggerLine{`a disable_event:kprobes:a if name == "/no/2"`}, calls: "1 2 3"},
	{lines: []triggerLine{`ppid enable_event:kprobes:ppid`}, calls: "1 g g", disabled: "ppid"},
	{lines: []triggerLine{`ppid disable_event:kprobes:ppid`}, calls: "1 g g"},
	{lines: []triggerLine{`a stacktrace:2 if name ~ "/no/*"`}, calls: "1 2 3"},
	{lines: []triggerLine{`ppid stacktrace:2`}, calls: "g 1 g g"},
	{lines: []triggerLine{`ppid stacktrace:1`, `ppid -f common_pid == 1`}, calls: "g 1 g"},
	{lines: []triggerLine{`ppid stacktrace:1`, `a enable_event:kprobes:ppid if name == "/no/1"`}, calls: "g 1 g", disabled: "ppid"},
	{lines: []triggerLine{`ppid stacktrace`, `b traceoff if name == "/no/1"`}, calls: "g 1 g"},
	{lines: []triggerLine{`ppid traceoff`, `ppid stacktrace`}, calls: "g 1 g"},
	{lines: []triggerLine{`ppid stacktrace`, `ppid traceoff`}, calls: "g 1 g"},
	{lines: []triggerLine{`a -f name == "/no/3"`, `a traceoff if name == "/no/2"`}, calls: "1 2 3"},
	{
		lines: []triggerLine{
			`a hist:keys=name:vals=flags:sort=name if name ~ "/no/*"`, `a hist:keys=flags if name ~ "/no/*"`, `b hist:keys=name:sort=name:pause if name ~ "/no/*"`,
			`ppid disable_hist:kprobes:a`, `a enable_hist:kprobes:b:1 if name == "/no/2"`, `b disable_hist:kprobes:b if name == "/no/4"`,
			`ppid traceoff`,
		}, calls: "1 1 2 3 g 4 5",
	},
}

// make makes the calls of a case.
func (c *triggerCase) make(g *testguest.Guest) {
	for _, call := range strings.Fields(c.calls) {
		if call == "g" {
			g.Hit("getppid", 1, 0)
		} else {
			g.Hit("openname", 1, 0, "/no/"+call, "0", "0")
		}
	}
}

// histograms gives the events of the case that have histograms.
func (c *triggerCase) histograms() (evs []string) {
	for _, l := range c.lines {
		if ev, text, _ := l.split(); strings.HasPrefix(text, "hist:") && !slices.Contains(evs, ev) {
			evs = append(evs, ev)
		}
	}
	return evs
}

// its is what the guest's own tracer shows of the calls: a line for each hit and each stack.
func (c *triggerCase) its(t *testing.T, g *testguest.Guest) (lines []string, hists []string) {
	t.Helper()
	must := func(path, text string, trunc bool) {
		if e := g.Write(path, text, trunc); e != 0 {
			t.Fatalf("the guest's own %s: %q: %v", path, text, e)
		}
	}
	must(own+"enable", "1", true) // a trigger that is removed leaves its event switched as it was
	for _, l := range c.lines {
		_, text, filter := l.split()
		must(l.file(), text, filter)
		undo := "!" + text
		if filter {
			undo = "0"
		}
		defer must(l.file(), undo, filter)
	}
	if c.disabled != "" {
		must(own+c.disabled+"/enable", "0", true)
	}
	must(tracing+"trace", "", true)
	if c.off {
		must(tracing+"tracing_on", "0", true)
	}
	defer must(tracing+"tracing_on", "1", true)
	c.make(g)
	text, err := g.Read(tracing + "trace")
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range c.histograms() {
		text, err := g.Read(own + ev + "/hist")
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range strings.Split(text, "\n\n\n") {
			hists = append(hists, strings.TrimSpace(one))
		}
	}
	return shownIn(text), hists
}

var (
	shownLine = regexp.MustCompile(`(?m)^ +hit-\d+ .*?: (a|b|ppid): \([^)]*\)(?: name="(.*?)")?`)
	shownAny  = regexp.MustCompile(`(?m)^ +hit-\d+ .*?: (?:<stack trace>$|(?:a|b|ppid): \([^)]*\).*$)`)
)

// shownIn finds the lines of the calls in a trace: hits as `EVENT NAME`, and `stack`.
func shownIn(text string) (out []string) {
	for _, l := range shownAny.FindAllString(text, -1) {
		m := shownLine.FindStringSubmatch(l)
		switch {
		case m == nil:
			out = append(out, "stack")
		case m[1] == "ppid" || strings.HasPrefix(m[2], "/no/"):
			out = append(out, strings.TrimSpace(m[1]+" "+m[2]))
		}
	}
	return out
}

// triggersOf makes an empty set for armed events.
func triggersOf(p *probed, evs []*kprobes.Event) *hit.Triggers {
	set := hit.NewTriggers()
	for _, e := range evs {
		ev := engine.OfEvent(e)
		set.Event(e.Group, e.Name, ev.Prog, func(filter string) (*fetch.Filter, error) { return engine.Of(p.core).FilterOf(ev, filter) })
	}
	return set
}

// add adds a line to a set.
func (l triggerLine) add(set *hit.Triggers) (*hit.Histogram, error) {
	ev, text, filter := l.split()
	if filter {
		return nil, set.Filter(event.DefaultGroup, ev, text)
	}
	def, err := event.ParseTrigger(text)
	if err != nil {
		return nil, err
	}
	return set.Add(event.DefaultGroup, ev, def)
}

// ours is what ours show of the calls.
func (c *triggerCase) ours(p *probed, evs []*kprobes.Event) (lines []string, hists []string) {
	p.Helper()
	set := triggersOf(p, evs)
	byEvent := map[string][]*hit.Histogram{}
	for _, l := range c.lines {
		h, err := l.add(set)
		if err != nil {
			p.Fatalf("%s: %v", l, err)
		}
		if ev, _, _ := l.split(); h != nil {
			byEvent[ev] = append(byEvent[ev], h)
		}
	}
	p.hits = nil
	c.make(p.g)
	p.poll()
	pr := hit.Printer{Names: p}
	var text []byte
	for i := range p.hits {
		h := &p.hits[i]
		h.NoStack = true
		v := set.Hit(h, testNames{})
		if v.Line {
			text = pr.Text(text, h)
		}
		if v.Stack {
			text = pr.Stack(text, h)
		}
	}
	for _, ev := range c.histograms() {
		for _, h := range byEvent[ev] {
			hists = append(hists, strings.TrimSpace(string(h.AppendText(nil, p.core.Symbol))))
		}
	}
	return shownIn(string(text)), hists
}

// TestTriggersOfGuests compares what triggers show with what the guest's own tracer shows of the same triggers in the same calls: hits, stacks,
// histograms. TestKernels compares with a newer kernel.
func TestTriggersOfGuests(t *testing.T) { compareTriggers(t, testguest.Shared(t)) }

func compareTriggers(t *testing.T, g *testguest.Guest) {
	t.Helper()
	lines, hists := make([][]string, len(triggerCases)), make([][]string, len(triggerCases))
	remove := ownEvents(t, g, triggerProbes...)
	for i, c := range triggerCases {
		lines[i], hists[i] = c.its(t, g)
	}
	remove()
	p := attach(t, g, nil)
	defer p.close()
	evs := p.add(nil, triggerProbes...)
	for i, c := range triggerCases {
		got, texts := c.ours(p, evs)
		if !slices.Equal(got, lines[i]) {
			t.Errorf("%q, %s:\n%q\nthe guest's own:\n%q", c.lines, c.calls, got, lines[i])
		}
		if !slices.Equal(texts, hists[i]) {
			t.Errorf("%q:\n%s\nthe guest's own:\n%s", c.lines, strings.Join(texts, "\n\n"), strings.Join(hists[i], "\n\n"))
		}
	}
}

// languageProbes are hit by no call that the tests make, so that no count goes down.
var languageProbes = []string{"p:a __x64_sys_getppid flags=%di:u64", "p:b __x64_sys_getppid", "p:ppid __x64_sys_getppid"}

// triggerTexts are triggers of the event a: the last of each is compared, and what the others are for is whether it may stand beside them.
var triggerTexts = [][]string{
	{"traceon"},
	{" traceoff:3 "},
	{"traceoff 3"},
	{"traceoff: 0x10"},
	{"traceoff:"},
	{"traceon:0"},
	{"traceon:18446744073709551615"},
	{"stacktrace:010 if flags > 5"},
	{"stacktrace if flags > 5 && flags < 7"},
	{"stacktrace:if flags > 5"},
	{"enable_event:kprobes:b"},
	{"enable_event kprobes:b if flags == 1"},
	{"disable_event:kprobes:a:+2 if flags == 1"},
	{"enable_hist:kprobes:b:7"},
	{"disable_hist:kprobes:b"},
	{"hist:keys=flags if flags > 5"},
	{"hist keys=flags"},
	{":"},
	{"traceof"},
	{"TRACEOFF"},
	{"traceoff:x"},
	{"traceoff:-1"},
	{"traceoff:5x"},
	{"traceoff:18446744073709551616"},
	{"traceoff flags > 5"},
	{"traceoff:5 flags > 5"},
	{"traceoff if"},
	{"traceoff iff flags > 5"},
	{"traceoff if none > 5"},
	{"enable_event"},
	{"enable_event:"},
	{"enable_event:kprobes"},
	{"enable_event:kprobes:"},
	{"enable_event::b"},
	{"enable_event:kprobes:none"},
	{"enable_event:none:b"},
	{"enable_event:kprobes:b:"},
	{"enable_event:kprobes:b:x"},
	{"enable_event:kprobes:b 5"},
	{"enable_event:kprobes:b:99999999999999999999 if flags > 5"},
	{"disable_hist:kprobes:b:1 if"},
	{"hist"},
	{"hist:keys=none"},
	{"traceon", "traceoff:1 if flags > 3"},
	{"traceoff", "traceoff"},
	{"stacktrace:1", "stacktrace:2"},
	{"enable_event:kprobes:b", "disable_event:kprobes:b:5"},
	{"enable_event:kprobes:b", "enable_event:kprobes:ppid"},
	{"enable_hist:kprobes:b", "disable_hist:kprobes:b"},
	{"enable_event:kprobes:b", "enable_hist:kprobes:b"},
	{"hist:keys=flags", "hist:keys=flags"},
	{"hist:keys=flags", "hist:keys=flags:size=4096"},
	{"hist:keys=flags", "hist:keys=flags if flags > 3"},
	{"hist:keys=flags", "hist:keys=flags.hex"},
}

// triggerDifferences are triggers that the guest's own tracer takes, and ours do not.
var triggerDifferences = map[string]string{
	"!traceoff":    "nothing stands on an event that could be removed",
	"traceoff:5:6": "what is behind a count is not read",
	"snapshot":     "it has a second buffer",
}

// itsTrigger writes triggers to the guest's own event, and gives the error of the last, and how the event's file shows it.
func itsTrigger(t *testing.T, g *testguest.Guest, texts []string) (syscall.Errno, string) {
	t.Helper()
	file := triggerLine("a").file()
	var last syscall.Errno
	for i, text := range texts {
		if last = g.Write(file, text, false); last == 0 {
			defer g.Write(file, "!"+strings.TrimSpace(text), false)
		} else if i < len(texts)-1 {
			t.Fatalf("%q: %v", text, last)
		}
	}
	shown, err := g.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return last, shown
}

// TestTriggerLanguage compares which triggers are taken, with which errors others are refused, and how they are shown.
func TestTriggerLanguage(t *testing.T) { compareTriggerTexts(t, testguest.Shared(t)) }

func compareTriggerTexts(t *testing.T, g *testguest.Guest) {
	t.Helper()
	errs, shown := make([]syscall.Errno, len(triggerTexts)), make([]string, len(triggerTexts))
	remove := ownEvents(t, g, languageProbes...)
	for i, texts := range triggerTexts {
		errs[i], shown[i] = itsTrigger(t, g, texts)
	}
	for text, why := range triggerDifferences {
		if e, _ := itsTrigger(t, g, []string{text}); e != 0 {
			t.Errorf("the guest's own refuses %s too (%s): %v", text, why, e)
		}
		if _, err := event.ParseTrigger(text); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	remove()
	p := attach(t, g, nil)
	defer p.close()
	evs := p.add(nil, languageProbes...)
	for i, texts := range triggerTexts {
		set := triggersOf(p, evs)
		var err error
		for _, text := range texts {
			_, err = triggerLine("a " + text).add(set)
		}
		if errs[i] != 0 {
			if !errors.Is(err, errs[i]) {
				t.Errorf("%q: %v; the guest's own: %v", texts, err, errs[i])
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v; the guest's own takes it", texts, err)
			continue
		}
		def, err := event.ParseTrigger(texts[len(texts)-1])
		if err != nil {
			t.Fatal(err)
		}
		want := def.String()
		if def.Hist != nil {
			want = fmt.Sprint(def.Hist, " [active]")
		}
		if !slices.Contains(strings.Split(shown[i], "\n"), want) {
			t.Errorf("%q is %s; the guest's own: %s", texts, want, shown[i])
		}
	}
}

package guest_test

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/testguest"
)

// histTrigger is a histogram of an event.
type histTrigger struct{ event, spec string }

// histCase is what is written to the guest's own files, and asked of ours.
type histCase struct {
	synth    []string
	triggers []histTrigger
}

// The probes of the cases: of a call of openat, in the order of their times. name is the same in the first two.
var histProbes = []string{
	"p:in do_sys_openat2 dfd=%di:s32 name=+0(%si):ustring flags=+0(%dx):u64 low=+0(%dx):u8",
	"p:fin do_filp_open dfd=%di:s32 name=+0(+0(%si)):string num=%di:u64",
	"p:last alloc_empty_file mode=%di:u32",
}

const histFilter = ` if COMM == "hit" || COMM == "cat"`

// opensInTurn opens files with flags that come and go.
func opensInTurn(g *testguest.Guest) {
	for _, flags := range []string{"0", "2048", "65536", "0", "2048"} {
		g.Hit("openname", 3, 0, "/proc/version", flags, "0")
		g.Hit("openname", 2, 0, "/proc/uptime", flags, "0")
	}
	opens(g)
}

// histErrors are the errors of the guest's log: each with the text and the caret.
func histErrors(log string) []string {
	var all []string
	for _, e := range regexp.MustCompile(`(?m)^\[.*?\] `).Split(log, -1) {
		if _, text, ok := strings.Cut(e, "error: "); ok {
			all = append(all, strings.TrimRight(text, "\n"))
		}
	}
	return all
}

// itsHistograms writes triggers to the guest's own files. If it refuses one it gives the errors, else what the files show after the
// calls, and the lines of synthetic events.
func (c *histCase) itsHistograms(t *testing.T, g *testguest.Guest, calls func(*testguest.Guest)) (texts, refused []string, lines string) {
	t.Helper()
	file := func(ev, name string) string {
		dir := own
		if _, ok := strings.CutPrefix(ev, event.SyntheticGroup+"/"); ok {
			dir = tracing + "events/"
		}
		return dir + ev + "/" + name
	}
	for _, s := range c.synth {
		if e := g.Write(tracing+"dynamic_events", s+"\n", false); e != 0 {
			t.Fatalf("%s: %v", s, e)
		}
		name, _, _ := strings.Cut(s, " ")
		defer g.Write(tracing+"dynamic_events", "-:synthetic/"+name[len("s:"):]+"\n", false)
	}
	g.Write(tracing+"error_log", "", true)
	for _, h := range c.triggers {
		if e := g.Write(file(h.event, "trigger"), "hist:"+h.spec+histFilter, false); e != 0 {
			log, err := g.Read(tracing + "error_log")
			if err != nil {
				t.Fatal(err)
			}
			return nil, append(histErrors(log), e.Error()), ""
		}
		defer g.Write(file(h.event, "trigger"), "!hist:"+h.spec+histFilter, false)
	}
	if calls == nil {
		return nil, nil, ""
	}
	g.Write(tracing+"events/synthetic/enable", "1", true)
	g.Write(tracing+"trace", "", true)
	calls(g)
	g.Write(tracing+"events/synthetic/enable", "0", true)
	for _, h := range c.triggers {
		text, err := g.Read(file(h.event, "hist"))
		if err != nil {
			t.Fatal(err)
		}
		// The file has a histogram for each field of another event that an action traces: it comes second.
		text, _, _ = strings.Cut(text, "\n\n\n# event histogram")
		text = strings.ReplaceAll(text, "$kprobes.in.f", "kprobes.in.$f") // before Linux 6.3
		texts = append(texts, strings.TrimRight(text, "\n")+"\n")
	}
	return texts, nil, g.Shell("grep -v '^#' " + tracing + "trace | grep -E ': s[0-9]: ' | sed -E 's/.* (s[0-9]: )/\\1/'; true")
}

// ourHistograms asks the same of ours.
func (c *histCase) ourHistograms(p *probed, calls func(*testguest.Guest)) (texts []string, refused *event.HistError, lines string) {
	p.Helper()
	set, remove := histogramsOf(p)
	defer remove()
	names := hit.Printer{Names: testNames{}}
	var out []byte
	set.Traced = func(s *event.Synthetic, h *hit.Hit, vs []fetch.Value) {
		line := string(names.Synthetic(nil, s, h, vs))
		out = append(out, line[strings.LastIndex(line, " "+s.Name+": ")+1:]...)
	}
	for _, s := range c.synth {
		def, err := event.ParseSynthetic(s)
		if err != nil {
			p.Fatal(err)
		}
		set.Synthetic(def)
	}
	hists, err := c.add(set)
	if errors.As(err, &refused) {
		return nil, refused, ""
	}
	if err != nil {
		p.Fatal(err)
	}
	if calls == nil {
		return nil, nil, ""
	}
	p.hits = nil
	calls(p.g)
	p.poll()
	for i := range p.hits {
		k := &p.hits[i]
		vs, err := k.Event.Prog.Decode(k.Rec, k.Event.ArgsOff, k.Comm)
		if err != nil {
			p.Fatal(err)
		}
		set.Hit(k, vs, k.Comm)
	}
	for _, h := range hists {
		texts = append(texts, string(h.AppendText(nil, p.core.Symbol)))
	}
	return texts, nil, string(out)
}

// add makes the histograms of the case.
func (c *histCase) add(set *hit.Histograms) (hists []*hit.Histogram, err error) {
	for _, t := range c.triggers {
		def, err := event.ParseHist(t.spec + histFilter)
		if err != nil {
			return nil, err
		}
		group, name, ok := strings.Cut(t.event, "/")
		if !ok {
			group, name = event.DefaultGroup, t.event
		}
		h, err := set.Add(group, name, def)
		if err != nil {
			return nil, err
		}
		hists = append(hists, h)
	}
	return hists, nil
}

// histogramsOf arms the probes of the cases, for a set that has no histogram yet.
func histogramsOf(p *probed) (set *hit.Histograms, remove func()) {
	p.Helper()
	var defs []*event.Def
	for _, text := range histProbes {
		d, err := event.Parse(text)
		if err != nil {
			p.Fatal(err)
		}
		d.Filter = strings.TrimPrefix(histFilter, " if ")
		defs = append(defs, d)
	}
	evs, err := p.core.Add(defs, nil)
	if err != nil {
		p.Fatal(err)
	}
	set = hit.NewHistograms()
	for i, e := range evs {
		set.Event(defs[i].Group, e.Name, engine.OfEvent(e).Prog)
	}
	return set, func() {
		if err := p.core.Remove(evs); err != nil {
			p.Fatal(err)
		}
	}
}

// testNames is a Namer that knows nothing.
type testNames struct{}

func (testNames) Symbol(uint64) (fetch.Sym, bool) { return fetch.Sym{}, false }
func (testNames) Comm(int) string                 { return "comm" }

// TestHistogramVariables compares histograms with variables, expressions and actions with those that the guest's own tracer makes of
// the same triggers in the same calls: the whole text. What it refuses is refused with one of the errors that it logs, under the same
// place. A short run tries every third of both.
func TestHistogramVariables(t *testing.T) {
	compareHistograms(t, testguest.Shared(t), some(histGood), some(histBad))
}

// some are all cases in a long run, and every third in a short one.
func some(cases []histCase) (out []histCase) {
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		return cases
	}
	for i := 0; i < len(cases); i += 3 {
		out = append(out, cases[i])
	}
	return out
}

func compareHistograms(t *testing.T, g *testguest.Guest, good, bad []histCase) {
	t.Helper()
	var texts, errs [][]string
	var lines []string
	remove := ownEvents(t, g, histProbes...)
	for _, c := range good {
		text, refused, line := c.itsHistograms(t, g, opensInTurn)
		if refused != nil {
			t.Errorf("the guest's own refuses %v: %q", c, refused)
		}
		texts, lines = append(texts, text), append(lines, line)
	}
	for _, c := range bad {
		_, refused, _ := c.itsHistograms(t, g, nil)
		if refused == nil {
			t.Errorf("the guest's own takes %v", c)
		}
		errs = append(errs, refused)
	}
	remove()
	p := attach(t, g, nil)
	defer p.close()
	for i, c := range good {
		got, refused, line := c.ourHistograms(p, opensInTurn)
		if refused != nil {
			t.Errorf("%v: %v", c, refused)
			continue
		}
		for k := range got {
			if texts[i] != nil && got[k] != texts[i][k] {
				t.Errorf("%v:\n%s\nthe guest's own:\n%s", c.triggers[k], got[k], texts[i][k])
			}
		}
		// The lines of one that has a histogram are not printed here.
		if line != lines[i] && !strings.HasPrefix(c.triggers[len(c.triggers)-1].event, event.SyntheticGroup) {
			t.Errorf("%v: lines\n%s\nthe guest's own:\n%s", c, line, lines[i])
		}
	}
	for i, c := range bad {
		_, refused, _ := c.ourHistograms(p, nil)
		if refused == nil {
			t.Errorf("%v is taken; the guest's own: %q", c, errs[i])
			continue
		}
		_, text, _ := strings.Cut(strings.TrimRight(refused.Detail(), "\n"), "error: ")
		if !slices.Contains(errs[i], text) && !(refused.Code == event.HistErrno && len(errs[i]) == 1) {
			t.Errorf("%v: %s\nthe guest's own:\n%s", c, text, strings.Join(errs[i], "\n"))
		}
	}
}

// TestHistogramDifferences has what is not as the guest's own tracer has it: what it shows, or whether it takes it.
func TestHistogramDifferences(t *testing.T) {
	g := testguest.Shared(t)
	texts, taken := make([][]string, len(histDifferences)), make([]bool, len(histDifferences))
	remove := ownEvents(t, g, histProbes...)
	for i, d := range histDifferences {
		var refused []string
		texts[i], refused, _ = d.c.itsHistograms(t, g, opensInTurn)
		taken[i] = refused == nil
	}
	remove()
	p := attach(t, g, nil)
	for i, d := range histDifferences {
		got, refused, _ := d.c.ourHistograms(p, opensInTurn)
		if taken[i] == (refused == nil) && slices.Equal(got, texts[i]) {
			t.Errorf("%s, but it is as here: %v", d.why, got)
		}
		if refused != nil && !taken[i] {
			t.Errorf("%s, but both refuse it: %v", d.why, refused)
		}
	}
}

// TestSyntheticEvents compares what is said of wrong definitions of synthetic events with what the guest's own tracer logs.
func TestSyntheticEvents(t *testing.T) {
	g := testguest.Shared(t)
	for _, s := range synthBad {
		g.Write(tracing+"error_log", "", true)
		if e := g.Write(tracing+"dynamic_events", s+"\n", false); e == 0 {
			t.Errorf("the guest's own takes %q", s)
			g.Write(tracing+"dynamic_events", "-:synthetic/s1\n", false)
		}
		log, err := g.Read(tracing + "error_log")
		if err != nil {
			t.Fatal(err)
		}
		_, err = event.ParseSynthetic(s)
		var refused *event.SyntheticError
		if !errors.As(err, &refused) {
			t.Errorf("%q: %v; the guest's own: %s", s, err, log)
			continue
		}
		_, text, _ := strings.Cut(strings.TrimRight(refused.Detail(), "\n"), "error: ")
		if theirs := histErrors(log); !slices.Contains(theirs, text) {
			t.Errorf("%q:\n%s\nthe guest's own:\n%s", s, text, strings.Join(theirs, "\n"))
		}
	}
}

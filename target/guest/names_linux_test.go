package guest_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/testguest"
)

// eventLines are the normal lines of a process by their event, each in its order.
func eventLines(pid int, lines []string) map[string][]string {
	out := map[string][]string{}
	mark := regexp.MustCompile(fmt.Sprintf(`^ *hit-%d +\[\d+\] \S+ +[0-9.]+: ([^:]+): (.*)$`, pid))
	for _, l := range lines {
		if m := mark.FindStringSubmatch(l); m != nil {
			out[m[1]] = append(out[m[1]], caller.ReplaceAllString(m[2], "(<- "))
		}
	}
	return out
}

// compareNames gives the guest's own kprobe_events definitions that name arguments, and ours the same. The lines of the same calls, and
// the format files, must be the same; of definitions that are refused the texts and the carets.
func compareNames(t *testing.T, g *testguest.Guest) {
	t.Helper()
	p := attach(t, g, nil)
	defer p.close()
	defer ownEvents(t, g, namesGood...)()
	evs := p.add(nil, namesGood...)
	for _, e := range evs {
		text, err := g.Read(own + e.Name + "/format")
		if err != nil {
			t.Fatal(err)
		}
		ev := engine.OfEvent(e)
		ours := hit.Format(ev.Def, ev.Prog, 7)
		if its := regexp.MustCompile(`(?m)^ID: \d+$`).ReplaceAllString(text, "ID: 7"); its != ours {
			t.Errorf("%s: the format is\n%s\nthe guest's own:\n%s", e.Name, ours, its)
		}
	}
	g.Write(tracing+"trace", "", true)
	for _, hits := range [][]string{{"openname", "/proc/version", "2048", "0"}, {"openname", "/no/such", "577", "420"}, {"tcp"}} {
		p.hits = nil
		c := g.Hit(hits[0], 3, 0, hits[1:]...)
		p.poll()
		ours := eventLines(c.PID, p.lines())
		its := eventLines(c.PID, strings.Split(g.Shell("cat "+tracing+"trace"), "\n"))
		for _, e := range evs {
			if a, b := ours[e.Name], its[e.Name]; !slices.Equal(a, b) {
				t.Errorf("%s: %s: lines\n%q\nthe guest's own\n%q", hits[0], e.Name, a, b)
			}
		}
	}
	for _, d := range namesBad {
		g.Write(tracing+"error_log", "", true)
		no := g.Write(tracing+"kprobe_events", d+"\n", false)
		log, err := g.Read(tracing + "error_log")
		if err != nil {
			t.Fatal(err)
		}
		its := histErrors(log)
		_, err = p.tryAdd(nil, d)
		var bad *event.Error
		if !errors.As(err, &bad) {
			t.Errorf("%s: %v; the guest's own: %v %q", d, err, no, its)
			continue
		}
		_, ours, _ := strings.Cut(strings.TrimRight(bad.Detail(), "\n"), "error: ")
		if bad.Code.Errno() != no || !slices.Equal(its, []string{ours}) {
			t.Errorf("%s: %v\n%s\nthe guest's own: %v\n%s", d, bad.Code.Errno(), ours, no, strings.Join(its, "\n"))
		}
	}
}

func TestNamesTry(t *testing.T) {
	g := testguest.Boot(t, &otherKernels[4].o)
	compareNames(t, g)
}

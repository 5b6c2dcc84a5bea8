package guest_test

import (
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testguest"
)

// TestFilter compares what a filter lets pass with what its event without one records in the same calls: where the vCPU runs
// it (numbers in registers), and where the reader does.
func TestFilter(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	cases := []struct{ def, filter, also string }{
		{"openat do_sys_openat2 dfd=%di:s32 name=+0(%si):ustring flags=+0(%dx):x64", "dfd == -100 && !(dfd > 0)", "dfd=-100 "},
		{"openat do_sys_openat2 dfd=%di:s32 name=+0(%si):ustring flags=+0(%dx):x64", `name ~ "/no/*"`, `name="/no/`},
		{"openat do_sys_openat2 dfd=%di:s32 name=+0(%si):ustring flags=+0(%dx):x64", `name == "nothing" || dfd == 1`, "dfd=1 "},
		{"openat do_sys_openat2 dfd=%di:s32 name=+0(%si):ustring comm=$comm", `COMM == "hit"`, `comm="hit"`},
		{"ret do_sys_openat2%return ret=$retval:s32", "ret < 0", "ret=-"},
	}
	var defs []*event.Def
	for i, c := range cases {
		name := string('a' + rune(i))
		for _, filter := range []string{"", c.filter} {
			d, err := event.Parse("p:" + name + strings.TrimPrefix(c.def, strings.Fields(c.def)[0]))
			if err != nil {
				t.Fatal(err)
			}
			d.Filter = filter
			if filter != "" {
				d.Name += "_filtered"
			}
			defs = append(defs, d)
		}
	}
	evs, err := p.core.Add(defs, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.g.Hit("open", 50, 0)
	p.g.Shell("cat /proc/self/status >/dev/null; ls / >/dev/null")
	p.poll()
	lines := map[string][]string{}
	for i, l := range p.lines() {
		name := p.hits[i].Event.Name
		lines[name] = append(lines[name], l)
	}
	for i, c := range cases {
		all, some := evs[2*i], evs[2*i+1]
		want := 0
		for _, l := range lines[all.Name] {
			if strings.Contains(l, c.also) {
				want++
			}
		}
		n, whole := p.core.Counts(some), p.core.Counts(all)
		if got := len(lines[some.Name]); got != want || n.Read != uint64(want) || n.Hits != whole.Hits || n.Filtered != whole.Hits-uint64(want) || n.Lost != 0 {
			t.Errorf("%s: %d lines, want %d; %+v, without %+v", c.filter, got, want, n, whole)
		}
		if want == len(lines[all.Name]) && i != 0 {
			t.Errorf("%s: all %d pass", c.filter, want)
		}
	}
}

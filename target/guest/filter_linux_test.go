package guest_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testguest"
)

// TestFilter compares what a filter lets pass with what its event without one records in the same calls, and with what an event
// that only counts has counted: the vCPU runs it, but for those on what only a record has, which the reader runs.
func TestFilter(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	long := "/no/" + strings.Repeat("long", 30) // more than is staged
	const open = "openat do_sys_openat2 name=+0(%si):ustring"
	const opened = "opened do_filp_open name=+0(+0(%si)):string path=+0(%si):x64"
	cases := []struct{ def, filter, also string }{
		{open, `name == "` + long + `"`, `name="` + long + `"`},
		{open, `name ~ "*glo*" && name ~ "/[!m-z]*"`, "none"},
		{open, `name ~ "*glongl*" && name ~ "/[m-z]*"`, `name="/no/long`},
		{open, `name != "/no/such" && name ~ "/no/l*"`, `name="/no/long`},
		{open + " second=+4(%si):ustring", `second == "" && name ~ "/no*"`, `name="/no/"`},
		{open + " second=+4(%si):ustring", `second ~ "*g"`, `longlong" second`},
		{open + " bad=+0(%di):ustring", `bad != "x"`, "none"},
		{open + " at=+0(%dx):u64", "at > 0 && name ~ \"/n?/*\"", `name="/no/`},
		{open + " bad=+0(%di):u64", `bad == 0 && name == "/no/such"`, `name="/no/such"`},
		{opened, `name ~ "/no/*" && path > 0xffff000000000000`, `name="/no/`},
		{opened, `name == "` + long + `"`, `name="` + long + `"`},
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
	counters := p.counters(t, defs)
	p.poll() // hits that the counters have not all seen
	before, base := len(p.hits), map[*kprobes.Event]kprobes.Counts{}
	for _, e := range counters {
		base[e] = p.core.Counts(e)
	}
	p.g.Hit("open", 50, 0)
	for _, name := range []string{long, "/no/such", "/no/", long[:63], long[:64], long[:65]} {
		p.g.Hit("openname", 3, 0, name, "0", "0")
	}
	p.g.Shell("cat /proc/self/status >/dev/null; ls / >/dev/null")
	p.poll()
	lines, later := map[string][]string{}, map[string][]string{}
	for i, l := range p.lines() {
		name := p.hits[i].Event.Name
		lines[name] = append(lines[name], l)
		if i >= before {
			later[name] = append(later[name], l)
		}
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
		if counter := counters[some.Name]; counter != nil {
			n, b, pass := p.core.Counts(counter), base[counter], len(later[some.Name])
			n.Hits, n.Filtered = n.Hits-b.Hits, n.Filtered-b.Filtered
			if all := len(later[all.Name]); n.Hits != uint64(all) || n.Filtered != uint64(all-pass) || n.Read != 0 || n.Lost != 0 {
				t.Errorf("%s: the counter has %+v, of %d of which %d pass", c.filter, n, all, pass)
			}
		} else if !strings.HasPrefix(c.filter, "COMM") {
			t.Errorf("%s is not counted", c.filter)
		}
		if want == len(lines[all.Name]) && !strings.HasPrefix(c.filter, "dfd == -100") {
			t.Errorf("%s: all %d pass", c.filter, want)
		}
	}
}

// counters adds an event that only counts for each definition with a filter that the code at the hit can run, and gives them by the
// definitions' names.
func (p *probed) counters(t *testing.T, defs []*event.Def) map[string]*kprobes.Event {
	t.Helper()
	out := map[string]*kprobes.Event{}
	for _, d := range defs {
		if d.Filter == "" {
			continue
		}
		counts := *d
		counts.Name += "_counted"
		evs, err := p.core.Add([]*event.Def{&counts}, &kprobes.AddOptions{Count: true})
		if strings.HasPrefix(d.Filter, "COMM") {
			if !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "the code at the hit can not run it") {
				t.Errorf("%s of a counter: %v", d.Filter, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s of a counter: %v", d.Filter, err)
			continue
		}
		out[d.Name] = evs[0]
	}
	return out
}

package agentconfig

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/budget"
	"kprobes.dev/kprobes/internal/executables"
	"kprobes.dev/kprobes/internal/otlp"
)

// probe is a target with a probe, whose lines begin in line 4.
func probe(lines ...string) string {
	return "targets:\n- name: a\n  pid: 1\n  probes:\n  - " + strings.Join(lines, "\n    ") + "\n"
}

// sets is a target with sets, which stand in line 4.
func sets(names ...string) string {
	return "targets:\n- name: a\n  pid: 1\n  sets: [" + strings.Join(names, ", ") + "]\notlp: {endpoint: 'http://h'}\n"
}

// TestRefused has files that are refused, with the place and the reason.
func TestRefused(t *testing.T) {
	wrongSet := filepath.Join(t.TempDir(), "wrong.txt")
	if err := os.WriteFile(wrongSet, []byte("format 1\nmain.f --loud yes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "line 1, column 1: the file is empty"},
		{"no YAML", "a: [", "line 1: did not find"},
		{"a list", "- a", "line 1, column 1: the file: keys and values is wanted, not a list"},
		{"unknown key", "target: []", `line 1, column 1: the file: there is no key "target": write one of audit_log, listen, otlp, targets, token_file`},
		{"no targets", "audit_log: x", "line 1, column 1: targets are missing"},
		{"empty list", "targets: []", "line 1, column 10: targets: the list is empty"},
		{"key twice", "audit_log: a\naudit_log: b", `line 2, column 1: the file: key "audit_log" is there twice, first in line 1`},
		{"two documents", probe("define: p look") + "---\na: b\n", "a second document begins here"},
		{"alias", "audit_log: &a x\ntoken_file: *a", "line 2, column 13: token_file: *a is an alias"},
		{"no token", "listen: 127.0.0.1:1\n" + probe("define: p look"), "line 1, column 9: listen: no request is answered without a token"},
		{"token alone", "token_file: x\n" + probe("define: p look"), "line 1, column 1: token_file is for listen"},
		{"two names", probe("define: p look") + "- name: a\n  pid: 2\n  probes:\n  - define: g\n", "line 6, column 3: target a: there is one of this name in line 2"},
		{"no name", "targets:\n- pid: 1\n  probes: [{define: p look}]", "line 2, column 3: a target: name is missing"},
		{"name", "targets:\n- name: a b\n  pid: 1\n  probes: [{define: p look}]", `line 2, column 9: name "a b"`},
		{"pid", "targets:\n- name: a\n  pid: -1\n  probes: [{define: p look}]", `line 3, column 8: pid "-1"`},
		{"pid and pidfile", "targets:\n- name: a\n  pid: 1\n  pidfile: f\n  probes: [{define: p look}]", "line 2, column 3: target a: write pid, pidfile or exe"},
		{"no process", "targets:\n- name: a\n  probes: [{define: p look}]", "line 2, column 3: target a: write pid, pidfile or exe"},
		{"exe and pid", "targets:\n- name: a\n  exe: /bin/ls\n  pid: 1\n  probes: [{define: p look}]", "line 2, column 3: target a: write pid, pidfile or exe"},
		{"exe", "targets:\n- name: a\n  exe: bin/ls\n  probes: [{define: p look}]", `line 3, column 8: exe "bin/ls": give the whole path`},
		{"cgroup alone", "targets:\n- name: a\n  cgroup: /a\n  probes: [{define: p look}]", "line 3, column 11: target a: cgroup and container choose among"},
		{"container alone", "targets:\n- name: a\n  pid: 1\n  container: 0123456789ab\n  probes: [{define: p look}]", "line 4, column 14: target a: cgroup and container choose among"},
		{"cgroup", "targets:\n- name: a\n  exe: /bin/ls\n  cgroup: system.slice\n  probes: [{define: p look}]", `line 4, column 11: control group "system.slice": give its whole path`},
		{"container", "targets:\n- name: a\n  exe: /bin/ls\n  container: web\n  probes: [{define: p look}]", `line 4, column 14: container "web": give its id`},
		{"definition", probe("define: 'p:x f a=$arg1:u7'"), "line 5, column 13: define \"p:x f a=$arg1:u7\": column"},
		{"deletion", probe("define: '-:x'"), "this is no probe"},
		{"no definition", probe("filter: n > 1"), "line 5, column 5: a probe: define is missing"},
		{"events", probe("define: 'p:x f'") + "  - define: 'p:x g'\n", "line 6, column 13: define: the target has an event x in line 5"},
		{"budget", probe("define: p look", "budget: 10"), `line 6, column 13: budget "10": hits a second are wanted`},
		{"budgets", probe("define: p look", "budget: [10/s, x]"), `line 6, column 20: budget "x"`},
		{"hist", probe("define: p look", "hist: keys="), `line 6, column 11: hist "keys="`},
		{"stack", probe("define: p look", "hist: keys=common_stacktrace"), "a stack is no label"},
		{"two filters", probe("define: p look n=$arg1", "filter: n > 1", "hist: keys=n if n > 2"), "line 7, column 11: hist \"keys=n if n > 2\": the probe has filter already"},
		{"variables", probe("define: p look n=$arg1", "hist: 'keys=n:a=n'"), "variables, actions"},
		{"spans of an entry", "otlp: {endpoint: 'http://h'}\n" + probe("define: p look", "spans: true"), "a span is a call of a function"},
		{"spans without a place", probe("define: r look", "spans: true"), "spans have nowhere to go"},
		{"spans", probe("define: r look", "spans: maybe"), `line 6, column 12: spans "maybe": true or false is wanted`},
		{"failed", probe("define: r look", "failed: a < 0"), "failed is for spans"},
		{"kind", probe("define: r look", "spans: true", "kind: loud"), `line 7, column 11: kind "loud": internal, server`},
		{"kind alone", probe("define: r look", "kind: client"), "line 6, column 11: kind is for spans"},
		{"attribute without spans", probe("define: 'r look a.b=$arg1'"), "line 5, column 13: define"},
		{"attribute twice", "otlp: {endpoint: 'http://h'}\n" + probe("define: 'r look a.b=$arg1 a_b=$arg2'", "spans: true"), "line 6, column 13: define"},
		{"set", sets("net", "nett"), `line 4, column 15: sets: no set is called "nett"; there are `},
		{"set twice", sets("net", "net"), "line 4, column 15: sets: net is there twice, first in line 4"},
		{"set's path", sets("./my.txt"), "line 4, column 10: sets: ./my.txt: give the whole path of the file"},
		{"set's file", sets("/no/such.txt"), "line 4, column 10: sets: stat /no/such.txt: no such file"},
		{"set's directory", sets("/"), "line 4, column 10: sets: / is no regular file"},
		{"set's line", sets(wrongSet), "wrong.txt:2: option --loud is not known"},
		{"sets without a place", "targets:\n- name: a\n  pid: 1\n  sets: [net]\n", "spans have nowhere to go"},
		{"no probes", "targets:\n- name: a\n  pid: 1\n", "line 2, column 3: target a: probes are missing: write at least one, or sets"},
		{"endpoint", "otlp: {endpoint: 'ftp://h'}\n" + probe("define: p look"), "line 1, column 18: endpoint"},
		{"header", "otlp: {endpoint: 'http://h', headers: {'a b': c}}\n" + probe("define: p look"), `headers: "a b" is no name of a header`},
		{"label", probe("define: p look", "labels: {a-b: c}"), `labels: "a-b" is no name of a label`},
		{"label that is taken", probe("define: p look", "labels: {event: c}"), `metrics have a label "event" already`},
		{"all that is wrong", "lisen: a\ntargets: 5", "line 2, column 10: targets: a list is wanted, not one value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse([]byte(c.text))
			if err == nil || got != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s\n%v\nwant %s", c.text, err, c.want)
			}
		})
	}
}

// example is the one of the manual page.
func example(t testing.TB) string {
	page, err := os.ReadFile("../../docs/kprobe-agent.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	text, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the page has no example")
	}
	return text
}

// TestExample reads the example of the manual page. It has every key.
func TestExample(t *testing.T) {
	text := example(t)
	c, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"listen", "token_file", "audit_log", "otlp", "endpoint", "headers", "service", "targets", "name", "pid", "pidfile", "exe", "cgroup", "container", "labels", "probes", "define", "filter", "hist", "spans", "failed", "kind", "budget", "sets"} {
		if !strings.Contains(text, key+":") {
			t.Errorf("key %s is not in the example", key)
		}
	}
	for _, target := range c.Targets {
		for _, p := range target.Probes {
			if p.Spans {
				if calls, err := p.Calls(); err != nil || len(calls) == 0 {
					t.Errorf("%s: %v", p.Define, err)
				}
			} else if d, err := p.Def(); err != nil || (d.Hist == nil) != (p.Hist == "") {
				t.Errorf("%s: %v", p.Define, err)
			}
		}
	}
}

// TestTaken reads what a file says.
func TestTaken(t *testing.T) {
	text := "targets:\n- name: a\n  pidfile: /x\n  labels: {team: t, tier: u}\n  probes:\n  - define: 'p:e f n=$arg1'\n    hist: keys=n.log2 if n > 1\n    budget: [10k/s, 5ms/s]\n    labels: {tier: v}\n"
	c, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p := c.Targets[0].Probes[0]
	d, err := p.Def()
	if err != nil || d.Filter != "n > 1" || d.Name != "e" || len(d.Hist.Vals) != 1 {
		t.Errorf("%+v: %v", d, err)
	}
	if (p.Budget != budget.Budget{Hits: 10_000, Nanos: 5_000_000}) || p.Budget.String() != "10000/s 5ms/s" || p.Labels["team"] != "t" || p.Labels["tier"] != "v" {
		t.Errorf("%+v", p)
	}
	again, err := Parse([]byte("# a comment\n" + text))
	if err != nil || again.Targets[0].Probes[0].Key != p.Key {
		t.Errorf("the same probe is another: %v", err)
	}
	other, err := Parse([]byte(strings.Replace(text, "10k", "11k", 1)))
	if err != nil || other.Targets[0].Probes[0].Key == p.Key {
		t.Errorf("another probe is the same: %v", err)
	}
}

// TestSpans reads what is to become spans: attributes with dots, a kind, and sets, which are other probes when their files change.
func TestSpans(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shop.txt")
	write := func(text string) {
		if err := os.WriteFile(file, []byte("format 1\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("main.a --kind client\nmain.b\n")
	text := probe("define: 'r:q main.query db.query.text=sql n=$retval'", "spans: true", "kind: client", "filter: n > 1", "failed: n < 0") + "  sets: [net/http, " + file + "]\n  labels: {team: t}\notlp: {endpoint: 'http://h'}\n"
	c, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	p := c.Targets[0].Probes
	if len(p) != 3 || p[1].Set != "net/http" || p[2].Define != "set "+file || !p[2].Spans || p[2].Labels["team"] != "t" {
		t.Fatalf("%+v", p)
	}
	q, err := p[0].Calls()
	if err != nil || q[0].Names["db_query_text"] != "db.query.text" || q[0].Kind != otlp.KindClient || q[0].Error != "n < 0" || q[0].Def.Filter != "n > 1" || len(q[0].Def.Args) != 2 {
		t.Errorf("%+v: %v", q[0], err)
	}
	if calls, err := p[2].Calls(); err != nil || len(calls) != 2 || calls[0].Kind != otlp.KindClient {
		t.Errorf("%+v: %v", calls, err)
	}
	write("main.a\n")
	again, err := Parse([]byte(text))
	if err != nil || again.Targets[0].Probes[0].Key != p[0].Key || again.Targets[0].Probes[2].Key == p[2].Key {
		t.Errorf("what has changed is the file of a set: %v", err)
	}
}

// TestExecutable reads a target that is a program.
func TestExecutable(t *testing.T) {
	const text = "targets:\n- name: a\n  exe: /bin/ls\n  cgroup: /sys/fs/cgroup/system.slice/\n  container: 0123456789ab\n  probes: [{define: p look}]\n"
	c, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	is := c.Targets[0]
	if is.Exe != "/bin/ls" || is.Only != (executables.Only{Group: "/system.slice", Container: "0123456789ab"}) {
		t.Errorf("%+v", is)
	}
	for _, other := range []string{"exe: /bin/cat", "cgroup: /user.slice", "container: 0123456789abc"} {
		key, _, _ := strings.Cut(other, ":")
		o, err := Parse([]byte(regexp.MustCompile(key+": .*").ReplaceAllString(text, other)))
		if err != nil || is.SameProcesses(o.Targets[0]) || !is.SameProcesses(is) {
			t.Errorf("%s: %v", other, err)
		}
	}
}

// FuzzParse: whatever a file has, it is taken or refused with a reason.
func FuzzParse(f *testing.F) {
	f.Add(example(f))
	f.Add(probe("define: p look", "hist: keys=n"))
	f.Add("a: &a [*a]")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text))
		if (c == nil) != (err != nil) || err != nil && err.Error() == "" {
			t.Fatalf("%+v, %v", c, err)
		}
		if c == nil {
			return
		}
		for _, target := range c.Targets {
			for _, p := range target.Probes {
				if p.Spans {
					if calls, err := p.Calls(); err != nil || len(calls) == 0 {
						t.Errorf("%q: %v", p.Define, err)
					}
				} else if d, err := p.Def(); err != nil || d == nil {
					t.Errorf("%q: %v", p.Define, err)
				}
			}
		}
	})
}

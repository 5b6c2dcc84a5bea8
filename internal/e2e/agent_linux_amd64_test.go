package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// agentSession is an agent with its configuration file.
type agentSession struct {
	*session
	t    *testing.T
	dir  string
	file string
	addr string
}

// newAgent prepares an agent. Its probes come from write.
func newAgent(t *testing.T) *agentSession {
	dir := t.TempDir()
	a := &agentSession{t: t, dir: dir, file: filepath.Join(dir, "probes.yaml")}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(httpToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// write puts a configuration in the place of the file.
func (a *agentSession) write(more string) {
	a.t.Helper()
	text := fmt.Sprintf("listen: 127.0.0.1:0\ntoken_file: %s/token\n%s", a.dir, more)
	if err := os.WriteFile(a.file+".new", []byte(text), 0o644); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(a.file+".new", a.file); err != nil {
		a.t.Fatal(err)
	}
}

// begin starts the agent and waits until it is ready.
func (a *agentSession) begin() {
	a.t.Helper()
	a.beginAs(command(a.t, "agent", "-c", a.file))
}

// beginAs is begin by another command.
func (a *agentSession) beginAs(cmd *exec.Cmd) {
	a.t.Helper()
	a.session = &session{t: a.t}
	a.start(cmd)
	at := regexp.MustCompile(`"msg":"listening".*"address":"([^"]+)"`)
	within(a.t, "the agent to listen", func() bool {
		a.lives()
		m := at.FindStringSubmatch(a.errs.String())
		if m != nil {
			a.addr = m[1]
		}
		return m != nil
	})
	within(a.t, "the agent to be ready", func() bool { return a.get("/readyz", "", http.StatusOK) != "" })
	a.get("/healthz", "", http.StatusOK)
}

func (a *agentSession) lives() {
	a.t.Helper()
	select {
	case <-a.done:
		a.t.Fatalf("the agent ended: %s", a.errs.String())
	default:
	}
}

// get asks for a page; "" if the answer has another status.
func (a *agentSession) get(path, token string, status int) string {
	a.t.Helper()
	a.lives()
	r, err := http.NewRequest(http.MethodGet, "http://"+a.addr+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		return ""
	}
	return string(b)
}

// metrics reads the metrics. A program of Prometheus must find nothing wrong with them.
func (a *agentSession) metrics() map[string]float64 {
	a.t.Helper()
	text := a.get("/metrics", httpToken, http.StatusOK)
	if text == "" {
		a.t.Fatal("no metrics")
	}
	return metricsIn(a.t, text)
}

// is waits until a metric has a value, and tells what it has if it does not come to that.
func (a *agentSession) is(series string, want float64) {
	a.t.Helper()
	var got float64
	defer func() {
		if got != want {
			a.t.Logf("%s is %v, want %v: %s", series, got, want, a.errs.String())
		}
	}()
	within(a.t, series, func() bool { got = a.metrics()[series]; return got == want })
}

// said counts the audit lines with these words. Each is JSON.
func (a *agentSession) said(words ...string) (n int) {
	a.t.Helper()
	for line := range strings.Lines(a.errs.String()) {
		var m map[string]any
		if strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &m) != nil {
			a.t.Errorf("no audit line: %s", line)
		}
		has := true
		for _, w := range words {
			has = has && strings.Contains(line, w)
		}
		if has {
			n++
		}
	}
	return n
}

// targetOf is a target of a process, with probes as lines of YAML.
func targetOf(name string, pid int, probes ...string) string {
	return fmt.Sprintf("targets:\n- name: %s\n  pid: %d\n  labels: {team: red}\n  probes:\n", name, pid) + "  - " + strings.Join(probes, "\n  - ") + "\n"
}

const (
	pushProbe = "{define: 'p:push f_push'}"
	sixProbe  = "{define: 'p:six f_six a=%di:u64', hist: 'keys=a.log2'}"
	strProbe  = "{define: 'r:str f_str n=$arg2:u32', filter: 'n == 3', labels: {tier: gold}}"
)

// TestAgentCounts compares the metrics with what the program has counted, across reloads: what stays the same goes on counting, what is taken
// out goes, a file with a mistake changes nothing. At the end nothing is in the program.
func TestAgentCounts(t *testing.T) {
	p := program(t, "work", "2")
	a := newAgent(t)
	before := stateOf(t, p.PID)
	old := right(t, p, "go 0")
	a.write(targetOf("shop", p.PID, pushProbe, sixProbe, strProbe))
	a.begin()
	if a.get("/metrics", "", http.StatusUnauthorized) == "" {
		t.Error("the metrics are for all")
	}
	n := right(t, p, "go 1000")
	push := float64(n["f_push"] - old["f_push"])
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="push",team="red"}`, push)
	a.is(`kprobe_a_count{target="shop",group="kprobes",event="six",team="red"}`, float64(n["f_six"]-old["f_six"]))
	str := `{target="shop",group="kprobes",event="str",team="red",tier="gold"}`
	a.is("kprobe_hits_total"+str, 2000)
	a.is("kprobe_filtered_total"+str, 2000-2*float64(len(threes(1000))))
	a.is(`kprobe_target_up{target="shop"}`, 1)

	a.write("targets:\n- name: shop\n  pids: 1\n")
	a.is("kprobe_agent_config_rejected{}", 1)
	if a.said(`"msg":"reload rejected"`, "line 5, column 3", `no key \"pids\"`) != 1 {
		t.Errorf("the mistake is not told: %s", a.errs.String())
	}
	n = right(t, p, "go 10")
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="push",team="red"}`, float64(n["f_push"]-old["f_push"]))

	a.write(targetOf("shop", p.PID, pushProbe, sixProbe, "{define: 'p:ptr f_ptr'}"))
	a.is("kprobe_agent_config_rejected{}", 0)
	within(t, "the new probe", func() bool { return a.said(`"msg":"armed"`, "p:ptr") == 1 })
	if a.said(`"msg":"disarmed"`) != 1 || a.said(`"msg":"disarmed"`, "r:str", "the file has changed") != 1 || a.said(`"msg":"armed"`, "p:push") != 1 {
		t.Errorf("what is the same was touched: %s", a.errs.String())
	}
	middle := n
	n = right(t, p, "go 100")
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="push",team="red"}`, float64(n["f_push"]-old["f_push"]))
	a.is(`kprobe_a_count{target="shop",group="kprobes",event="six",team="red"}`, float64(n["f_six"]-old["f_six"]))
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="ptr",team="red"}`, float64(n["f_ptr"]-middle["f_ptr"]))
	if _, there := a.metrics()["kprobe_hits_total"+str]; there {
		t.Error("a probe that was taken out has metrics")
	}
	_ = a.cmd.Process.Signal(unix.SIGHUP)
	within(t, "SIGHUP", func() bool { return a.said(`"msg":"reload accepted"`, "SIGHUP") == 1 })
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	<-a.done
	if a.err != nil || a.said(`"msg":"ended"`) != 1 {
		t.Errorf("%v: %s", a.err, a.errs.String())
	}
	before.same(t)
	right(t, p, "go 10")
}

// threes are the calls, of n of a thread, whose second argument is 3.
func threes(n int) (out []int) {
	for i := range n {
		if i&15 == 3 {
			out = append(out, i)
		}
	}
	return out
}

// TestAgentKilled kills an agent: the program goes on, and the next agent takes out what was left, and counts.
func TestAgentKilled(t *testing.T) {
	p := program(t, "work", "2")
	a := newAgent(t)
	before := stateOf(t, p.PID)
	a.write(targetOf("shop", p.PID, pushProbe, sixProbe))
	a.begin()
	right(t, p, "go 100")
	_ = a.cmd.Process.Kill()
	<-a.done
	old := right(t, p, "go 100")
	a.begin()
	n := right(t, p, "go 100")
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="push",team="red"}`, float64(n["f_push"]-old["f_push"]))
	a.is(`kprobe_a_count{target="shop",group="kprobes",event="six",team="red"}`, float64(n["f_six"]-old["f_six"]))
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	<-a.done
	before.same(t)
}

// TestAgentPidfile has processes come and go: the counts are those of all.
func TestAgentPidfile(t *testing.T) {
	a := newAgent(t)
	file := filepath.Join(a.dir, "pid")
	a.write(fmt.Sprintf("targets:\n- name: shop\n  pidfile: %s\n  probes:\n  - %s\n  - %s\n  - {define: 'p:none nonesuch'}\n", file, pushProbe, sixProbe))
	a.begin()
	a.is(`kprobe_target_up{target="shop"}`, 0)
	var push, six uint64
	for i := range 3 {
		p := program(t, "work", "2")
		old := right(t, p, "go 0")
		if err := os.WriteFile(file, []byte(pid(p)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		within(t, "the probes", func() bool { return a.said(`"msg":"armed"`, "p:six") == i+1 })
		n := right(t, p, fmt.Sprintf("go %d", 100*(i+1)))
		push += n["f_push"] - old["f_push"]
		six += n["f_six"] - old["f_six"]
		a.is(`kprobe_hits_total{target="shop",group="kprobes",event="push"}`, float64(push))
		a.is(`kprobe_a_count{target="shop",group="kprobes",event="six"}`, float64(six))
		if i < 2 {
			p.Quit(&map[string]uint64{})
			within(t, "the end of the process", func() bool { return a.said(`"msg":"left"`) == i+1 })
			a.is(`kprobe_hits_total{target="shop",group="kprobes",event="push"}`, float64(push))
			a.is(`kprobe_a_count{target="shop",group="kprobes",event="six"}`, float64(six))
		}
	}
	a.is(`kprobe_probe_failed_total{target="shop",probe="p:none nonesuch"}`, 3)
	if a.said(`"msg":"arm failed"`, "nonesuch") != 3 {
		t.Error(a.errs.String())
	}
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	<-a.done
}

// TestAgentBudget has a probe disabled by its budget: all hits are counted, the reason is told, and another probe stays.
func TestAgentBudget(t *testing.T) {
	p := program(t, "work", "2")
	a := newAgent(t)
	a.write(targetOf("shop", p.PID, "{define: 'p:six f_six a=%di:u64', hist: 'keys=a.log2', budget: 100/s}", pushProbe))
	a.begin()
	n := right(t, p, "go 20000")
	within(t, "the event to be disabled", func() bool {
		return a.said(`"msg":"disabled"`, `"event":"six"`, "budget: more than 100 hits a second") == 1
	})
	got := a.metrics()
	of := `{target="shop",group="kprobes",event="six",team="red"}`
	if got["kprobe_over_budget_total"+of] == 0 || got["kprobe_hits_total"+of] < got["kprobe_over_budget_total"+of] || got["kprobe_hits_total"+of] > float64(n["f_six"]) {
		t.Errorf("hits %v, over %v, calls %d", got["kprobe_hits_total"+of], got["kprobe_over_budget_total"+of], n["f_six"])
	}
	if c := got["kprobe_a_count"+of]; c != got["kprobe_hits_total"+of]-got["kprobe_over_budget_total"+of] {
		t.Errorf("%v are in the histogram", c)
	}
	a.is(`kprobe_probe_disabled_events{target="shop",probe="p:six f_six a=%di:u64",team="red"}`, 1)
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="push",team="red"}`, float64(n["f_push"]))
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	<-a.done
}

// TestAgentSpans sends the calls of a process to a collector, before and after a reload that changes them.
func TestAgentSpans(t *testing.T) {
	p := program(t, "work", "2")
	c := newCollector(t)
	a := newAgent(t)
	to := fmt.Sprintf("otlp: {endpoint: '%s', service: works}\n", c.url)
	a.write(to + targetOf("shop", p.PID, "{define: 'r:str f_str n=$arg2:u32', spans: true}"))
	a.begin()
	old := right(t, p, "go 100")
	a.is(`kprobe_spans_total{target="shop",result="sent"}`, 200)
	a.write(to + targetOf("shop", p.PID, "{define: 'r:str f_str n=$arg2:u32', spans: true}", "{define: 'r:six f_six r=$retval:u64', spans: true, failed: 'r > 0'}"))
	within(t, "the new probe", func() bool { return a.said(`"msg":"armed"`, "r:six") == 1 })
	n := right(t, p, "go 50")
	a.is(`kprobe_spans_total{target="shop",result="sent"}`, float64(200+n["f_str"]-old["f_str"]+n["f_six"]-old["f_six"]))
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="str",team="red"}`, 300)
	a.is(`kprobe_spans_total{target="shop",result="unjoined"}`, 0)
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	<-a.done
	names, failed := map[string]int{}, 0
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		names[s.name]++
		if s.failed {
			failed++
		}
	}
	if names["str"] != 300 || names["six"] != 100 || failed < 90 || c.about["service.name"] != "works" {
		t.Errorf("%v, %d failed, %v", names, failed, c.about)
	}
}

// TestAgentSets has the functions of a set become spans, beside probes with a kind and attributes with dots. A set of which the program has nothing
// does not keep the others from it; a change of a set's file counts at SIGHUP.
func TestAgentSets(t *testing.T) {
	p := program(t, "work", "2")
	c := newCollector(t)
	a := newAgent(t)
	set := filepath.Join(a.dir, "mine.txt")
	write := func(text string) {
		if err := os.WriteFile(set, []byte("format 1\n"+text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("r:push f_push shop.n=none shop.n=$arg1:u64 gone=none --kind server\nf_none\n")
	a.write(fmt.Sprintf("otlp: {endpoint: '%s', service: works}\n", c.url) +
		targetOf("shop", p.PID, "{define: 'r:str f_str work.n=$arg2:u32', spans: true, kind: client, failed: 'work_n >= 0'}") + fmt.Sprintf("  sets: [%s, redis]\n", set))
	a.begin()
	old := right(t, p, "go 100")
	a.is(`kprobe_spans_total{target="shop",result="sent"}`, 400)
	a.is(fmt.Sprintf(`kprobe_probe_armed{target="shop",probe="set %s",team="red"}`, set), 1)
	a.is(`kprobe_probe_armed{target="shop",probe="set redis",team="red"}`, 0)
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="push",team="red"}`, 200)
	if n := a.said(`"msg":"arm failed"`, "set redis", "the program has none of its functions: "); n != 1 {
		t.Errorf("%d times said that the program has nothing of redis: %s", n, a.errs.String())
	}
	write("r:six f_six\n")
	_ = a.cmd.Process.Signal(unix.SIGHUP)
	within(t, "the new set", func() bool { return a.said(`"msg":"armed"`, "set "+set, "reload") == 1 })
	n := right(t, p, "go 50")
	a.is(`kprobe_spans_total{target="shop",result="sent"}`, float64(400+n["f_str"]-old["f_str"]+n["f_six"]-old["f_six"]))
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	<-a.done
	names := map[string]int{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		names[s.name]++
		want := map[string]struct {
			kind   uint64
			key    string
			failed bool
		}{"str": {kindClient, "work.n", true}, "push": {kindServer, "shop.n", false}, "six": {kind: 1, key: "thread.id"}}[s.name]
		if s.kind != want.kind || s.attrs[want.key] == "" || s.failed != want.failed || s.about["process.pid"] != fmt.Sprint(p.PID) || s.about["service.name"] != "works" {
			t.Fatalf("%+v", s)
		}
	}
	if names["str"] != 300 || names["push"] != 200 || names["six"] != 100 {
		t.Errorf("%v", names)
	}
}

// TestAgentRefuses has files that are refused at the start, and --check.
func TestAgentRefuses(t *testing.T) {
	a := newAgent(t)
	fails(t, command(t, "agent"), 2, "give the configuration file")
	fails(t, command(t, "agent", "-c", a.file), 2, "no such file")
	a.write("targts: 1\notlp: {endpoint: x}\n")
	fails(t, command(t, "agent", "-c", a.file), 2, "probes.yaml: line 3, column 1: the file: there is no key \"targts\"", "line 4, column 18: endpoint")
	a.write(targetOf("shop", os.Getpid(), pushProbe))
	if o := run(t, command(t, "agent", "--check", "-c", a.file)); o.code != 0 {
		t.Error(o)
	}
	if err := os.Chmod(filepath.Join(a.dir, "token"), 0o644); err != nil {
		t.Fatal(err)
	}
	fails(t, command(t, "agent", "-c", a.file), 2, "token_file", "chmod 600")
}

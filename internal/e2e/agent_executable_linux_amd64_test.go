package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
)

// programOf is a target of all processes of a program, with further keys and with probes as lines of YAML.
func programOf(name, exe, keys string, probes ...string) string {
	return fmt.Sprintf("targets:\n- name: %s\n  exe: %s\n%s  probes:\n  - %s\n", name, exe, keys, strings.Join(probes, "\n  - "))
}

// Probes of brief_work. The second one says how often each process has called it.
const (
	briefProbe  = "{define: 'p:a brief_work n=$arg1:u64', hist: 'keys=n.log2'}"
	briefByPID  = "{define: 'p:by brief_work', hist: 'keys=common_pid'}"
	briefReturn = "{define: 'r:b brief_work r=$retval:u64', filter: 'r >= 0'}"
)

// stops ends an agent and checks that it ends well.
func (a *agentSession) stops() {
	a.t.Helper()
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	<-a.done
	if a.err != nil || a.said(`"msg":"ended"`) != 1 {
		a.t.Errorf("%v: %s", a.err, a.errs.String())
	}
}

// processes waits until n processes of the target shop have been opened, and up of them have not been left.
func (a *agentSession) processes(n, up int) {
	a.t.Helper()
	a.is(`kprobe_target_processes_total{target="shop"}`, float64(n))
	a.is(`kprobe_target_up{target="shop"}`, float64(up))
}

// TestAgentExecutable has an agent count in all processes of a program: of one that runs and of those that come, across a reload and across a file with a mistake.
func TestAgentExecutable(t *testing.T) {
	const n = 8
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	p := testprog.Start(t, b.prog)
	before := stateOf(t, p.PID)
	a := newAgent(t)
	a.write(programOf("shop", b.prog, "", briefProbe, briefReturn))
	a.begin()
	a.processes(1, 1)
	b.run(n, 4)
	right(t, p, "go 50")
	a.processes(n+1, 1)
	_, sum := b.counted()
	sum += 50
	of := func(name, event string) string {
		return fmt.Sprintf(`%s{target="shop",group="kprobes",event="%s"}`, name, event)
	}
	a.is(of("kprobe_hits_total", "a"), float64(sum))
	a.is(of("kprobe_n_count", "a"), float64(sum))
	a.is(of("kprobe_hits_total", "b"), float64(sum))
	a.is(of("kprobe_filtered_total", "b"), 0)
	a.is(`kprobe_probe_armed{target="shop",probe="r:b brief_work r=$retval:u64"}`, 1)
	got := a.metrics()
	how := func(how string) float64 {
		return got[fmt.Sprintf(`kprobe_target_met_total{target="shop",how="%s"}`, how)]
	}
	if how("running") != 1 || how("first")+how("late") != n || how("first") == 0 {
		t.Errorf("%v that ran, %v first, %v late", how("running"), how("first"), how("late"))
	}
	if a.said(`"msg":"armed"`, "p:a brief_work") != n+1 || a.said(`"msg":"left"`, "the process has ended") != n {
		t.Errorf("want lines of each process: %s", a.errs.String())
	}

	a.write(programOf("shop", b.prog, "  cgroup: none\n", briefProbe))
	a.is("kprobe_agent_config_rejected{}", 1)
	q := testprog.Start(t, b.prog)
	a.processes(n+2, 2)
	a.write(programOf("shop", b.prog, "", briefProbe, "{define: 'p:c brief_work'}"))
	within(t, "the new probe in both processes", func() bool { return a.said(`"msg":"armed"`, "p:c ") == 2 })
	if a.said(`"msg":"disarmed"`) != 2 || a.said(`"msg":"disarmed"`, "r:b") != 2 {
		t.Errorf("what is the same was touched: %s", a.errs.String())
	}
	right(t, q, "go 7")
	q.Quit(nil)
	b.run(3, 1)
	_, after := b.counted()
	a.processes(n+5, 1)
	a.is(of("kprobe_hits_total", "a"), float64(after+50+7))
	a.is(of("kprobe_hits_total", "c"), float64(after-(sum-50)+7))
	if _, there := a.metrics()[of("kprobe_hits_total", "b")]; there {
		t.Error("a probe that was taken out has metrics")
	}
	a.stops()
	if a.said(`"msg":"left"`, "signal: terminated", pid(p)) != 1 {
		t.Error(a.errs.String())
	}
	before.same(t)
	right(t, p, "go 10")
}

// TestAgentExecutableAbsent waits for a program whose file is not there, has its processes probed when it has come, and those of what takes its place.
func TestAgentExecutableAbsent(t *testing.T) {
	built := testprog.Build(t, "brief")
	b := newBriefs(t, filepath.Join(t.TempDir(), "brief"))
	a := newAgent(t)
	a.write(programOf("shop", b.prog, "", briefProbe))
	a.begin()
	a.processes(0, 0)
	if a.said(`"msg":"waiting"`, "no such file") != 1 {
		t.Error(a.errs.String())
	}
	place := func() {
		t.Helper()
		if err := os.Rename(testprog.Copy(t, built), b.prog); err != nil {
			t.Fatal(err)
		}
	}
	place()
	p := testprog.Start(t, b.prog)
	a.processes(1, 1)
	b.run(2, 1)
	place()
	within(t, "the other file is known", func() bool { return a.said(`"msg":"replaced"`) == 1 })
	b.run(2, 1)
	_, sum := b.counted()
	a.processes(5, 1)
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="a"}`, float64(sum))
	p.Quit(nil)
	a.processes(5, 0)
	a.stops()
}

// TestAgentExecutableAgain has processes that execute the program anew, which count as others, and one that executes another program, which is left.
func TestAgentExecutableAgain(t *testing.T) {
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	shell := testprog.Copy(t, "/bin/sh")
	a := newAgent(t)
	a.write(programOf("shop", b.prog, "", briefProbe) + strings.TrimPrefix(programOf("shells", shell, "", "{define: 'p:read libc.so.6:read'}"), "targets:\n"))
	a.begin()
	for again := range 4 {
		if o := outcomeOf(t, exec.Command(b.prog, b.file, "50", "3", strconv.Itoa(again)).Run(), "", ""); o.code != 3 {
			t.Errorf("%d times again: %v", again, o)
		}
	}
	a.processes(1+2+3+4, 0)
	_, sum := b.counted()
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="a"}`, float64(sum))
	cmd := exec.Command(shell)
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	a.is(`kprobe_target_up{target="shells"}`, 1)
	if _, err := in.Write([]byte("exec sleep 1000\n")); err != nil {
		t.Fatal(err)
	}
	a.is(`kprobe_target_up{target="shells"}`, 0)
	within(t, "the reason", func() bool { return a.said(`"msg":"left"`, `"target":"shells"`, "executes another program") == 1 })
	a.stops()
}

// TestAgentRefused has a process that another tracer holds: of a program it has no probes, which is counted and told, and a target that is this process waits until the tracer ends. The other processes of the
// program and the other targets have their probes.
func TestAgentRefused(t *testing.T) {
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	held, free, other := testprog.Start(t, b.prog), testprog.Start(t, b.prog), program(t, "work", "2")
	tracer := trace(t, held.PID, "--alone", "--counters", "p:x brief_work")
	a := newAgent(t)
	a.write(programOf("shop", b.prog, "", briefProbe) + strings.TrimPrefix(targetOf("work", other.PID, pushProbe), "targets:\n") + strings.TrimPrefix(targetOf("one", held.PID, "{define: 'p:a brief_work'}"), "targets:\n"))
	a.begin()
	if a.said(`"msg":"waiting"`, `"target":"one"`, fmt.Sprintf("held by process %d ", tracer.cmd.Process.Pid)) != 1 {
		t.Errorf("it does not say what it waits for: %s", a.errs.String())
	}
	a.processes(1, 1)
	a.is(`kprobe_target_unprobed_total{target="shop",why="refused"}`, 1)
	if a.said(`"msg":"refused"`, pid(held)) != 1 {
		t.Errorf("it is not told: %s", a.errs.String())
	}
	right(t, held, "go 5")
	right(t, free, "go 7")
	b.run(2, 1)
	_, sum := b.counted()
	a.processes(3, 1)
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="a"}`, float64(sum+7))
	a.is(`kprobe_target_up{target="work"}`, 1)
	tracer.interrupt()
	tracer.wait().counted(t, "x", 5, "jump")
	a.is(`kprobe_target_up{target="one"}`, 1)
	right(t, held, "go 11")
	a.is(`kprobe_hits_total{target="one",group="kprobes",event="a",team="red"}`, 11)
	a.stops()
}

// TestAgentCgroup has processes of a control group alone.
func TestAgentCgroup(t *testing.T) {
	dir, at := newGroup(t)
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	in := func(args ...string) []string {
		return append([]string{"-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, dir, b.prog}, args...)
	}
	outside := testprog.Start(t, b.prog)
	inside := testprog.Start(t, "/bin/sh", in()...)
	a := newAgent(t)
	a.write(programOf("shop", b.prog, "  cgroup: "+at+"\n", briefProbe))
	a.begin()
	a.processes(1, 1)
	b.run(3, 1)
	right(t, outside, "go 7")
	if out, err := exec.Command("/bin/sh", in(tempFile(t, "inside"), "20")...).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	right(t, inside, "go 30")
	a.processes(2, 1)
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="a"}`, 50)
	a.write(programOf("shop", b.prog, "  container: 0123456789ab\n", briefProbe))
	within(t, "the process to be left", func() bool { return a.said(`"msg":"left"`, "reload", pid(inside)) == 1 })
	a.processes(0, 0)
	a.stops()
	inside.Quit(nil)
}

// TestAgentPrometheus has Prometheus read an agent's metrics, with the token in a file: they are what the processes of a program have counted, of one that runs and of those that have ended.
func TestAgentPrometheus(t *testing.T) {
	const n = 10
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	p := testprog.Start(t, b.prog)
	a := newAgent(t)
	a.write(programOf("shop", b.prog, "", briefProbe, briefByPID))
	a.begin()
	ask := prometheus(t, a.addr)
	b.run(n, 2)
	right(t, p, "go 50")
	of, sum := b.counted()
	has := func(query, key string, want uint64) {
		t.Helper()
		got := ""
		defer func() {
			if t.Failed() {
				t.Logf("%s is %q, want %d: %v", query, got, want, ask(query))
			}
		}()
		within(t, "what Prometheus has of "+query, func() bool { got = ask(query)[key]; return got == strconv.FormatUint(want, 10) })
	}
	has(`up{job="kprobe"}`, "up   ", 1)
	has(`kprobe_target_processes_total{target="shop"}`, "kprobe_target_processes_total   ", n+1)
	has(`kprobe_target_up{target="shop"}`, "kprobe_target_up   ", 1)
	has(`kprobe_hits_total{target="shop",event="a"}`, "kprobe_hits_total a  ", sum+50)
	has(`kprobe_n_count{target="shop",event="a"}`, "kprobe_n_count a  ", sum+50)
	for pid, calls := range of {
		has(fmt.Sprintf(`kprobe_keyed_hits_total{target="shop",common_pid="%d"}`, pid), "kprobe_keyed_hits_total by  ", calls)
	}
	a.stops()
}

// use is what a process has of what could grow.
type use struct{ files, rings, threads, kib int }

func useOf(t *testing.T, of int) (u use) {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", of))
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", of))
	if err != nil {
		t.Fatal(err)
	}
	u.files, u.rings = len(files), strings.Count(string(maps), "memfd:kprobes")
	u.threads, _ = strconv.Atoi(strings.TrimSpace(field(t, of, of, "Threads")))
	u.kib, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(field(t, of, of, "VmRSS")), " kB"))
	return u
}

// TestAgentSpansOfAll has the calls of all processes of a program become spans, each with the resource of its process, over one connection.
func TestAgentSpansOfAll(t *testing.T) {
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	c := newCollector(t)
	a := newAgent(t)
	a.write(fmt.Sprintf("otlp: {endpoint: '%s'}\n", c.url) + programOf("shop", b.prog, "", "{define: 'r:call brief_work brief.n=$arg1:u64', spans: true}"))
	a.begin()
	const processes = 20
	b.run(processes, 4)
	of, total := b.counted()
	a.is(`kprobe_spans_total{target="shop",result="sent"}`, float64(total))
	a.is(`kprobe_target_up{target="shop"}`, 0)
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	<-a.done
	got := map[string]uint64{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		got[s.about["process.pid"]]++
		if s.attrs["thread.id"] != s.about["process.pid"] || s.attrs["brief.n"] == "" {
			t.Fatalf("%+v", s)
		}
	}
	for pid, calls := range of {
		if got[fmt.Sprint(pid)] != calls {
			t.Errorf("%d spans of process %d, which has made %d calls", got[fmt.Sprint(pid)], pid, calls)
		}
	}
	if len(of) != processes || len(got) != processes {
		t.Errorf("%d processes have counted, %d have spans", len(of), len(got))
	}
}

// TestAgentSpansLost has a collector that refuses all: it is said at once, and counted.
func TestAgentSpansLost(t *testing.T) {
	p := program(t, "work", "2")
	c := newCollector(t)
	c.answer = func(w http.ResponseWriter, _ int) bool {
		http.Error(w, "no room here", http.StatusForbidden)
		return true
	}
	a := newAgent(t)
	a.write(fmt.Sprintf("otlp: {endpoint: '%s'}\n", c.url) + targetOf("shop", p.PID, "{define: 'r:str f_str', spans: true}"))
	a.begin()
	right(t, p, "go 100")
	a.is(`kprobe_spans_total{target="shop",result="failed"}`, 200)
	within(t, "the loss to be said", func() bool { return a.said(`"msg":"spans lost"`, `"target":"shop"`, "no room here") == 1 })
	_ = a.cmd.Process.Signal(unix.SIGTERM)
	<-a.done
	if n := a.said(`"msg":"spans lost"`, `"failed":200`, "no room here"); n != 1 {
		t.Errorf("the sum is said %d times: %s", n, a.errs.String())
	}
}

// TestAgentDoesNotGrow has many processes come and go: nothing stays of them in the agent but their counts.
func TestAgentDoesNotGrow(t *testing.T) {
	few, many := 40, 240
	if long {
		many = 2000
	}
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	p := testprog.Start(t, b.prog)
	a := newAgent(t)
	c := newCollector(t)
	a.write(fmt.Sprintf("otlp: {endpoint: '%s'}\n", c.url) + programOf("shop", b.prog, "", briefProbe, "{define: 'r:call brief_work', spans: true, filter: 'common_pid == 0'}"))
	a.begin()
	b.run(few, 4)
	a.processes(few+1, 1)
	u := useOf(t, a.cmd.Process.Pid)
	b.run(many, 4)
	a.processes(few+many+1, 1)
	_, sum := b.counted()
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="a"}`, float64(sum))
	within(t, "the files of those that have ended to be closed", func() bool { return useOf(t, a.cmd.Process.Pid).files <= u.files+8 })
	v := useOf(t, a.cmd.Process.Pid)
	if v.rings != u.rings || v.threads > u.threads+8 || v.kib > u.kib+24<<10 {
		t.Errorf("after %d processes %+v, after %d %+v", few, u, few+many, v)
	}
	t.Logf("after %d processes %+v, after %d %+v", few, u, few+many, v)
	right(t, p, "go 10")
	a.stops()
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/holder"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// verbs are the verbs with --guest, on one guest.
type verbs struct {
	g   *testguest.Guest
	bin string
}

// TestGuestVerbs runs the verbs with --guest.
func TestGuestVerbs(t *testing.T) {
	v := &verbs{bin: build(t)}
	v.g = testguest.Boot(t, nil)
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"text", v.text},
		{"json", v.json},
		{"triggers", v.triggers},
		{"stat and counters", v.counts},
		{"spans", v.spans},
		{"metrics", v.metrics},
		{"perfetto", v.perfetto},
		{"ends", v.ends},
		{"second", v.second},
		{"users", v.users},
		{"knobs", v.knobs},
		{"budgets", v.budgets},
		{"holder killed", v.holderKilled},
		{"killed", v.killed},
		{"module", v.module},
		{"insmod", v.insmod},
		{"insmod, holder killed", v.insmodKilled},
		{"insmod, holder killed while it is asked", v.insmodKilledAsking},
		{"refused", v.refused},
		{"spec", v.spec},
		{"rebooted", v.rebooted},
		{"ended", v.ended},
	} {
		t.Run(c.name, c.test)
	}
	if bad := v.g.Trouble(); len(bad) > 0 {
		t.Errorf("the guest's kernel complains: %q", bad)
	}
}

// command is `kprobe VERB --guest SPEC ARGS`.
func (v *verbs) command(t *testing.T, verb string, args ...string) *exec.Cmd {
	return exec.CommandContext(t.Context(), v.bin, append([]string{verb, "--guest", v.g.Spec.String()}, args...)...)
}

// outcome is how a command has ended.
type outcome struct {
	out, errs string
	status    int
}

func (v *verbs) run(t *testing.T, verb string, args ...string) outcome {
	t.Helper()
	return ranTo(t, v.command(t, verb, args...))
}

func ranTo(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// tracer is a `kprobe trace --guest` that runs.
type tracer struct {
	cmd       *exec.Cmd
	out, errs bytes.Buffer
}

// start starts a tracer, and returns when its probes are in the guest: when another kprobe
// lists so many.
func (v *verbs) start(t *testing.T, probes int, args ...string) *tracer {
	t.Helper()
	return v.startCommand(t, probes, v.command(t, "trace", args...))
}

func (v *verbs) startCommand(t *testing.T, probes int, cmd *exec.Cmd) *tracer {
	t.Helper()
	tr := &tracer{cmd: cmd}
	if tr.cmd.Stderr = &tr.errs; cmd.Stdout == nil {
		tr.cmd.Stdout = &tr.out
	}
	if err := tr.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if r := v.run(t, "list"); strings.Count(r.out, "[OPTIMIZED]\n") == probes {
			return tr
		}
	}
	tr.kill()
	t.Fatalf("the probes are not armed: %s", tr.errs.String())
	return nil
}

func (tr *tracer) kill() {
	_ = tr.cmd.Process.Kill()
	_ = tr.cmd.Wait()
}

// end waits for a tracer to end, after a signal; 0 is none.
func (tr *tracer) end(t *testing.T, sig unix.Signal) outcome {
	t.Helper()
	if sig != 0 {
		if err := tr.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	var exit *exec.ExitError
	if err := tr.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{tr.out.String(), tr.errs.String(), tr.cmd.ProcessState.ExitCode()}
}

// empty checks that nothing of a tracer's is in the guest, and that it goes on.
func (v *verbs) empty(t *testing.T) {
	t.Helper()
	if r := v.run(t, "list"); r != (outcome{}) {
		t.Errorf("list: %+v", r)
	}
	if c := v.g.Hit("read", 100, 0); c.OK != 100 {
		t.Errorf("the guest does not read: %+v", c)
	}
}

// documents are the examples of Documentation/trace/kprobetrace.rst.
var documents = []string{
	"p:myprobe do_sys_openat2 dfd=%di:s32 filename=+0(%si):ustring flags=+0(%dx):x64 mode=+8(%dx):x64",
	"r:mine/myretprobe do_sys_openat2 ret=$retval:s32",
}

// hitsOf reads an event's hits from a summary.
func hitsOf(t *testing.T, summary, event string) uint64 {
	t.Helper()
	f := regexp.MustCompile(`(?m)^` + event + ` hits=(\d+) missed=0 lost=0 tactic=jump`).FindStringSubmatch(summary)
	if f == nil {
		t.Errorf("summary of %s: %q", event, summary)
		return 0
	}
	n, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		t.Error(err)
	}
	return n
}

// Every call of the program has its lines, with its values. Ctrl-C takes all out.
func (v *verbs) text(t *testing.T) {
	const calls = 3000
	tr := v.start(t, 2, documents...)
	c := v.g.Hit("openname", calls, 1, "/no/such", "0", "0")
	r := tr.end(t, unix.SIGINT)
	if r.status != 0 {
		t.Fatalf("status %d: %s", r.status, r.errs)
	}
	entry := regexp.MustCompile(fmt.Sprintf(`(?m)^ +hit-%d +\[001\] .{5} +\d+\.\d{6}: myprobe: \(do_sys_openat2\+0x0/0x[0-9a-f]+\) dfd=-100 filename="/no/such" flags=0x8000 mode=0x0$`, c.PID))
	exit := regexp.MustCompile(fmt.Sprintf(`(?m)^ +hit-%d +\[001\] .{5} +\d+\.\d{6}: myretprobe: \(\w+\+0x[0-9a-f]+/0x[0-9a-f]+ <- do_sys_openat2\) ret=-2$`, c.PID))
	if n := len(entry.FindAllString(r.out, -1)); n != calls {
		t.Errorf("%d lines of %d calls: %.1000s", n, calls, r.out)
	}
	if n := len(exit.FindAllString(r.out, -1)); n != calls {
		t.Errorf("%d returns of %d calls: %.1000s", n, calls, r.out)
	}
	for _, e := range []string{"myprobe", "myretprobe"} {
		if n := hitsOf(t, r.errs, e); n != uint64(strings.Count(r.out, ": "+e+": ")) {
			t.Errorf("%s: %d hits, %d lines", e, n, strings.Count(r.out, ": "+e+": "))
		}
	}
	v.empty(t)
}

func (v *verbs) json(t *testing.T) {
	tr := v.start(t, 2, append([]string{"--format", "json"}, documents...)...)
	c := v.g.Hit("openname", 10, 0, "/no/such", "0", "0")
	r := tr.end(t, unix.SIGTERM)
	n := map[string]int{}
	for line := range strings.Lines(r.out) {
		var l struct {
			Event, Comm string
			PID         int
			Args        map[string]any
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if l.PID == c.PID && l.Comm == "hit" && (l.Args["filename"] == "/no/such" || l.Args["ret"] == float64(-2)) {
			n[l.Event]++
		}
	}
	if r.status != 0 || n["kprobes/myprobe"] != 10 || n["mine/myretprobe"] != 10 {
		t.Errorf("status %d, lines %v, want 10 of each: %.2000s", r.status, n, r.out)
	}
	for line := range strings.Lines(r.errs) {
		var s total
		if err := json.Unmarshal([]byte(line), &s); err != nil || s.Hits < 10 || s.Tactic != "jump" {
			t.Errorf("summary %q: %v", line, err)
		}
	}
	v.empty(t)
}

// counts: --stat and --counters tell exactly what the program has counted.
func (v *verbs) counts(t *testing.T) {
	for _, flag := range []string{"--stat", "--counters"} {
		tr := v.start(t, 2, flag, "p:ppid __x64_sys_getppid", "r:ret __x64_sys_getppid")
		v.g.Hit("getppid", 5000, 0)
		v.g.Hit("getppid", 5000, 1)
		r := tr.end(t, unix.SIGINT)
		if a, b := hitsOf(t, r.errs, "ppid"), hitsOf(t, r.errs, "ret"); r.status != 0 || r.out != "" || a != 10000 || b != 10000 {
			t.Errorf("%s: %+v", flag, r)
		}
	}
	v.empty(t)
}

func (v *verbs) ends(t *testing.T) {
	r := v.run(t, "trace", "--duration", "500ms", "p:ppid __x64_sys_getppid")
	if r.status != 0 || r.out != "" || hitsOf(t, r.errs, "ppid") != 0 {
		t.Errorf("--duration: %+v", r)
	}
	tr := v.start(t, 1, "--count", "3", "p:ppid __x64_sys_getppid")
	v.g.Hit("getppid", 100, 0)
	r = tr.end(t, 0)
	if r.status != 0 || strings.Count(r.out, "sys_getppid+0x0/") != 3 || strings.Count(r.out, "\n") != 3 {
		t.Errorf("--count: %+v", r)
	}
	v.empty(t)
	heedSignals()
	for _, sig := range caught {
		tr := v.start(t, 1, "p:ppid __x64_sys_getppid")
		if r := tr.end(t, sig); r.status != 0 || hitsOf(t, r.errs, "ppid") != 0 {
			t.Errorf("%v: %+v", sig, r)
		}
		v.empty(t)
	}
	cmd := v.command(t, "trace", "p:ppid __x64_sys_getppid")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	tr = v.startCommand(t, 1, cmd)
	out.Close()
	if r := tr.end(t, 0); r.status != exitFailed || !strings.Contains(r.errs, "kprobe: stdout: broken pipe\n") {
		t.Errorf("reader gone: %+v", r)
	}
	v.empty(t)
}

// alone are the arguments of a tracer that holds the guest itself.
func alone(args ...string) []string { return append([]string{"--alone"}, args...) }

// second: while a tracer holds the guest alone, another is refused and told who it is; those that only look
// are not.
func (v *verbs) second(t *testing.T) {
	tr := v.start(t, 2, alone(documents...)...)
	holder := fmt.Sprintf("held by process %d: another kprobe holds the guest", tr.cmd.Process.Pid)
	if r := v.run(t, "trace", "p vfs_read"); r.status != 1 || r.out != "" || !strings.Contains(r.errs, holder) {
		t.Errorf("a second tracer: %+v, want %q", r, holder)
	}
	for _, args := range [][]string{nil, {"--force"}} {
		if r := v.run(t, "detach", args...); r.status != 1 || !strings.Contains(r.errs, holder) {
			t.Errorf("detach %q: %+v, want %q", args, r, holder)
		}
	}
	list := regexp.MustCompile(`^[0-9a-f]{16}  k  do_sys_openat2\+0x[05]    \[OPTIMIZED\]\n[0-9a-f]{16}  r  do_sys_openat2\+0x[05]    \[OPTIMIZED\]\n$`)
	if r := v.run(t, "list"); r.status != 0 || !list.MatchString(r.out) {
		t.Errorf("list: %+v", r)
	}
	if r := v.run(t, "funcs", "vfs_rea[d]"); r.status != 0 || !regexp.MustCompile(`^ffffffff[0-9a-f]{8} +\d+ vfs_read\n$`).MatchString(r.out) {
		t.Errorf("funcs: %+v", r)
	}
	declared := regexp.MustCompile(`^[0-9a-f]{16} +\d+ vfs_read\n\tssize_t vfs_read\(struct file \*file, char \*buf, size_t count, loff_t \*pos\)\n$`)
	if r := v.run(t, "funcs", "-v", "vfs_rea[d]"); r.status != 0 || !declared.MatchString(r.out) {
		t.Errorf("funcs -v: %+v", r)
	}
	v.g.Hit("open", 50, 0)
	if r := tr.end(t, unix.SIGINT); r.status != 0 || hitsOf(t, r.errs, "myprobe") < 50 {
		t.Errorf("the first tracer: %+v", r)
	}
	v.empty(t)
}

// users: tracers use one guest at a time, with events of the same names at the same place. One ends, or is killed, also the one that
// came first: the other's counts are right, by those of the program.
func (v *verbs) users(t *testing.T) {
	for _, c := range []struct{ first, kill bool }{{true, false}, {false, false}, {true, true}, {false, true}} {
		ends := v.start(t, 1, "--stat", "p:ppid __x64_sys_getppid")
		stays := v.start(t, 2, "--stat", "p:ppid __x64_sys_getppid")
		if !c.first {
			ends, stays = stays, ends
		}
		v.g.Hit("getppid", 1000, 0)
		if c.kill {
			ends.kill()
			v.lists(t, 1)
		} else if r := ends.end(t, unix.SIGINT); r.status != 0 || hitsOf(t, r.errs, "ppid") != 1000 {
			t.Errorf("%+v: %+v", c, r)
		}
		v.g.Hit("getppid", 500, 1)
		if r := stays.end(t, unix.SIGINT); r.status != 0 || hitsOf(t, r.errs, "ppid") != 1500 {
			t.Errorf("%+v: the other: %+v", c, r)
		}
		v.empty(t)
	}
	at := v.g.Spec.Dir // it is named from where the command runs
	cmd := exec.CommandContext(t.Context(), v.bin, "trace", "--guest", filepath.Base(at), "--count", "2", "p:ppid __x64_sys_getppid")
	cmd.Dir = filepath.Dir(at)
	tr := v.startCommand(t, 1, cmd)
	v.g.Hit("getppid", 10, 0)
	if r := tr.end(t, 0); r.status != 0 || strings.Count(r.out, ": ppid: ") != 2 {
		t.Errorf("a relative path: %+v", r)
	}
	v.empty(t)
}

// knobs: what another command turns acts on a tracer's probes; without one there is nothing to be turned.
func (v *verbs) knobs(t *testing.T) {
	if r := v.run(t, "disable"); r.status != 1 || !strings.Contains(r.errs, "nobody uses it") {
		t.Errorf("disable: %+v", r)
	}
	tr := v.start(t, 1, "--stat", "p:ppid __x64_sys_getppid")
	for _, c := range []struct {
		verb  string
		calls int
	}{{"disable", 300}, {"enable", 20}} {
		if r := v.run(t, c.verb); r != (outcome{}) {
			t.Errorf("%s: %+v", c.verb, r)
		}
		v.g.Hit("getppid", c.calls, 0)
	}
	if r := tr.end(t, unix.SIGINT); r.status != 0 || hitsOf(t, r.errs, "ppid") != 20 {
		t.Errorf("%+v", r)
	}
	v.empty(t)
}

// budgets: a busy event is disabled by itself, and armed again by kprobe enable; each hit until then has its line. A quiet one stays.
func (v *verbs) budgets(t *testing.T) {
	const calls = 20_000
	tr := v.start(t, 2, "--budget", "100/s", "p:busy __x64_sys_getppid", "p:quiet __x64_sys_getsid")
	v.g.Hit("getppid", calls, 0)
	v.armed(t, 1)
	v.g.Hit("getppid", 300, 0)
	if r := v.run(t, "enable"); r != (outcome{}) {
		t.Errorf("enable: %+v", r)
	}
	v.armed(t, 2)
	v.g.Hit("getppid", 20, 0)
	r := tr.end(t, unix.SIGINT)
	n := hitsOf(t, r.errs, "busy")
	if r.status != 0 || n < 100+20 || n > calls+20 || strings.Count(r.out, ": busy: (") != int(n) || hitsOf(t, r.errs, "quiet") != 0 {
		t.Errorf("%d hits, %d lines of %d calls: status %d: %s", n, strings.Count(r.out, ": busy: ("), calls+20, r.status, r.errs)
	}
	if !strings.Contains(r.errs, "kprobe: busy: more than 100 hits a second: disabled\n") || strings.Contains(r.errs, "quiet: more") {
		t.Errorf("%s", r.errs)
	}
	v.empty(t)
}

// armed waits until so many probes stand in the guest.
func (v *verbs) armed(t *testing.T, probes int) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if r := v.run(t, "list"); strings.Count(r.out, "[OPTIMIZED]\n") == probes {
			return
		}
	}
	t.Fatalf("not %d probes are listed: %+v", probes, v.run(t, "list"))
}

// holderKilled: when what holds the guest for tracers is killed they end and say so, and the guest goes on with what is left.
func (v *verbs) holderKilled(t *testing.T) {
	one := v.start(t, 1, "--stat", "p:a __x64_sys_getppid")
	two := v.start(t, 2, "--stat", "p:b __x64_sys_getppid")
	h, err := qemu.Holder(v.g.Spec)
	if err != nil || h == nil {
		t.Fatalf("the holder: %v, %v", h, err)
	}
	if err := unix.Kill(h.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, tr := range []*tracer{one, two} {
		if r := tr.end(t, 0); r.status != exitFailed || !strings.Contains(r.errs, fmt.Sprintf("process %d (kprobe), which held it, was killed", h.PID)) {
			t.Errorf("%+v", r)
		}
	}
	if c := v.g.Hit("getppid", 100, 0); c.OK != 100 {
		t.Errorf("the guest: %+v", c)
	}
	if err := holder.Wait(h.PID); err != nil { // its files are closed before it has ended
		t.Fatal(err)
	}
	if r := v.run(t, "detach"); r.status != 0 || !strings.Contains(r.errs, "sites restored") {
		t.Errorf("detach: %+v", r)
	}
	v.empty(t)
}

// lists waits until so many probes are listed.
func (v *verbs) lists(t *testing.T, probes int) {
	t.Helper()
	r := v.run(t, "list")
	for end := time.Now().Add(2 * time.Minute); strings.Count(r.out, "[OPTIMIZED]\n") != probes; r = v.run(t, "list") {
		if time.Now().After(end) {
			t.Fatalf("list: %+v, want %d probes", r, probes)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// module: a probe whose module was unloaded is listed as [GONE], also when its tracer was killed; loaded anew it is
// armed again.
func (v *verbs) module(t *testing.T) {
	gone := regexp.MustCompile(`^([0-9a-f]{16}  [kr]  dummy:dummy_xmit    \[GONE\]\n){2}$`)
	there := regexp.MustCompile(`^([0-9a-f]{16}  [kr]  dummy_xmit\+0x[05]  dummy \[OPTIMIZED\]\n){2}$`)
	lists := func(want *regexp.Regexp) {
		t.Helper()
		r := v.run(t, "list")
		for end := time.Now().Add(2 * time.Minute); !want.MatchString(r.out) && time.Now().Before(end); r = v.run(t, "list") {
			time.Sleep(50 * time.Millisecond)
		}
		if r.status != 0 || !want.MatchString(r.out) || strings.Count(r.out, "  k  ") != 1 {
			t.Fatalf("list: %+v, want %s", r, want)
		}
	}
	v.g.Shell("insmod " + v.g.Module("drivers/net/dummy"))
	tr := v.start(t, 2, alone("p:a dummy:dummy_xmit", "r:b dummy:dummy_xmit")...)
	defer tr.kill() // also where the test fails
	lists(there)
	v.g.Shell("rmmod dummy")
	lists(gone)
	v.g.Shell("insmod " + v.g.Module("drivers/net/dummy"))
	lists(there)
	v.g.Shell("rmmod dummy")
	lists(gone)
	tr.kill()
	lists(gone)
	if r := v.run(t, "detach"); r.status != 0 {
		t.Errorf("detach: %+v", r)
	}
	v.empty(t)
}

// killed: the probes of a killed tracer go on, are found, and are taken out by detach.
func (v *verbs) killed(t *testing.T) {
	tr := v.start(t, 2, alone(documents...)...)
	v.g.Hit("open", 50, 0)
	tr.kill()
	if c := v.g.Hit("open", 1000, 1); c.Failed != 1000 {
		t.Errorf("the guest: %+v", c)
	}
	list := regexp.MustCompile(`^[0-9a-f]{16}  k  do_sys_openat2\+0x[05]    \[OPTIMIZED\]\n[0-9a-f]{16}  r  do_sys_openat2\+0x[05]    \[OPTIMIZED\]\n$`)
	if r := v.run(t, "list"); r.status != 0 || !list.MatchString(r.out) {
		t.Errorf("list: %+v", r)
	}
	r := v.run(t, "detach")
	sites := regexp.MustCompile(`^kprobe: the guest's kernel: [1-9]\d* sites restored\n$`)
	if r.status != 0 || !sites.MatchString(r.errs) {
		t.Errorf("detach: %+v", r)
	}
	v.empty(t)
	if r := v.run(t, "detach"); r.status != 0 || r.errs != "kprobe: the guest's kernel holds nothing of ours\n" {
		t.Errorf("detach of nothing: %+v", r)
	}
	tr = v.start(t, 2, alone(documents...)...) // without detach the next tracer takes them out
	tr.kill()
	if r := v.run(t, "trace", "--duration", "100ms", "p:one vfs_read"); r.status != 0 || hitsOf(t, r.errs, "one") > 1e6 {
		t.Errorf("trace after a killed tracer: %+v", r)
	}
	v.empty(t)
	for range 2 { // so does one that probes the same functions: it sees them as they were
		tr = v.start(t, 2, alone(documents...)...)
		v.g.Hit("open", 50, 0)
		tr.kill()
		tr = v.start(t, 3, append(documents, "p:more vfs_read")...) // what the first has left counts for two
		c := v.g.Hit("open", 50, 1)
		if r := tr.end(t, unix.SIGINT); r.status != 0 || c.Failed != 50 || hitsOf(t, r.errs, "myprobe") < 50 || hitsOf(t, r.errs, "myretprobe") < 50 {
			t.Errorf("the same trace after a killed tracer: %+v", r)
		}
		v.empty(t)
	}
}

// refused: of several definitions with a bad one nothing stays.
func (v *verbs) refused(t *testing.T) {
	for _, c := range []struct {
		status int
		defs   []string
		want   string
	}{
		{2, []string{"p:good vfs_read", "p:bad do_sys_openat2 x=%foo"}, "column 24: Invalid register name"},
		{2, []string{"p:good vfs_read", "p:bad do_sys_openat2 x=+0(%di"}, "column 30: Dereference brace is not closed"},
		{1, []string{"p:good vfs_read", "p:bad no_such_function"}, "column 7"},
		{1, []string{"p:good vfs_read", "p:bad vfs_write+1"}, "column 7"},
		{2, []string{"--tactic", "none", "p vfs_read"}, "tactic"},
		{1, []string{"--tactic", "boost", "p vfs_read"}, "the tactic break"},
		{2, []string{"--buffer-size", "65536", "p vfs_read"}, "guest start --ring"},
	} {
		r := v.run(t, "trace", append([]string{"--duration", "1s"}, c.defs...)...)
		if r.status != c.status || r.out != "" || !strings.Contains(r.errs, c.want) {
			t.Errorf("%q: %+v, want status %d and %q", c.defs, r, c.status, c.want)
		}
		v.empty(t)
	}
}

// spec: a guest that can not be had is told, with what to do.
func (v *verbs) spec(t *testing.T) {
	for spec, want := range map[string]struct {
		status int
		says   string
	}{
		"/no/such":         {exitFailed, "no such file"},
		t.TempDir():        {exitFailed, "no guest of kprobe guest start lives there"},
		"qmp=/a,gdb=/b":    {exitUsage, "mem=PATH is missing"},
		"qmp=/a,dgb=/b":    {exitUsage, `"dgb=/b" is not one of`},
		"qmp=a,gdb=b,mem=": {exitUsage, "mem= has no path"},
	} {
		for _, args := range [][]string{{"trace", "--guest", spec, "p vfs_read"}, {"list", "--guest", spec}, {"detach", "--guest", spec}, {"funcs", "--guest", spec}} {
			if r := ranTo(t, exec.Command(v.bin, args...)); r.status != want.status || r.out != "" || !strings.Contains(r.errs, want.says) {
				t.Errorf("%q: %+v, want %+v", args, r, want)
			}
		}
	}
	gone := filepath.Join(t.TempDir(), "gone")
	r := ranTo(t, exec.Command(v.bin, "trace", "--guest", "qmp="+gone+",gdb="+gone+",mem="+gone, "p vfs_read"))
	if r.status != 1 || !strings.Contains(r.errs, "QEMU must be running, started with") {
		t.Errorf("a guest that does not run: %+v", r)
	}
}

// rebooted: the tracer of a guest that is rebooted ends and says so.
func (v *verbs) rebooted(t *testing.T) {
	tr := v.start(t, 2, documents...)
	v.g.Hit("open", 50, 0)
	v.g.Reboot()
	r := tr.end(t, 0)
	if r.status != 0 || !strings.HasPrefix(r.errs, "kprobe: the trace ends: the target is gone: reset\n") || hitsOf(t, r.errs, "myprobe") < 50 || strings.Count(r.out, ": myprobe: ") < 50 {
		t.Errorf("status %d, %q", r.status, r.errs)
	}
	v.empty(t)
}

// ended: so does that of a guest that is ended.
func (v *verbs) ended(t *testing.T) {
	tr := v.start(t, 2, documents...)
	v.g.Hit("open", 50, 0)
	if r := ranTo(t, exec.Command(v.bin, "guest", "stop", v.g.Spec.String())); r.status != 0 {
		t.Errorf("guest stop: %+v", r)
	}
	r := tr.end(t, 0)
	if r.status != 0 || !strings.HasPrefix(r.errs, "kprobe: the trace ends: the target is gone: shutdown\n") || hitsOf(t, r.errs, "myprobe") < 50 {
		t.Errorf("status %d, %q", r.status, r.errs)
	}
}

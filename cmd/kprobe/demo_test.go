package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"golang.org/x/sys/unix"
)

// demoMost bounds all runs of a demo. Nothing measures it: the command itself gives up after
// demoLimit, and is run again then.
const demoMost = 3 * time.Minute

// tooSlow says whether a demo gave up, since the machine was too busy for it.
func tooSlow(errs string) bool { return strings.Contains(errs, "demo took longer than") }

// demoText is all that the demo writes, with the numbers that are compared in groups.
var demoText = regexp.MustCompile(`^== 1\. A key-value server runs as process (?P<pid>\d+), with 4 clients and \d+ threads\. It knows nothing of probes\.

== 2\. Two probes go into kv\.get [^\n]+
     p:myprobe kv\.get db=%ax key=\$arg2:gostring flags=%di:x32
     r:myretprobe kv\.get \$retval:s64

(?P<header>(?:#[^\n]*\n)+)(?P<lines>(?: [^\n]+\n){12})
== 3\. The listing[^\n]+
(?P<list>(?:[0-9a-f]+  [kr]  kv\.get\+0x[0-9a-f]+    \[OPTIMIZED\]
){2})
== 4\. How long kv\.handle takes [^\n]+
     p:request kv\.handle client=\$arg1:u8 text=\$arg2:gostring
     r:reply kv\.handle text=\$retval:gostring

# event histogram
#
# keys=latency\.log2 vals=hitcount sort=latency\.log2
#

(?P<hist>(?:\{ latency: ~ 2\^\d+ *\} hitcount: +\d+  #+
)+)
Totals:
    Hits: (?P<total>\d+)
    Entries: (?P<entries>\d+)
    Dropped: 0

== 5\. Every hit is counted[^\n]+
   EVENT +FUNCTION +HITS +SERVER +MISSED +LOST
(?P<counts>   myprobe +kv\.get [ \d]+
   myretprobe +kv\.get [ \d]+
   request +kv\.handle [ \d]+
   reply +kv\.handle [ \d]+
)
== 6\. What a hit costs: the server times 400000 calls of kv\.step[^\n]+
 +NS/CALL +ADDED +RATIO
(?P<costs>   not probed +[\d.]+ +0\.0 +1\.0
   counted +[\d.]+ +[\d.]+ +[\d.]+
   recorded: time, CPU, thread, goroutine, 4 arguments +[\d.]+ +[\d.]+ +[\d.]+
   entry and return recorded and paired +[\d.]+ +[\d.]+ +[\d.]+
)   \(kprobe bench [^\n]+\)

== 7\. Everything is taken out again, and the server goes on\.
   (?P<code>\d+) bytes of code are those of the file, no mapping of ours is left;
   \d+ requests were answered since, \d+ in all, none of them wrong
$`)

// group gives a group of demoText's match.
func group(m []string, name string) string { return m[demoText.SubexpIndex(name)] }

// demoTest is the command in a directory that every user may look into.
type demoTest struct{ dir, path string }

func newDemoTest(t *testing.T) *demoTest {
	t.Helper()
	dir, err := os.MkdirTemp("", "kprobe-demo-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d := &demoTest{dir: dir, path: filepath.Join(dir, "kprobe")}
	if err := os.Rename(build(t), d.path); err != nil {
		t.Fatal(err)
	}
	return d
}

// command makes a demo's command, that may take so long, with a directory for files that it
// might make.
func (d *demoTest) command(t *testing.T, most time.Duration, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	tmp, err := os.MkdirTemp(d.dir, "tmp-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), most)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, d.path, append([]string{"demo"}, args...)...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, tmp
}

func TestDemo(t *testing.T) {
	d := newDemoTest(t)
	t.Run("self", func(t *testing.T) { d.whole(t, nil) })
	if os.Geteuid() == 0 {
		t.Run("user", func(t *testing.T) { d.whole(t, &syscall.Credential{Uid: 65534, Gid: 65534}) })
	}
	for _, step := range []int{1, 3, 4, 6, lastStep} {
		t.Run(fmt.Sprintf("interrupted at %d", step), func(t *testing.T) { d.interrupted(t, step) })
	}
	t.Run("killed", d.killed)
}

// whole runs the demo to its end.
func (d *demoTest) whole(t *testing.T, as *syscall.Credential) {
	var tmp string
	var out, errs bytes.Buffer
	for end := time.Now().Add(demoMost); ; {
		var cmd *exec.Cmd
		cmd, tmp = d.command(t, demoMost)
		cmd.SysProcAttr.Credential = as
		out.Reset()
		errs.Reset()
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		if err != nil && tooSlow(errs.String()) && time.Now().Before(end) {
			t.Log(errs.String())
			continue
		}
		if err != nil {
			t.Errorf("demo: %v", err)
		}
		break
	}
	if errs.Len() > 0 {
		t.Errorf("stderr: %s", errs.String())
	}
	m := demoText.FindStringSubmatch(out.String())
	if m == nil {
		t.Fatalf("the demo does not show what it should:\n%s", out.String())
	}
	checkDemoLines(t, m)
	checkDemoCounts(t, m)
	checkDemoCosts(t, m)
	pid, err := strconv.Atoi(group(m, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, pid, tmp)
}

// nothingLeft checks that the workload has ended and no file was left.
func nothingLeft(t *testing.T, pid int, tmp string) {
	t.Helper()
	if runs(pid) {
		t.Errorf("workload %d still runs", pid)
	}
	files, err := os.ReadDir(tmp)
	if err != nil || len(files) != 0 {
		t.Errorf("files left: %v, %v", files, err)
	}
}

// runs says whether a process is there and not merely waiting for its parent to notice
// its end.
func runs(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(b, []byte(") Z "))
}

var (
	demoProbe  = regexp.MustCompile(`^ +kvserver-\d+ +\[\d{3}\] \.{5} +\d+\.\d{6}: myprobe: \(kv\.get\+0x0/0x[0-9a-f]+\) db=0x[0-3] key="user:\d+" flags=0x[01]$`)
	demoReturn = regexp.MustCompile(`^ +kvserver-\d+ +\[\d{3}\] \.{5} +\d+\.\d{6}: myretprobe: \(kv\.answer\+0x[0-9a-f]+/0x[0-9a-f]+ <- kv\.get\) arg1=-?\d+$`)
)

func checkDemoLines(t *testing.T, m []string) {
	t.Helper()
	if got, want := group(m, "header"), hit.Header(12, runtime.NumCPU()); got != want {
		t.Errorf("header\n%swant\n%s", got, want)
	}
	var entries, returns int
	for line := range strings.Lines(group(m, "lines")) {
		switch line = strings.TrimSuffix(line, "\n"); {
		case demoProbe.MatchString(line):
			entries++
		case demoReturn.MatchString(line):
			returns++
		default:
			t.Errorf("line %q", line)
		}
	}
	if entries == 0 || returns == 0 {
		t.Errorf("%d lines of the probe and %d of the return probe", entries, returns)
	}
	if l := group(m, "list"); !strings.Contains(l, "  k  ") || !strings.Contains(l, "  r  ") {
		t.Errorf("listing\n%s", l)
	}
}

// checkDemoCounts checks that the probes' counts are the server's, and that the
// histogram holds as many.
func checkDemoCounts(t *testing.T, m []string) {
	t.Helper()
	hits := map[string]string{}
	for line := range strings.Lines(group(m, "counts")) {
		f := strings.Fields(line) // event, function, hits, server's count, missed, lost
		if len(f) != 6 || f[2] != f[3] || f[2] == "0" || f[4] != "0" || f[5] != "0" {
			t.Errorf("counts %q", line)
			continue
		}
		hits[f[0]] = f[2]
	}
	if hits["myprobe"] != hits["myretprobe"] || hits["request"] != hits["reply"] || hits["reply"] != group(m, "total") {
		t.Errorf("hits %v, %s latencies", hits, group(m, "total"))
	}
	sum, lines := 0, 0
	for line := range strings.Lines(group(m, "hist")) {
		f := strings.Fields(line) // { latency: ~ 2^N } hitcount: N #
		n, err := strconv.Atoi(f[len(f)-2])
		if err != nil {
			t.Errorf("histogram %q: %v", line, err)
		}
		sum, lines = sum+n, lines+1
	}
	if strconv.Itoa(sum) != group(m, "total") || strconv.Itoa(lines) != group(m, "entries") {
		t.Errorf("the histogram shows %d in %d lines, and says %s in %s", sum, lines, group(m, "total"), group(m, "entries"))
	}
}

// checkDemoCosts checks the arithmetic of the costs: no time is a test here.
func checkDemoCosts(t *testing.T, m []string) {
	t.Helper()
	var plain float64
	for line := range strings.Lines(group(m, "costs")) {
		f := strings.Fields(line)
		var v [3]float64 // ns, added, ratio
		for i := range v {
			var err error
			if v[i], err = strconv.ParseFloat(f[len(f)-3+i], 64); err != nil {
				t.Errorf("costs %q: %v", line, err)
			}
		}
		if plain == 0 {
			plain = v[0]
		}
		if v[0] <= 0 || math.Abs(v[0]-plain-v[1]) > 0.2 || v[2] < 1 && v[1] > 0 {
			t.Errorf("costs %q beside %g unprobed", line, plain)
		}
	}
	if n, err := strconv.Atoi(group(m, "code")); err != nil || n < 1<<20 {
		t.Errorf("%s bytes of code compared", group(m, "code"))
	}
}

// until starts a demo and waits until it begins a step. It gives what the command says.
func until(t *testing.T, cmd *exec.Cmd, step int) (errs *bytes.Buffer) {
	t.Helper()
	errs = new(bytes.Buffer)
	cmd.Stderr = errs
	if _, ok := reaches(t, cmd, step); !ok {
		t.Fatalf("the demo ended before step %d: %v, %s", step, cmd.Wait(), errs)
	}
	return errs
}

// until does so with a demo that runs again where the machine was too busy for it. errs is what
// the command says.
func (d *demoTest) until(t *testing.T, step int) (cmd *exec.Cmd, errs *bytes.Buffer, pid int, tmp string) {
	t.Helper()
	for end := time.Now().Add(demoMost); ; {
		cmd, tmp = d.command(t, demoMost)
		errs = new(bytes.Buffer)
		cmd.Stderr = errs
		pid, ok := reaches(t, cmd, step)
		if ok {
			return cmd, errs, pid, tmp
		}
		if err := cmd.Wait(); !tooSlow(errs.String()) || time.Now().After(end) {
			t.Fatalf("the demo ended before step %d: %v, %s", step, err, errs)
		}
	}
}

// reaches starts a demo and says whether it comes to a step.
func reaches(t *testing.T, cmd *exec.Cmd, step int) (pid int, ok bool) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		_, _ = fmt.Sscanf(lines.Text(), "== 1. A key-value server runs as process %d,", &pid)
		if strings.HasPrefix(lines.Text(), fmt.Sprintf("== %d. ", step)) {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return pid, true
		}
	}
	return 0, false
}

// lastStep may be over before the signal arrives.
const lastStep = 7

// interrupted sends what a terminal's Ctrl-C sends, to the whole group.
func (d *demoTest) interrupted(t *testing.T, step int) {
	cmd, errs, pid, tmp := d.until(t, step)
	if err := unix.Kill(-cmd.Process.Pid, unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	said := errs.String() == "kprobe: interrupted: everything is taken out\n" || step == lastStep && errs.Len() == 0
	if err != nil || !said {
		t.Errorf("interrupted: %v, stderr %q", err, errs.String())
	}
	nothingLeft(t, pid, tmp)
}

// killed kills the demo while its probes are armed: the workload ends by itself.
func (d *demoTest) killed(t *testing.T) {
	cmd, _, pid, tmp := d.until(t, 4)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for end := time.Now().Add(demoMost); runs(pid) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	nothingLeft(t, pid, tmp)
}

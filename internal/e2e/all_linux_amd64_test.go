package e2e

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/benchprobes"
	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/testprog"
)

// leftOut is a line of kprobe trace -v on a function that can not be probed.
var leftOut = regexp.MustCompile(`(?m)^kprobe: (.+?) is left out: (.+)$`)

// refused checks that each function that was left out has a reason, and that they are few:
// at most so many in a hundred. It logs how many there are of each reason.
func (r *result) refused(t testing.TB, percent int) {
	t.Helper()
	all := leftOut.FindAllStringSubmatch(r.stderr, -1)
	reasons := map[string][]string{}
	for _, m := range all {
		_, why, ok := strings.Cut(m[2], m[1])
		if !ok || len(why) < 20 {
			t.Errorf("%s is left out without a reason: %s", m[1], m[2])
		}
		why = address.ReplaceAllString(why, "…")
		reasons[why] = append(reasons[why], m[1])
	}
	for why, names := range reasons {
		t.Logf("%d left out (%.100s):%.300s", len(names), strings.Join(names, " "), why)
	}
	t.Logf("%d functions armed, %d left out", len(r.totals), len(all))
	if len(all)*100 > len(r.totals)*percent {
		t.Errorf("%d functions armed, %d left out: more than %d %%", len(r.totals), len(all), percent)
	}
}

// address is what differs between reasons that are the same.
var address = regexp.MustCompile(`0x[0-9a-f]+|\([0-9a-f ]+\)`)

// hit is the number of functions that were run.
func (r *result) hit() (n int) {
	for _, c := range r.totals {
		if c.hits > 0 {
			n++
		}
	}
	return n
}

// All functions of redis-server are counted at once: its answers are right under load,
// the counts of its command loop are those of the server, and then its memory is what its
// files have.
func TestAllEntriesOfRedis(t *testing.T) {
	const n = 20_000
	r := startRedis(t, redisPath(t))
	s := trace(t, r.proc.PID, "--stat", "--counters", "-v", "p *")
	r.ask("CONFIG RESETSTAT")
	r.load(n, "-r", "1000")
	for i := range 100 {
		r.ask(fmt.Sprintf("SET probe:%d value-%d", i, i))
		if got := r.ask(fmt.Sprintf("GET probe:%d", i)); got != fmt.Sprintf("value-%d", i) {
			t.Errorf("key %d holds %q", i, got)
		}
	}
	if got := r.ask(`EVAL "local s = 0; for i = 1, 1000 do s = s + i end; return tostring(s)" 0`); got != "500500" {
		t.Errorf("script: %q", got)
	}
	calls := r.calls()
	out := s.end()
	if calls["get"] != n+100 || calls["eval"] != 1 {
		t.Errorf("the server counted %v", calls)
	}
	out.counted(t, "p_processCommand_0", sum(calls)+1, "jump")
	if len(out.totals) < 3000 || out.hit() < 150 {
		t.Errorf("%d functions armed, %d hit: redis-server has more", len(out.totals), out.hit())
	}
	out.refused(t, 1)
	r.load(n)
}

// All functions of a Go program, its runtime's too, are counted at once, while goroutines
// call, recurse, grow their stacks and the collector runs.
func TestAllEntriesOfGo(t *testing.T) {
	p := program(t, "gowork", "4")
	right(t, p, "go 10")
	s := trace(t, p.PID, "--stat", "--counters", "-v", "p *")
	before := right(t, p, "count")
	for range 5 {
		right(t, p, "go 500")
		right(t, p, "gc")
	}
	after := right(t, p, "count")
	out := s.end()
	out.refused(t, 5) // assembly that neither checks its stack nor has a free register
	if len(out.totals) < 1000 || out.hit() < 100 {
		t.Errorf("%d functions armed, %d hit: the program has more", len(out.totals), out.hit())
	}
	t.Log(before, after)
	right(t, p, "go 100")
}

// All functions of the go command are counted while it works: its output is the same.
func TestAllEntriesOfTheGoCommand(t *testing.T) {
	list := []string{tool(t, "go", "golang-go"), "list", "std"}
	want := run(t, exec.Command(list[0], list[1:]...))
	o := run(t, command(t, append([]string{"trace", "--stat", "--counters", "-v", "p *", "--"}, list...)...))
	if o.code != 0 || o.stdout != want.stdout || !strings.Contains(o.stdout, "net/http\n") {
		t.Fatalf("%v", o)
	}
	out := result{outcome: o, totals: totals(o.stderr)}
	out.refused(t, 5) // assembly that neither checks its stack nor has a free register
	if len(out.totals) < 5000 || out.hit() < 500 {
		t.Errorf("%d functions armed, %d hit: the command has more", len(out.totals), out.hit())
	}
}

// large is a program that has a library of more than 100 MB mapped.
func large(t testing.TB) string {
	return testprog.Build(t, "leaf", "-Wl,--no-as-needed", "-l:libLLVM-14.so.1")
}

// A program of more than 100 MB is probed, in itself and in its library, with less than
// 200 MB. The time that it took is logged.
func TestLargeProgram(t *testing.T) {
	if _, err := os.Stat("/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1"); err != nil {
		t.Fatalf("%v: install it (Debian: apt-get install libllvm14)", err)
	}
	p := testprog.Start(t, large(t), "1")
	before := stateOf(t, p.PID)
	for _, probe := range []string{"p:a leaf $comm", "p:a libLLVM-14.so.1:LLVMContextCreate"} {
		s := &session{t: t, pid: p.PID, before: before}
		cmd := command(t, "trace", "-p", strconv.Itoa(p.PID), "--alone", "--stat", probe)
		start := time.Now()
		s.start(cmd)
		s.armed()
		took := time.Since(start)
		kb := peak(t, cmd.Process.Pid)
		s.end()
		ru := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		t.Logf("%s: armed after %v, %d MB at most; CPU until detached %v", probe, took, kb>>10, cpuOf(ru))
		if kb > 200<<10 {
			t.Errorf("%s: %d KiB resident", probe, kb)
		}
	}
	right(t, p, "count")
}

// peak is the most memory that a process had resident since it was started, in KiB. (What
// wait tells of a child counts the parent's too: a fork starts with it.)
func peak(t testing.TB, pid int) (kb uint64) {
	t.Helper()
	if _, err := fmt.Sscanf(field(t, pid, pid, "VmHWM"), "%d kB", &kb); err != nil {
		t.Fatal(err)
	}
	return kb
}

func cpuOf(ru *syscall.Rusage) time.Duration {
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// armProcess names a process all of whose functions the test binary is to count and let go
// again, from a process of its own, as actionsOf does.
const armProcess = "KPROBES_E2E_ARM"

// arming is what the test binary then tells of it.
type arming struct {
	benchprobes.Arming
	RSS                    int64         // KiB, at most
	StopAtAdd, StopAtClose time.Duration // filled in from outside
}

func init() {
	pid, err := strconv.Atoi(os.Getenv(armProcess))
	if err != nil {
		return
	}
	a, err := armAll(pid)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(a)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// armAll counts all functions of a process. Between arming and disarming it says so and
// waits for the end of its input.
func armAll(pid int) (a arming, err error) {
	ballast := make([]byte, 24<<20) // as the command has it
	defer runtime.KeepAlive(ballast)
	a.Arming, err = benchprobes.Process(pid, "*", func() error {
		var ru syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
			return err
		}
		a.RSS = ru.Maxrss
		fmt.Println("armed")
		_, _ = os.Stdin.Read(make([]byte, 1)) // its end
		return nil
	})
	return a, err
}

// spinning is a program with a thread that measures how long the program is stopped.
type spinning struct {
	t    testing.TB
	file *os.File
}

// startSpinning starts redis-server with testdata/spin.c in it.
func startSpinning(t testing.TB) (*redis, *spinning) {
	t.Helper()
	lib, err := cbuild.Build(os.DirFS("testdata"), ".", "spin")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(tempFile(t, "spin"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	r := startRedis(t, tool(t, "env", "coreutils"), "LD_PRELOAD="+lib, "KPROBES_SPIN="+f.Name(), redisPath(t))
	return r, &spinning{t, f}
}

func (s *spinning) word(i int64) uint64 {
	s.t.Helper()
	var b [8]byte
	if _, err := s.file.ReadAt(b[:], 8*i); err != nil {
		s.t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(b[:])
}

// reset forgets the gaps so far.
func (s *spinning) reset() {
	s.t.Helper()
	next := s.word(0) + 1
	if _, err := s.file.WriteAt(binary.LittleEndian.AppendUint64(nil, next), 0); err != nil {
		s.t.Fatal(err)
	}
	within(s.t, "the spinning thread", func() bool { return s.word(1) == next })
}

// gap is the largest since reset.
func (s *spinning) gap() time.Duration {
	s.t.Helper()
	return time.Duration(s.word(2))
}

// BenchmarkAllEntries counts all functions of redis-server at once: functions armed in a
// second, the tracer's CPU for each, and the longest that the program was stopped, to arm
// and to disarm 1,000 of them, as a thread of its own sees it. That thread keeps a CPU busy,
// so the speed is measured on another server. The best of several rounds is reported, for
// other work of the machine only adds to them, and beside it the gap that the thread sees
// while nothing is done.
func BenchmarkAllEntries(b *testing.B) {
	const rounds = 5
	r := startRedis(b, redisPath(b))
	var best, stops arming
	for b.Loop() {
		for range rounds {
			best.better(armRound(b, r.proc.PID, nil))
		}
	}
	idle := time.Hour
	r, spin := startSpinning(b)
	for range rounds {
		spin.reset()
		time.Sleep(200 * time.Millisecond)
		idle = min(idle, spin.gap())
		stops.better(armRound(b, r.proc.PID, spin))
	}
	best.StopAtAdd, best.StopAtClose = stops.StopAtAdd, stops.StopAtClose
	perThousand := func(d time.Duration) float64 { return d.Seconds() * 1e3 / (float64(best.Armed) / 1e3) }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(best.Armed), "probes")
	b.ReportMetric(float64(best.Refused), "refused")
	b.ReportMetric(best.PerSecond(), "probes/s")
	b.ReportMetric(float64(best.CPU.Microseconds())/float64(best.Armed), "cpu-µs/probe")
	b.ReportMetric(perThousand(best.StopAtAdd), "arm-stop-ms/1000")
	b.ReportMetric(perThousand(best.StopAtClose), "disarm-stop-ms/1000")
	b.ReportMetric(idle.Seconds()*1e3, "idle-gap-ms")
	b.ReportMetric(best.Attach.Seconds()*1e3, "attach-ms")
	b.ReportMetric(float64(best.RSS)/1024, "rss-MB")
}

// better keeps the best of each figure.
func (a *arming) better(o arming) {
	if a.Armed == 0 {
		*a = o
		return
	}
	a.Better(o.Arming)
	a.RSS = max(a.RSS, o.RSS)
	a.StopAtAdd, a.StopAtClose = min(a.StopAtAdd, o.StopAtAdd), min(a.StopAtClose, o.StopAtClose)
}

// armRound arms and disarms all functions once. spin, if not nil, measures the stops.
func armRound(b testing.TB, pid int, spin *spinning) (a arming) {
	b.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", armProcess, pid))
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	var errs locked
	cmd.Stderr = &errs
	reset, gap := func() {}, func() time.Duration { return 0 }
	if spin != nil {
		reset, gap = spin.reset, spin.gap
	}
	reset()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill() })
	out := bufio.NewReader(pipe)
	if line, err := out.ReadString('\n'); line != "armed\n" {
		b.Fatalf("arming: %q, %v: %s", line, err, errs.String())
	}
	arm := gap()
	reset()
	in.Close()
	err = json.NewDecoder(out).Decode(&a)
	if err = errors.Join(err, cmd.Wait()); err != nil {
		b.Fatalf("%v: %s", err, errs.String())
	}
	a.StopAtAdd, a.StopAtClose = arm, gap()
	intact(b, pid)
	return a
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testguest"
)

// kernelGuest boots a guest that has this command. One CPU: with two, now and then one
// that software emulates does not answer the other after text was patched.
func kernelGuest(t *testing.T) *testguest.Guest {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "kprobe")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g := testguest.Boot(t, &testguest.Options{CPUs: 1, Files: map[string]string{"bin/kprobe": bin}})
	g.Shell("test -d /sys/kernel/debug/kprobes || mount -t debugfs d /sys/kernel/debug")
	return g
}

// traceWhile runs `kprobe trace -k ARGS`, does work once its events are enabled, and then
// sends a signal; "" waits until it ends by itself.
func traceWhile(t *testing.T, g *testguest.Guest, signal, args, work string) testguest.Result {
	t.Helper()
	end := ""
	if signal != "" {
		end = "kill -" + signal + " $P;"
	}
	script := fmt.Sprintf(`kprobe trace -k %s & P=$!
		until [ "$(cat /sys/kernel/tracing/instances/kprobe_${P}_*/events/kprobe_${P}_*/enable | uniq)" = 1 ] 2> /dev/null; do
			kill -0 $P 2> /dev/null || break; sleep 0.1
		done 2> /dev/null
		%s
		%s wait $P`, args, work, end)
	r, err := g.Run("/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// emptyKernel checks that the kernel holds no probe and no instance.
func emptyKernel(t *testing.T, g *testguest.Guest) {
	t.Helper()
	events, err := g.Read("/sys/kernel/tracing/kprobe_events")
	if err != nil || events != "" {
		t.Errorf("kprobe_events holds %q: %v", events, err)
	}
	instances, err := g.List("/sys/kernel/tracing/instances")
	if err != nil || len(instances) != 0 {
		t.Errorf("instances %q are left: %v", instances, err)
	}
}

// TestKernel runs the command on the own kernel of a guest: that has kprobes, whatever the
// machine of the test has.
func TestKernel(t *testing.T) {
	g := kernelGuest(t)
	for _, c := range []struct {
		name string
		test func(*testing.T, *testguest.Guest)
	}{
		{"text", kernelText},
		{"json", kernelJSON},
		{"counters", kernelCounters},
		{"lost", kernelLost},
		{"pattern", kernelPattern},
		{"ends", kernelEnds},
		{"killed", kernelKilled},
		{"refused", kernelRefused},
		{"filtered", kernelFiltered},
		{"triggers", kernelTriggers},
		{"stacks", kernelStacks},
		{"tools", kernelTools},
		{"process", oldProcessor},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.test(t, g)
			emptyKernel(t, g)
		})
	}
	if bad := g.Trouble(); len(bad) > 0 {
		t.Errorf("the guest's kernel complains: %q", bad)
	}
}

// oldProcessor probes processes on a processor without xsave: one from its start, and one that runs.
func oldProcessor(t *testing.T, g *testguest.Guest) {
	if flags := g.Shell("grep -m 1 ^flags /proc/cpuinfo"); strings.Contains(flags, " xsave") {
		t.Fatalf("the processor has xsave: %s", flags)
	}
	r, err := g.Run("/bin/sh", "-c", `kprobe trace 'p:call syscall nr=%di:s64' 'r:back syscall ret=$retval:s64' -- hit getppid 500 -1
		hit getppid 1000000000 -1 & P=$!
		kprobe trace -p $P --duration 300ms --counters 'p:later syscall' 2>&1 && kill $P`)
	if err != nil || r.Status != 0 {
		t.Fatalf("%v, status %d: %s", err, r.Status, r.Stderr)
	}
	later := regexp.MustCompile(`(?m)^later hits=[1-9]\d* missed=0 `)
	if n := strings.Count(r.Stdout, " nr=110\n"); n != 500 || strings.Count(r.Stdout, ": back: ") != 500 || !later.MatchString(r.Stdout) {
		t.Errorf("%d calls of 500: %s\n%s", n, r.Stdout[max(0, len(r.Stdout)-1000):], r.Stderr)
	}
}

// The examples of Linux's documentation: every call of the program has its lines, with its values.
func kernelText(t *testing.T, g *testguest.Guest) {
	const calls = 3000
	r := traceWhile(t, g, "INT", `'p:myprobe do_sys_openat2 dfd=%di:s32 filename=+0(%si):ustring flags=+0(%dx):x64 mode=+8(%dx):x64' 'r:mine/myretprobe do_sys_openat2 ret=$retval:s64'`,
		fmt.Sprintf("hit openname %d -1 /no/such 0x0 0 > /dev/null", calls))
	if r.Status != 0 {
		t.Fatalf("status %d: %s", r.Status, r.Stderr)
	}
	entry := regexp.MustCompile(`(?m)^ +hit-\d+ +\[000\] [.dbD][.nN]... +\d+\.\d{6}: myprobe: \(do_sys_openat2\+0x0/0x[0-9a-f]+\) dfd=-100 filename="/no/such" flags=0x[0-9a-f]+ mode=0x0$`)
	exit := regexp.MustCompile(`(?m)^ +hit-\d+ +\[000\] [.dbD][.nN]... +\d+\.\d{6}: myretprobe: \(\w+\+0x[0-9a-f]+/0x[0-9a-f]+ <- do_sys_openat2\) ret=-2$`)
	if n := len(entry.FindAllString(r.Stdout, -1)); n != calls {
		t.Errorf("%d lines of %d calls: %.1000s", n, calls, r.Stdout)
	}
	if n := len(exit.FindAllString(r.Stdout, -1)); n < calls {
		t.Errorf("%d returns of %d calls: %.1000s", n, calls, r.Stdout)
	}
	if strings.Contains(r.Stdout, "kprobe-") {
		t.Errorf("the tracer's own hits are among the lines: %.1000s", r.Stdout)
	}
	for _, want := range []string{`myprobe hits=\d+ missed=0 lost=0 tactic=ftrace\n`, `myretprobe hits=\d+ missed=0 lost=0 tactic=ftrace\n`} {
		if !regexp.MustCompile(want).MatchString(r.Stderr) {
			t.Errorf("summary %q, want %s", r.Stderr, want)
		}
	}
}

// Strings that would break a line of text come whole; other types too.
func kernelJSON(t *testing.T, g *testguest.Guest) {
	r := traceWhile(t, g, "INT", `--format json 'p:grp/ev do_sys_openat2 f=+0(%si):ustring c=$comm bytes=+0(%si):u8[2] bits=%di:b4@4/32 fault=+0(%di):string at=%ip:symbol'`,
		`hit openname 20 -1 "$(printf 'a" c=\042x\042\nb')" 0 0 > /dev/null`)
	n := 0
	for line := range strings.Lines(r.Stdout) {
		var hit struct {
			Event, Comm string
			Args        map[string]any
		}
		if err := json.Unmarshal([]byte(line), &hit); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if hit.Args["f"] != "a\" c=\"x\"\nb" {
			continue
		}
		n++
		got := fmt.Sprint(hit.Event, hit.Comm, hit.Args["c"], hit.Args["bytes"], hit.Args["bits"], hit.Args["fault"])
		if want := "grp/evhithit[97 34] 9 <nil>"; got != want {
			t.Errorf("got %s, want %s: %s", got, want, line)
		}
	}
	if n != 20 {
		t.Errorf("%d lines of 20 calls: %.1000s, %s", n, r.Stdout, r.Stderr)
	}
	if !strings.Contains(r.Stderr, `{"event":"grp/ev","hits":`) {
		t.Errorf("summary %q", r.Stderr)
	}
}

func kernelCounters(t *testing.T, g *testguest.Guest) {
	r := traceWhile(t, g, "INT", `--counters p:count __x64_sys_getppid`, "")
	if r.Status == 0 {
		t.Errorf("a definition in several words was taken: %q", r.Stderr)
	}
	for _, flag := range []string{"--counters", "--stat"} {
		r := traceWhile(t, g, "INT", flag+` 'p:count __x64_sys_getppid' 'p:other/count __x64_sys_getppid+5'`, "hit getppid 4321 -1 > /dev/null")
		if r.Stdout != "" || strings.Count(r.Stderr, "count hits=4321 missed=0 lost=0 tactic=") != 2 {
			t.Errorf("%s: %q, %q", flag, r.Stdout, r.Stderr)
		}
	}
}

// What a full ring loses is counted: hits are those of the program.
func kernelLost(t *testing.T, g *testguest.Guest) {
	r := traceWhile(t, g, "INT", `--stat --buffer-size 8192 'p:count __x64_sys_getppid'`, "kill -STOP $P; hit getppid 20000 -1 > /dev/null; kill -CONT $P")
	m := regexp.MustCompile(`count hits=20000 missed=0 lost=(\d+) `).FindStringSubmatch(r.Stderr)
	if m == nil || len(m[1]) < 4 {
		t.Errorf("summary %q, want 20000 hits, thousands of them lost", r.Stderr)
	}
}

// A pattern is an event for each function, under a name of its own.
func kernelPattern(t *testing.T, g *testguest.Guest) {
	r := traceWhile(t, g, "INT", `-v --counters 'p __x64_sys_getp*'`, "hit getppid 50 -1 > /dev/null")
	if !strings.Contains(r.Stderr, "p___x64_sys_getppid_0 hits=50 ") || !strings.Contains(r.Stderr, "p___x64_sys_getpid_0 hits=") {
		t.Errorf("summary %q", r.Stderr)
	}
}

func kernelEnds(t *testing.T, g *testguest.Guest) {
	r := traceWhile(t, g, "", `--duration 1s --stat 'p:count __x64_sys_getppid'`, "")
	if r.Status != 0 || !strings.Contains(r.Stderr, "count hits=0 ") {
		t.Errorf("--duration: status %d, %q", r.Status, r.Stderr)
	}
	r = traceWhile(t, g, "", `--count 3 'p:count __x64_sys_getppid'`, "hit getppid 100 -1 > /dev/null")
	if r.Status != 0 || strings.Count(r.Stdout, "sys_getppid+0x0/") != 3 || !strings.Contains(r.Stderr, " tactic=ftrace\n") {
		t.Errorf("--count 3: status %d, %q, %q", r.Status, r.Stdout, r.Stderr)
	}
}

// A killed tracer's probes are found, and taken out by detach; not those of one that runs.
func kernelKilled(t *testing.T, g *testguest.Guest) {
	args := `--stat 'p:one do_sys_openat2' -R 'disable_event:kprobes:two if common_pid < 0' 'r:two vfs_read $retval' > /dev/null`
	r := traceWhile(t, g, "KILL", args, "kprobe list -k; kprobe detach -k")
	if !regexp.MustCompile(`^[0-9a-f]{16} +k +do_sys_openat2\+0x0 .*\n[0-9a-f]{16} +r +vfs_read\+0x0 .*\n$`).MatchString(r.Stdout) {
		t.Errorf("list: %q", r.Stdout)
	}
	if !regexp.MustCompile(`2 probes are held by process \d+, which runs`).MatchString(r.Stderr) {
		t.Errorf("detach while the tracer runs: %q", r.Stderr)
	}
	events, err := g.Read("/sys/kernel/tracing/kprobe_events")
	if err != nil || strings.Count(events, "\n") != 2 {
		t.Fatalf("a killed tracer left %q: %v", events, err)
	}
	g.Write("/sys/kernel/tracing/kprobe_events", "p:somebody/else vfs_write\n", false)
	r, err = g.Run("/bin/kprobe", "detach", "-k")
	if err != nil || r.Status != 0 || !strings.Contains(r.Stderr, "2 probes of process ") {
		t.Errorf("detach: %+v, %v", r, err)
	}
	events, err = g.Read("/sys/kernel/tracing/kprobe_events")
	if err != nil || events != "p:somebody/else vfs_write\n" {
		t.Errorf("after detach kprobe_events holds %q: %v", events, err)
	}
	g.Write("/sys/kernel/tracing/kprobe_events", "-:somebody/else\n", false)
	r, err = g.Run("/bin/kprobe", "detach", "-k")
	if err != nil || r.Status != 0 || !strings.Contains(r.Stderr, "nothing of ours") {
		t.Errorf("detach of nothing: %+v, %v", r, err)
	}
}

// The kernel's errors come with its text, and its caret stands in the user's words; of a
// batch with one bad definition nothing stays.
func kernelRefused(t *testing.T, g *testguest.Guest) {
	for _, c := range []struct {
		defs   []string
		want   string
		status int
	}{
		{[]string{"p:good vfs_read", "p:a/b do_sys_openat2  x=%foo"}, "column 24: Invalid register name\n  Command: p:a/b do_sys_openat2 x=%foo\n" + caret(23), 2},
		{[]string{"r7:longer_name_than_ours no_such_function"}, "Command: r7:longer_name_than_ours no_such_function\n" + caret(25), 1},
		{[]string{"p do_sys_openat2+1"}, "column 3: Probe point is not an instruction boundary\n  Command: p do_sys_openat2+1\n" + caret(2), 1},
		{[]string{"p:e vfs_read  name=$arg1:%pd"}, "column 25: Unknown type is specified\n  Command: p:e vfs_read name=$arg1:%pd\n" + caret(24), 2}, // new in Linux 6.9
		{[]string{"p do_int3"}, "Failed to register probe event: do_int3 is on the kernel's blacklist, or notrace", 1},
		{[]string{"p:x vfs_read", "r:x vfs_write"}, "column 1: Probe type is different from existing probe", 2},
		{[]string{"p vfs_read s=+0(%si):gostring"}, "gostring is an extension for programs", 2},
		{[]string{"p /bin/sh:0x10"}, "a place in a file belongs to a program", 1},
		{[]string{`p "vfs_read"`}, "takes none", 1},
	} {
		argv := append([]string{"/bin/kprobe", "trace", "-k"}, c.defs...)
		r, err := g.Run(argv...)
		if err != nil || r.Status != c.status || !strings.Contains(r.Stderr, c.want) {
			t.Errorf("%q: %v, status %d\n%s\nwant\n%s", c.defs, err, r.Status, r.Stderr, c.want)
		}
		emptyKernel(t, g)
	}
}

// Filters are the kernel's: its own lines, and its own text and column where one is wrong.
func kernelFiltered(t *testing.T, g *testguest.Guest) {
	r := traceWhile(t, g, "INT", `--comm 'hi?' 'p:some do_sys_openat2 flags=+0(%dx):u64' -f 'flags & 65536 || flags == 7' 'p:all do_sys_openat2'`,
		"for i in 1 2 3; do hit openname 10 -1 /no/such 65536 0; hit openname 5 -1 /no/such 0 0; done > /dev/null")
	some, all := strings.Count(r.Stdout, ": some: "), regexp.MustCompile(`(?m)^ +hit-\d+ .*: all: `).FindAllString(r.Stdout, -1)
	if r.Status != 0 || some != 30 || len(all) < 45 || len(all) != strings.Count(r.Stdout, ": all: ") || !strings.Contains(r.Stderr, "some hits=30 ") {
		t.Errorf("status %d, %d and %d lines: %s\n%.1000s", r.Status, some, len(all), r.Stderr, r.Stdout)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"p:ev do_sys_openat2 fl=%dx:u64", "-f", "fl == 1 && nothing > 3"}, "filter \"fl == 1 && nothing > 3\", column 20: Field not found"},
		{[]string{"p:ev do_sys_openat2 fl=%dx:u64", "-f", "fl == 1", "p:ev vfs_read fl=%dx:u64"}, "an event has one filter"},
	} {
		r, err := g.Run(append([]string{"/bin/kprobe", "trace", "-k"}, c.args...)...)
		if err != nil || r.Status != 1 || !strings.Contains(r.Stderr, c.want) {
			t.Errorf("%q: %v, status %d\n%s\nwant\n%s", c.args, err, r.Status, r.Stderr, c.want)
		}
		emptyKernel(t, g)
	}
}

// Triggers are the kernel's: in the files of the events, in the trace's own instance.
func kernelTriggers(t *testing.T, g *testguest.Guest) {
	r := traceWhile(t, g, "INT", `'p:on do_sys_openat2 name=+0(%si):ustring' -R 'enable_event:kprobes:call:1 if name == "/no/such"' \
		'p:call __x64_sys_getppid' 'p:off do_filp_open name=+0(+0(%si)):string' -R 'traceoff if name == "/no/other"' 'p:mine/last __x64_sys_getpgid'`,
		`until [ "$(cat /sys/kernel/tracing/instances/kprobe_${P}_*/tracing_on)" = 1 ]; do sleep 0.1; done
		hit getppid 10 -1 > /dev/null; hit openname 1 -1 /no/such 0 0 > /dev/null; hit getppid 20 -1 > /dev/null
		hit openname 1 -1 /no/other 0 0 > /dev/null; hit getppid 40 -1 > /dev/null`)
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	if last := lines[len(lines)-1]; r.Status != 0 || strings.Count(r.Stdout, ": call: ") != 20 || !strings.Contains(last, `: off: `) || !strings.HasSuffix(last, `name="/no/other"`) {
		t.Errorf("status %d, %d of 20 calls, and at last %q: %s", r.Status, strings.Count(r.Stdout, ": call: "), last, r.Stderr)
	}
	for _, c := range []struct {
		args   []string
		want   string
		status int
	}{
		{[]string{"-R", "hist:keys=common_pid"}, "with -k histograms are not read", 2},
		{[]string{"-R", "enable_event:kprobes:othr", "p:other vfs_write"}, "this trace has no event kprobes:othr; did you mean \"kprobes:other\"?", 2},
		{[]string{"-R", "traceoff if fl == 1 && nothing > 3"}, `filter "fl == 1 && nothing > 3", column 20: Field not found`, 1},
		{[]string{"-R", "traceon", "-R", "traceoff"}, "the event kprobes:ev has a trigger already that switches the same", 2},
		{[]string{"-R", "traceon:1", "-R", "traceon:2"}, "the event kprobes:ev has a trigger traceon already", 2},
	} {
		r, err := g.Run(append([]string{"/bin/kprobe", "trace", "-k", "p:ev do_sys_openat2 fl=%dx:u64"}, c.args...)...)
		if err != nil || r.Status != c.status || !strings.Contains(r.Stderr, c.want) {
			t.Errorf("%q: %v, status %d\n%s\nwant\n%s", c.args, err, r.Status, r.Stderr, c.want)
		}
		emptyKernel(t, g)
	}
}

// Stacks are records of the kernel's own, behind the hits: by the option and by the trigger.
func kernelStacks(t *testing.T, g *testguest.Guest) {
	const stack = `(?m)^ +hit-\d+ +\[000\] [.dbD][.nN]... +\d+\.\d{6}: <stack trace>\n((?: => [^\n]+\n)+)`
	r := traceWhile(t, g, "INT", `'p:call __x64_sys_getppid' -R stacktrace:3`, "hit getppid 10 -1 > /dev/null")
	found := regexp.MustCompile(stack).FindAllStringSubmatch(r.Stdout, -1)
	if r.Status != 0 || strings.Count(r.Stdout, ": call: ") != 10 || len(found) != 3 || !strings.Contains(r.Stderr, "call hits=10 missed=0 lost=0 ") {
		t.Fatalf("status %d, %d of 3 stacks: %s\n%s", r.Status, len(found), r.Stdout, r.Stderr)
	}
	for _, f := range found {
		if !strings.Contains(f[1], " => do_syscall_64+0x") || !strings.Contains(f[1], " => entry_SYSCALL_64_after_hwframe+0x") {
			t.Errorf("stack %q", f[1])
		}
	}
	r = traceWhile(t, g, "INT", `--stacktrace=1 'p:call __x64_sys_getppid'`, "hit getppid 10 -1 > /dev/null")
	short := regexp.MustCompile(stack).FindAllStringSubmatch(r.Stdout, -1)
	want := regexp.MustCompile(`^ => \w+_sys_getppid\+0x[01]/0x[0-9a-f]+\n => do_syscall_64\+0x[0-9a-f]+/0x[0-9a-f]+\n => \(more callers than are recorded\)\n$`)
	if r.Status != 0 || len(short) != 10 || !want.MatchString(short[0][1]) {
		t.Errorf("status %d, %d of 10 stacks: %s\n%s", r.Status, len(short), r.Stdout, r.Stderr)
	}
	r = traceWhile(t, g, "INT", `--format json --stacktrace 'p:call __x64_sys_getppid'`, "hit getppid 1 -1 > /dev/null")
	if !regexp.MustCompile(`(?m)^{"time":[0-9.]+,"event":"ftrace/kernel_stack","comm":"hit","pid":\d+,"cpu":0,"flags":"[^"]+","stack":\[{"at":"do_syscall_64\+`).MatchString(r.Stdout) {
		t.Errorf("JSON %q", r.Stdout)
	}
}

func caret(n int) string { return strings.Repeat(" ", len("  Command: ")+n) + "^\n" }

func kernelTools(t *testing.T, g *testguest.Guest) {
	list := g.Shell("kprobe funcs -k 'vfs_rea[d]*'")
	if !regexp.MustCompile(`(?m)^ffffffff[0-9a-f]{8} +\d+ vfs_read$`).MatchString(list) {
		t.Errorf("funcs: %q", list)
	}
	r, err := g.Run("/bin/kprobe", "funcs", "-k", "do_int3")
	if err != nil || r.Status != 1 || !strings.Contains(r.Stderr, "no function matches") {
		t.Errorf("funcs of what can not be probed: %+v, %v", r, err)
	}
	r, err = g.Run("/bin/kprobe", "doctor")
	if err != nil || !regexp.MustCompile(`(?m)^ok +kernel probes +/sys/kernel/tracing/kprobe_events is there`).MatchString(r.Stdout) {
		t.Errorf("doctor: %+v, %v", r, err)
	}
}

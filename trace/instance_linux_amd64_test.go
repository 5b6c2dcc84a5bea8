package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// patience bounds waits for what must come. Nothing measures it.
const patience = 60 * time.Second

// instance makes one for a program of internal/testprog.
func instance(t testing.TB, o *Options) (*testprog.Proc, *Instance) {
	t.Helper()
	return instanceOf(t, testprog.Start(t, testprog.Build(t, "work"), "2"), o)
}

func instanceOf(t testing.TB, prog *testprog.Proc, o *Options) (*testprog.Proc, *Instance) {
	t.Helper()
	return instanceWith(t, prog, nil, o)
}

func instanceWith(t testing.TB, prog *testprog.Proc, target *process.TargetOptions, o *Options) (*testprog.Proc, *Instance) {
	t.Helper()
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	tg, err := process.Attach(p, target)
	if err != nil {
		t.Fatal(err)
	}
	core, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := New(core, o)
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), core.Close(nil)); err != nil {
			t.Error(err)
		}
	})
	return prog, in
}

func text(t testing.TB, f func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := f(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDefinitions(t *testing.T) {
	_, in := instance(t, nil)
	must(t, in.Write("p:a f_push x=%di # why\n\n# nothing\nr8:g/b f_str len=$retval:s32\np f_lea+0\np:late nosuch.so:fn"))
	want := "p:kprobes/a f_push x=%di\nr8:g/b f_str len=$retval:s32\np:kprobes/p_f_lea_0 f_lea\np:kprobes/late nosuch.so:fn\n"
	if got := text(t, in.WriteDefinitions); got != want {
		t.Errorf("definitions:\n%swant:\n%s", got, want)
	}
	must(t, in.Write("p:a f_lea x=%si"))
	want += "p:kprobes/a f_lea x=%si\n"
	tests := []struct {
		cmd   string
		errno error
		code  event.Code
	}{
		{"p:a f_push x=%di", unix.EEXIST, event.SameProbe},
		{"p:a f_lea x=%si", unix.EEXIST, event.SameProbe},
		{"r:a f_push x=%di", unix.EEXIST, event.DiffProbeType},
		{"p:a f_push y=%di", unix.EEXIST, event.DiffArgType},
		{"p:bad nosuchfunction", unix.EINVAL, event.BadProbeAddr},
		{"p:bad f_lea+1", unix.EILSEQ, event.BadInsnBndry},
		{"r:bad f_push+1", unix.EINVAL, event.BadRetprobe},
		{"r:bad f_push+0x100000", unix.EINVAL, event.BadProbeAddr},
		{"p:bad f_push x=%rax", unix.EINVAL, event.BadRegName},
		{"p:bad f_push x=$retval", unix.EINVAL, event.RetvalOnProbe},
		{"p:bad f_*", unix.EINVAL, event.BadProbeAddr},
		{"x:bad f_push", unix.EINVAL, event.BadCommand},
	}
	for _, tt := range tests {
		err := in.Write("# first\n" + tt.cmd + "\np:never f_nop5")
		var e *event.Error
		if !errors.Is(err, tt.errno) || !errors.As(err, &e) || e.Code != tt.code || e.Line != 2 {
			t.Errorf("%s: %v", tt.cmd, err)
			continue
		}
		if log := in.ErrorLog(); strings.HasSuffix(log, e.Detail()) != e.Logged() {
			t.Errorf("%s: logged %t:\n%s; the log is\n%s", tt.cmd, e.Logged(), e.Detail(), log)
		}
	}
	for cmd, errno := range map[string]error{"-:nosuch": unix.ENOENT, "-:nosuch/a": unix.ENOENT, "-:": unix.EINVAL, "-:a f_nop5": unix.ENOENT} {
		if err := in.Write(cmd); !errors.Is(err, errno) {
			t.Errorf("%s: %v", cmd, err)
		}
	}
	if got := text(t, in.WriteDefinitions); got != want {
		t.Errorf("after refusals:\n%swant:\n%s", got, want)
	}
	must(t, in.Write("-:a f_push\n-:g/\n-:kprobes/late"))
	if got, want := text(t, in.WriteDefinitions), "p:kprobes/p_f_lea_0 f_lea\np:kprobes/a f_lea x=%si\n"; got != want {
		t.Errorf("after deletions:\n%s", got)
	}
	must(t, in.Replace("p:new f_push\np f_lea"))
	if got, want := text(t, in.WriteDefinitions), "p:kprobes/new f_push\np:kprobes/p_f_lea_0 f_lea\n"; got != want {
		t.Errorf("after a truncation:\n%s", got)
	}
	if evs := in.Core().Events(); len(evs) > 0 || text(t, in.Core().List) != "" {
		t.Errorf("definitions stand in the program: %v", evs)
	}
	must(t, in.Write("r:back f_six\np:later nosuch.so:fn"))
	disabled := regexp.MustCompile(`^[0-9a-f]+  k  f_push\+0x0    \[DISABLED\]
[0-9a-f]+  k  f_lea\+0x0    \[DISABLED\]
[0-9a-f]+  r  f_six\+0x0    \[DISABLED\]
0  k  fn    \[GONE\]
$`)
	if got := text(t, in.List); !disabled.MatchString(got) {
		t.Errorf("list of disabled events:\n%s", got)
	}
	must(t, in.Enable("kprobes", "new", true))
	if got := text(t, in.List); !regexp.MustCompile(`(?m)^[0-9a-f]+  k  f_push\+0x0    \[OPTIMIZED\]$`).MatchString(got) || strings.Count(got, "\n") != 4 || strings.Count(got, "[DISABLED]") != 2 {
		t.Errorf("list of an enabled and of disabled events:\n%s", got)
	}
	must(t, in.Enable("", "", false))
	in.ClearErrorLog()
	if log := in.ErrorLog(); log != "" {
		t.Errorf("log after it was cleared: %s", log)
	}
}

// Enabled events count what the program counts, also after they were disabled for a while,
// also with several probes.
func TestEnable(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di\np:a f_lea v=%di\nr:g/b f_push v=$retval"))
	state := func(group, name, want string) {
		t.Helper()
		if got, err := in.Enabled(group, name); got != want || err != nil {
			t.Errorf("enable of %s/%s is %s, not %s: %v", group, name, got, want, err)
		}
	}
	profile := func(push, lea, ret uint64) {
		t.Helper()
		want := hit.ProfileLine("a", push, 0) + hit.ProfileLine("a", lea, 0) + hit.ProfileLine("b", ret, 0)
		if got := text(t, in.WriteProfile); got != want {
			t.Errorf("profile\n%swant\n%s", got, want)
		}
	}
	counts := func() map[string]uint64 { return prog.Counts("count") }
	state("", "", "0")
	before := counts()
	must(t, in.Enable("kprobes", "a", true))
	state("kprobes", "a", "1")
	state("g", "", "0")
	state("", "", "X")
	after := prog.Counts("go 100")
	push, lea := after["f_push"]-before["f_push"], after["f_lea"]-before["f_lea"]
	if push == 0 || lea == 0 {
		t.Fatalf("the program has not run: %v", after)
	}
	profile(push, lea, 0)
	must(t, in.Enable("kprobes", "a", false))
	prog.Counts("go 100")
	profile(push, lea, 0)

	before = counts()
	must(t, in.Enable("", "", true))
	must(t, in.Enable("", "", true))
	state("", "", "1")
	after = prog.Counts("go 50")
	ret := after["f_push"] - before["f_push"]
	profile(push+ret, lea+after["f_lea"]-before["f_lea"], ret)

	// One more probe of an event that is enabled is armed at once.
	must(t, in.Write("p:a f_nop5 v=%di"))
	before = counts()
	after = prog.Counts("go 10")
	want := hit.ProfileLine("a", after["f_nop5"]-before["f_nop5"], 0)
	if got := text(t, in.WriteProfile); !strings.HasSuffix(got, want) {
		t.Errorf("profile\n%swant at its end\n%s", got, want)
	}

	// It can do without one of its probes, which is not in the target any more then, but not
	// without the last.
	must(t, in.Write("-:a f_nop5"))
	prog.Counts("go 10")
	if got := text(t, in.WriteDefinitions); strings.Contains(got, "f_nop5") {
		t.Errorf("definitions\n%shave one that was deleted", got)
	}
	must(t, in.Write("p:a f_nop5 v=%di"))
	before = counts()
	after = prog.Counts("go 10")
	want = hit.ProfileLine("a", after["f_nop5"]-before["f_nop5"], 0)
	if got := text(t, in.WriteProfile); !strings.HasSuffix(got, want) {
		t.Errorf("profile\n%swant at its end\n%s", got, want)
	}

	for _, err := range []error{in.Write("-:a"), in.Write("-:g/b"), in.Replace("p:c f_lea")} {
		if !errors.Is(err, unix.EBUSY) {
			t.Errorf("a change of events that are enabled: %v", err)
		}
	}
	for _, err := range []error{in.Enable("kprobes", "nosuch", true), in.Enable("nosuch", "", true)} {
		if !errors.Is(err, unix.ENOENT) {
			t.Errorf("what does not exist is enabled: %v", err)
		}
	}
	must(t, in.Enable("g", "b", false))
	must(t, in.Write("-:g/b"))
	if got := in.Groups(); len(got) != 1 || got[0] != "kprobes" {
		t.Errorf("groups %q", got)
	}
	id, err := in.ID("kprobes", "a")
	must(t, err)
	if f, err := in.Format("kprobes", "a"); err != nil || !strings.HasPrefix(f, fmt.Sprintf("name: a\nID: %d\n", id)) {
		t.Errorf("format %q: %v", f, err)
	}
}

// The trace shows what is in the buffer; the pipe takes it out; tracing_on stops records, but
// no counts.
func TestTrace(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di w=%si"))
	must(t, in.Enable("", "", true))
	before := prog.Counts("count")
	n := int(prog.Counts("go 20")["f_push"] - before["f_push"])
	out := text(t, in.WriteTrace)
	if want := fmt.Sprintf("entries-in-buffer/entries-written: %d/%d ", n, n); !strings.Contains(out, want) {
		t.Errorf("header without %q:\n%.400s", want, out)
	}
	if got := strings.Count(out, ": a: (f_push+0x0/0x"); got != n || !strings.Contains(out, "work-") {
		t.Errorf("%d lines for %d hits:\n%.1000s", got, n, out)
	}
	in.SetTracing(false)
	prog.Counts("go 20")
	if again := text(t, in.WriteTrace); again != out {
		t.Errorf("tracing_on 0: the trace is\n%.1000s\nnot\n%.1000s", again, out)
	}
	in.SetTracing(true)
	if want := hit.ProfileLine("a", uint64(2*n), 0); text(t, in.WriteProfile) != want {
		t.Errorf("profile %s, want %s", text(t, in.WriteProfile), want)
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var pipe lineCounter
	pipe.want, pipe.cancel = 2*n, cancel
	var wg sync.WaitGroup
	wg.Go(func() { _ = in.WritePipe(ctx, &pipe, nil) })
	prog.Counts("go 20")
	wg.Wait()
	if pipe.lines != 2*n {
		t.Errorf("%d lines from the pipe for %d hits", pipe.lines, 2*n)
	}
	if out := text(t, in.WriteTrace); strings.Contains(out, ": a:") {
		t.Errorf("what the pipe took is still there:\n%.1000s", out)
	}
	prog.Counts("go 20")
	in.Clear()
	if out := text(t, in.WriteTrace); out != hit.Header(0, runtime.NumCPU()) {
		t.Errorf("after Clear:\n%.1000s", out)
	}
}

// lineCounter counts lines and says when there are enough.
type lineCounter struct {
	lines, want int
	cancel      func()
}

func (l *lineCounter) Write(b []byte) (int, error) {
	if l.lines += bytes.Count(b, []byte(": a: (f_push+")); l.lines >= l.want {
		l.cancel()
	}
	return len(b), nil
}

// A pipe that is read too late is told how much it missed: what it reads and what it is told
// add up.
func TestPipeLoses(t *testing.T) {
	prog, in := instance(t, &Options{BufferSize: 1})
	must(t, in.Write("p:a f_push v=%di"))
	must(t, in.Enable("", "", true))
	before := prog.Counts("count")
	n := int(prog.Counts("go 20000")["f_push"] - before["f_push"])
	must(t, in.Enable("", "", false))
	in.mu.Lock()
	n -= int(in.losses()) // in the program's ring, if the machine is busy
	in.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	var b bytes.Buffer
	flushed := func() error {
		if strings.Count(b.String(), ": a: ")+lost(b.String()) >= n {
			cancel()
		}
		return nil
	}
	late := time.AfterFunc(patience, cancel)
	defer late.Stop()
	if err := in.WritePipe(ctx, &b, flushed); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	lines, gone := strings.Count(b.String(), ": a: "), lost(b.String())
	if lines+gone != n || gone == 0 || lines == 0 {
		t.Errorf("%d hits: %d lines, %d told as lost", n, lines, gone)
	}
}

func lost(s string) (n int) {
	for line := range strings.Lines(s) {
		var cpu, m int
		if k, _ := fmt.Sscanf(line, "CPU:%d [LOST %d EVENTS]", &cpu, &m); k == 2 {
			n += m
		}
	}
	return n
}

// An event in an object that is not loaded is armed when it comes, as the kernel does with one in a module.
func TestLateObject(t *testing.T) {
	prog, in := instanceOf(t, testprog.Start(t, testprog.Build(t, "dl")), nil)
	must(t, in.Write("p:a libdlone.so:lib_work v=%di"))
	must(t, in.Enable("", "", true))
	lib := filepath.Join(t.TempDir(), "libdlone.so")
	must(t, os.Symlink(testprog.Build(t, "libdlone"), lib))
	prog.Ask("open "+lib, nil)
	prog.Ask("call 50", nil)
	n := prog.Counts("count")["lib_work"]
	want := hit.ProfileLine("a", n, 0)
	if got := text(t, in.WriteProfile); got != want || n == 0 {
		t.Errorf("profile %swant %s", got, want)
	}
}

// An end of the program under the events is no error of what comes after.
func TestTargetEnds(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push"))
	must(t, in.Enable("", "", true))
	prog.Counts("go 10")
	prog.Quit(nil)
	must(t, in.Enable("", "", false))
	if out := text(t, in.WriteTrace); !strings.Contains(out, ": a: ") {
		t.Errorf("the trace is gone:\n%s", out)
	}
	must(t, in.Write("-:a"))
}

func TestClosed(t *testing.T) {
	_, in := instance(t, nil)
	must(t, in.Write("p:a f_push"))
	must(t, in.Enable("", "", true))
	must(t, in.Close())
	if got := text(t, in.WriteDefinitions); got != "" {
		t.Errorf("definitions of a closed instance: %s", got)
	}
	if err := in.WritePipe(t.Context(), io.Discard, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("pipe of a closed instance: %v", err)
	}
	must(t, in.Write("p:a f_push"))
	if err := in.Enable("", "", true); !errors.Is(err, unix.ESHUTDOWN) {
		t.Errorf("a closed instance arms: %v", err)
	}
}

// Several users at once: nothing is torn, and what is left is right.
func TestConcurrentUse(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.WriteSynthetic("seen u64 v"))
	must(t, in.Write("p:stays f_lea v=%di"))
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			name := fmt.Sprintf("e%d", i)
			for range 5 {
				all(t, in.Write("p:"+name+" f_push v=%di"), in.Enable("kprobes", name, true), in.WriteTrace(io.Discard),
					in.WriteTrigger("kprobes", name, "hist:keys=common_pid:x=v:onmatch(kprobes."+name+").seen($x)"),
					in.SetFilter("kprobes", name, "v != 1"), in.WriteProfile(io.Discard),
					in.WriteTrigger("kprobes", name, "traceoff:1"), in.WriteHist(io.Discard, "kprobes", name),
					in.WriteTrigger("kprobes", name, "!traceoff"),
					in.WriteTrigger("kprobes", name, "!hist:keys=common_pid:x=v:onmatch(kprobes."+name+").seen($x)"),
					in.Enable("kprobes", name, false), in.Write("-:"+name))
			}
		})
	}
	for i := range 2 {
		wg.Go(func() {
			name := fmt.Sprintf("i%d", i)
			for range 10 {
				o, err := in.NewInstance(name)
				if err != nil {
					t.Error(err)
					return
				}
				all(t, o.Enable("synthetic", "seen", true), o.Enable("kprobes", "stays", true), o.WriteTrace(io.Discard))
				o.Snapshot()
				all(t, o.WriteSnapshot(io.Discard), o.WriteTrigger("kprobes", "stays", "snapshot:1"), o.SetFilter("kprobes", "stays", "v > 1"))
				all(t, in.RemoveInstance(name))
			}
		})
	}
	for range 10 {
		prog.Counts("go 10")
	}
	wg.Wait()
	if got := text(t, in.WriteDefinitions); got != "p:kprobes/stays f_lea v=%di\n" {
		t.Errorf("left: %s", got)
	}
	if in.reading != nil {
		t.Error("records are read though nothing is armed")
	}
}

// all reports the errors of calls.
func all(t *testing.T, errs ...error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// Whatever is written, what kprobe_events shows then can be written back, and shows the same.
func FuzzWrite(f *testing.F) {
	_, in := instance(f, nil)
	for _, s := range []string{
		"p:a f_push v=%di\nr5:g/b f_str $retval:s32 # c", "p f_lea\np f_lea\n-:p_f_lea_0", "p:a f_push a=+0(%di):string\np:a f_lea a=+0(%si):string",
		"p 0x1000\n", "p:a \"f_push\" x=\\\"y\"", "-:a\n-:kprobes/", "p:late no.so:f+16 %si:u8[4]", "r:c f_pair%return $arg1:b4@2/8",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, commands string) {
		must(t, in.Replace(""))
		_ = in.Write(commands) // bad lines end it
		list := text(t, in.WriteDefinitions)
		if err := in.Replace(list); err != nil {
			t.Fatalf("%q, listed by %q, is refused: %v", list, commands, err)
		}
		if again := text(t, in.WriteDefinitions); again != list {
			t.Errorf("%q, written back, is %q", list, again)
		}
		for _, group := range in.Groups() {
			names, err := in.Names(group)
			must(t, err)
			for _, name := range names {
				_, err := in.Format(group, name)
				must(t, err)
			}
		}
	})
}

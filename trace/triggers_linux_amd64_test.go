package trace

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
)

// goes has the program run and gives how often a function was called.
func goes(prog *testprog.Proc, n int, fn string) int {
	before := prog.Counts("count")[fn]
	return int(prog.Counts(fmt.Sprintf("go %d", n))[fn] - before)
}

func hist(t *testing.T, in *Instance, name string) string {
	t.Helper()
	return text(t, func(w io.Writer) error { return in.WriteHist(w, "kprobes", name) })
}

// totals reads the hits of a histogram's last lines.
func totals(t *testing.T, in *Instance, name string) (hits int) {
	t.Helper()
	_, rest, ok := strings.Cut(hist(t, in, name), "Hits: ")
	if _, err := fmt.Sscan(rest, &hits); !ok || err != nil {
		t.Fatalf("no totals in\n%s", hist(t, in, name))
	}
	return hits
}

func enabled(t *testing.T, in *Instance, group, name, want string) {
	t.Helper()
	if on, err := in.Enabled(group, name); err != nil || on != want {
		t.Errorf("%s/%s: enabled %q, not %q: %v", group, name, on, want, err)
	}
}

// A histogram of an event that is not enabled counts all its hits, records none, and goes.
func TestHistTrigger(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di"))
	must(t, in.WriteTrigger("kprobes", "a", "hist:keys=common_pid\n"))
	enabled(t, in, "kprobes", "a", "0*")
	want := goes(prog, 50, "f_push")
	if got := totals(t, in, "a"); got != want || want == 0 || lines(t, in, "a") != 0 {
		t.Errorf("%d hits of %d, %d lines", got, want, lines(t, in, "a"))
	}
	must(t, in.WriteTrigger("kprobes", "a", "hist:keys=common_pid:pause"))
	goes(prog, 10, "f_push")
	must(t, in.WriteTrigger("kprobes", "a", "hist:keys=common_pid:cont"))
	want += goes(prog, 10, "f_push")
	if got := totals(t, in, "a"); got != want {
		t.Errorf("%d hits of %d behind a pause", got, want)
	}
	must(t, in.Enable("", "", true)) // lines too, now
	n := goes(prog, 10, "f_push")
	if got, l := totals(t, in, "a"), lines(t, in, "a"); got != want+n || l != n {
		t.Errorf("%d hits of %d, %d lines of %d", got, want+n, l, n)
	}
	must(t, in.Enable("", "", false))
	if err := in.Write("-:a"); !errors.Is(err, unix.EBUSY) {
		t.Errorf("deleted under its histogram: %v", err)
	}
	must(t, in.WriteTrigger("kprobes", "a", "!hist:keys=common_pid"))
	enabled(t, in, "kprobes", "a", "0")
	was := hits(t, in, "a")
	goes(prog, 10, "f_push")
	if now := hits(t, in, "a"); now != was {
		t.Errorf("%d hits behind the last trigger: the event is in the target still", now-was)
	}
	must(t, in.Write("-:a"))
}

// A trigger sees hits that the event's filter does not let pass, and when it goes the filter is as before.
func TestTriggerBesideFilter(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di"))
	must(t, in.SetFilter("kprobes", "a", "v == 0x123456789"))
	must(t, in.Enable("", "", true))
	must(t, in.WriteTrigger("kprobes", "a", "hist:keys=common_pid"))
	want := goes(prog, 50, "f_push")
	if got, l := totals(t, in, "a"), lines(t, in, "a"); got != want || l != 0 {
		t.Errorf("%d hits of %d, %d lines of none", got, want, l)
	}
	must(t, in.SetFilter("kprobes", "a", "v != 0x123456789"))
	n := goes(prog, 50, "f_push")
	if got, l := totals(t, in, "a"), lines(t, in, "a"); got != want+n || l != n {
		t.Errorf("%d hits of %d, %d lines of %d", got, want+n, l, n)
	}
	must(t, in.SetFilter("kprobes", "a", "v == 0x123456789"))
	must(t, in.WriteTrigger("kprobes", "a", "!hist:keys=common_pid"))
	in.Clear()
	goes(prog, 50, "f_push")
	if l := lines(t, in, "a"); l != 0 {
		t.Errorf("%d lines pass a filter that none passes", l)
	}
}

// Triggers switch tracing and other events, and stacks are shown where one says so.
func TestSwitchTriggers(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di\np:b f_lea"))
	must(t, in.WriteTrigger("kprobes", "a", "enable_event:kprobes:b:1"))
	enabled(t, in, "kprobes", "b", "0*")
	goes(prog, 10, "f_push")
	enabled(t, in, "kprobes", "b", "1*")
	if list, err := in.Triggers("kprobes", "a"); err != nil || list != "enable_event:kprobes:b:count=0\n" {
		t.Errorf("triggers %q: %v", list, err)
	}
	in.Clear()
	if n := goes(prog, 10, "f_lea"); lines(t, in, "b") != n || n == 0 {
		t.Errorf("%d lines of %d hits", lines(t, in, "b"), n)
	}
	if err := in.Write("-:b"); !errors.Is(err, unix.EBUSY) {
		t.Errorf("deleted though a trigger names it: %v", err)
	}
	must(t, in.WriteTrigger("kprobes", "a", "!enable_event:kprobes:b"))
	enabled(t, in, "kprobes", "b", "1")
	must(t, in.Enable("", "", false))

	must(t, in.WriteTrigger("kprobes", "a", "stacktrace:2"))
	must(t, in.Enable("kprobes", "a", true))
	in.Clear()
	n := goes(prog, 10, "f_push")
	out := text(t, in.WriteTrace)
	if got := strings.Count(out, ": <stack trace>\n"); got != 2 || strings.Count(out, ": a: ") != n || strings.Count(out, "\n => ") < 2 {
		t.Errorf("%d stacks of 2, %d lines of %d:\n%.2000s", got, strings.Count(out, ": a: "), n, out)
	}
	must(t, in.WriteTrigger("kprobes", "a", "!stacktrace"))
	must(t, in.WriteTrigger("kprobes", "a", "traceoff:1"))
	in.Clear()
	goes(prog, 10, "f_push")
	if got := lines(t, in, "a"); got != 1 || in.Tracing() {
		t.Errorf("%d lines of one, tracing is on: %v", got, in.Tracing())
	}
}

// The time between two events makes a synthetic event, which an instance of its own shows.
func TestSyntheticEvent(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push\np:b f_lea"))
	must(t, in.WriteSynthetic("lat u64 t; int pid"))
	other, err := in.NewInstance("other")
	must(t, err)
	must(t, in.WriteTrigger("kprobes", "a", "hist:keys=common_pid:ts=common_timestamp.usecs"))
	must(t, in.WriteTrigger("kprobes", "b", "hist:keys=common_pid:t=common_timestamp.usecs-$ts:onmatch(kprobes.a).lat($t,common_pid)"))
	must(t, other.Enable("synthetic", "lat", true))
	before := prog.Counts("count")
	after := prog.Counts("go 30")
	n := int(min(after["f_push"]-before["f_push"], after["f_lea"]-before["f_lea"]))
	out := text(t, other.WriteTrace)
	told := regexp.MustCompile(`(?m)^ +work-(\d+) .*: lat: t=\d+ pid=(\d+)$`).FindAllStringSubmatch(out, -1)
	for _, m := range told {
		if m[1] != m[2] {
			t.Errorf("the task and its field differ: %s", m[0])
		}
	}
	if len(told) != n || n == 0 {
		t.Errorf("%d lines of %d:\n%.1000s", len(told), n, out)
	}
	if got := strings.Join(in.Groups(), " "); got != "kprobes synthetic" {
		t.Errorf("groups %s", got)
	}
	if f, err := in.Format("synthetic", "lat"); err != nil || !strings.Contains(f, "name: lat\n") {
		t.Errorf("format %s: %v", f, err)
	}
	if err := in.ClearSynthetic(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("deleted while it is enabled: %v", err)
	}
	must(t, other.Enable("synthetic", "", false))
	must(t, in.WriteTrigger("kprobes", "b", "!hist:keys=common_pid:t=common_timestamp.usecs-$ts:onmatch(kprobes.a).lat($t,common_pid)"))
	must(t, in.WriteSynthetic("!lat"))
	if _, err := in.ID("synthetic", "lat"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("it is listed: %v", err)
	}
}

// What is refused leaves nothing behind.
func TestTriggerRefused(t *testing.T) {
	_, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di\np:b f_lea"))
	for _, tt := range []struct {
		command string
		errno   error
		logged  bool
	}{
		{"nosuch", unix.EINVAL, false},
		{"traceoff if nosuch == 1", unix.EINVAL, true},
		{"hist:keys=nosuch", unix.EINVAL, true},
		{"enable_event:kprobes:nosuch", unix.EINVAL, false},
		{"hist:keys=v:onmatch(kprobes.b).nosuch(v)", unix.EINVAL, true},
	} {
		in.ClearErrorLog()
		if err := in.WriteTrigger("kprobes", "a", tt.command); !errors.Is(err, tt.errno) || (in.ErrorLog() != "") != tt.logged {
			t.Errorf("%s: %v, log %q", tt.command, err, in.ErrorLog())
		}
		enabled(t, in, "kprobes", "a", "0")
		enabled(t, in, "kprobes", "b", "0")
	}
	if err := in.WriteTrigger("kprobes", "nosuch", "traceoff"); !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
	if in.reading != nil {
		t.Error("records are read though nothing is armed")
	}
}

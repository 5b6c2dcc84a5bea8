package trace

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// lines counts what an instance has of an event.
func lines(t *testing.T, in *Instance, name string) int {
	t.Helper()
	return strings.Count(text(t, in.WriteTrace), ": "+name+": ")
}

// hits counts an event by kprobe_profile.
func hits(t *testing.T, in *Instance, name string) (n int) {
	t.Helper()
	for line := range strings.Lines(text(t, in.WriteProfile)) {
		if f := strings.Fields(line); f[0] == name {
			for _, c := range f[1] {
				n = 10*n + int(c-'0')
			}
		}
	}
	return n
}

// Instances share events; each records what it has enabled, with a filter and a switch of its own. A hit counts once in the profile,
// whoever sees it. The program's own count is the judge.
func TestInstances(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di"))
	a, err := in.NewInstance("a")
	must(t, err)
	b, err := in.NewInstance("b")
	must(t, err)
	if _, err := in.NewInstance("a"); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a again: %v", err)
	}
	for _, name := range []string{"", ".", "..", "a/b"} {
		if _, err := in.NewInstance(name); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if got := strings.Join(in.Instances(), " "); got != "a b" || a.Instance("b") != b || a.Instance("c") != nil {
		t.Errorf("instances %q", got)
	}
	was := prog.Counts("count")["f_push"]
	run := func() int {
		now := prog.Counts("go 100")["f_push"]
		n := now - was
		was = now
		return int(n)
	}

	must(t, in.Enable("", "", true))
	first := run()
	must(t, a.Enable("kprobes", "a", true))
	second := run()
	must(t, in.Enable("", "", false))
	third := run()
	must(t, b.SetFilter("kprobes", "a", "v == 0x123456789"))
	must(t, b.Enable("", "", true))
	fourth := run()
	a.SetTracing(false)
	fifth := run()
	a.SetTracing(true)
	must(t, a.Enable("", "", false))
	sixth := run()
	for _, tt := range []struct {
		what      string
		got, want int
	}{
		{"the first", lines(t, in, "a"), first + second},
		{"a", lines(t, a, "a"), second + third + fourth},
		{"b", lines(t, b, "a"), 0},
		{"the profile", hits(t, in, "a"), first + second + third + fourth + fifth + sixth},
	} {
		if tt.got != tt.want {
			t.Errorf("%s has %d hits of %d (%d+%d+%d+%d+%d+%d)", tt.what, tt.got, tt.want, first, second, third, fourth, fifth, sixth)
		}
	}
	for _, x := range []struct {
		in   *Instance
		want string
	}{{in, "0"}, {a, "0"}, {b, "1"}} {
		if on, err := x.in.Enabled("kprobes", "a"); err != nil || on != x.want {
			t.Errorf("instance %q: enabled %q: %v", x.in.name, on, err)
		}
	}
	if err := in.Write("-:a"); !errors.Is(err, unix.EBUSY) {
		t.Errorf("deleted while an instance has it enabled: %v", err)
	}
	release, err := b.Hold()
	must(t, err)
	if err := in.RemoveInstance("b"); !errors.Is(err, unix.EBUSY) {
		t.Errorf("removed while it is held: %v", err)
	}
	release()
	must(t, in.RemoveInstance("b"))
	if err := in.RemoveInstance("b"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := b.Hold(); !errors.Is(err, unix.ENODEV) {
		t.Errorf("held behind its end: %v", err)
	}
	if err := b.Enable("", "", true); !errors.Is(err, unix.ESHUTDOWN) {
		t.Errorf("enabled behind its end: %v", err)
	}
	kept := lines(t, a, "a")
	must(t, in.Write("p:other f_lea\n-:other")) // nobody has had it enabled
	if got := lines(t, a, "a"); got != kept {
		t.Errorf("%d records of %d are left behind the end of another event", got, kept)
	}
	must(t, in.Write("-:a"))
	if got := lines(t, a, "a"); got != 0 {
		t.Errorf("%d records are left of an event that was deleted", got)
	}
}

// A probe that comes to an event that is enabled is armed in each instance that has it enabled.
func TestJoinInInstances(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push"))
	a, err := in.NewInstance("a")
	must(t, err)
	must(t, errors.Join(in.Enable("", "", true), a.Enable("", "", true)))
	must(t, in.Write("p:a f_lea"))
	before := prog.Counts("count")
	after := prog.Counts("go 50")
	want := int(after["f_push"] - before["f_push"] + after["f_lea"] - before["f_lea"])
	if x, y := lines(t, in, "a"), lines(t, a, "a"); x != want || y != want || want == 0 {
		t.Errorf("%d and %d hits of %d", x, y, want)
	}
	must(t, in.Write("-:a f_lea"))
	before = prog.Counts("count")
	want += int(prog.Counts("go 50")["f_push"] - before["f_push"])
	if x, y := lines(t, in, "a"), lines(t, a, "a"); x != want || y != want || want == 0 {
		t.Errorf("one probe is left: %d and %d hits of %d", x, y, want)
	}
}

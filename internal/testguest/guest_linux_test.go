package testguest_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/testguest"
)

func TestMain(m *testing.M) { testguest.Main(m) }

const events = "/sys/kernel/tracing/kprobe_events"

func TestFiles(t *testing.T) {
	g := testguest.Shared(t)
	if e := g.Write(events, "p:nosuch no_such_function\n", false); e != syscall.ENOENT {
		t.Errorf("a probe on a function that is not there: %v, want ENOENT", e)
	}
	if e := g.Write(events, "p:there do_sys_openat2\n", false); e != 0 {
		t.Errorf("a probe: %v", e)
	}
	if s, err := g.Read(events); err != nil || s != "p:kprobes/there do_sys_openat2\n" {
		t.Errorf("the listing: %q, %v", s, err)
	}
	if e := g.Write(events, "", true); e != 0 {
		t.Errorf("removal of all: %v", e)
	}
	if _, err := g.Read("/no/such"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("read of a missing file: %v", err)
	}
	if names, err := g.List("/dev"); err != nil || !slices.Contains(names, "null") {
		t.Errorf("/dev: %q, %v", names, err)
	}
	large := bytes.Repeat([]byte("sixteen bytes..\n"), 1<<16)
	from := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(from, large, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.Upload("/tmp/large", from); err != nil {
		t.Fatal(err)
	}
	if s, err := g.Read("/tmp/large"); err != nil || s != string(large) {
		t.Errorf("1 MB came back as %d bytes, %v", len(s), err)
	}
	syms, err := g.Read("/proc/kallsyms")
	if err != nil || !strings.Contains(syms, " T do_sys_open\n") || strings.Count(syms, "\n") < 80000 {
		t.Errorf("kallsyms: %v, %d lines", err, strings.Count(syms, "\n"))
	}
}

func TestCommands(t *testing.T) {
	g := testguest.Shared(t)
	r, err := g.Run("/bin/sh", "-c", "echo out; echo err >&2; exit 3")
	if err != nil || r.Stdout != "out\n" || r.Stderr != "err\n" || r.Status != 3 {
		t.Errorf("run: %+v, %v", r, err)
	}
	if r, err := g.Run("/bin/sh", "-c", "kill -9 $$"); err != nil || r.Status != 128+9 {
		t.Errorf("a command that is killed: %+v, %v", r, err)
	}
	if _, err := g.Run("/no/such"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a command that is not there: %v", err)
	}
	end := g.Background("/bin/sh", "-c", "exec sleep 98765")
	for until := time.Now().Add(2 * time.Minute); !strings.Contains(g.Shell("ps"), "sleep 98765"); { // it may not have come to its exec yet
		if time.Now().After(until) {
			t.Fatal("not in the background")
		}
	}
	end()
	if s := g.Shell("ps"); strings.Contains(s, "sleep 98765") {
		t.Errorf("still in the background: %s", s)
	}
}

// TestState tells that the vCPUs run, and where they are.
func TestState(t *testing.T) {
	s := testguest.Shared(t).State()
	if !strings.Contains(s, "status:running") || strings.Count(s, "RIP=") != 2 {
		t.Error(s)
	}
}

func TestHit(t *testing.T) {
	g := testguest.Shared(t)
	const n = 500
	for what, want := range map[string]testguest.Counts{
		"open":    {OK: 0, Failed: n, Errno: int(syscall.ENOENT)},
		"close":   {OK: 0, Failed: n, Errno: int(syscall.EBADF)},
		"getppid": {OK: n},
		"read":    {OK: n, Bytes: n},
		"write":   {OK: n, Bytes: n},
		"tcp":     {OK: n, Bytes: 64 * n},
	} {
		got := g.Hit(what, n, 1)
		if want.Bytes == 0 {
			got.Bytes = 0 // getppid's sum is that of its results
		}
		if got.Ticks == 0 || got.PID == 0 || got.Calls != n {
			t.Errorf("%s: %+v", what, got)
		}
		got.Ticks, got.PID, got.Calls = 0, 0, 0
		if got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	if c := g.Hit("openname", 3, 0, "/bin/busybox", "0", "0"); c.OK != 3 {
		t.Errorf("openname: %+v", c)
	}
	if bad := g.Trouble(); len(bad) > 0 {
		t.Errorf("the guest's kernel is in trouble: %q", bad)
	}
}

// TestIcount: a guest that counts instructions needs as many each time.
func TestIcount(t *testing.T) {
	g := testguest.Boot(t, &testguest.Options{CPUs: 1, Icount: true, Files: map[string]string{"/bin/again": "/bin/true"}})
	if s := g.Shell("ls /bin/again"); s != "/bin/again\n" {
		t.Errorf("Options.Files: %q", s)
	}
	per := func() float64 { c := g.Hit("getppid", 100000, 0); return float64(c.Ticks) / float64(c.Calls) }
	a, b := per(), per()
	if d := a - b; a < 50 || a > 5000 || d > a/20 || d < -a/20 {
		t.Errorf("%.1f and %.1f instructions for a getppid", a, b)
	}
	t.Logf("%.1f instructions for a getppid", a)
}

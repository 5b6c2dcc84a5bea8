package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/holder"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// module runs a verb about the guest's modules, and gives its output.
func (v *verbs) modules(t *testing.T, verb string, args ...string) string {
	t.Helper()
	r := v.run(t, verb, args...)
	if r.status != 0 || r.errs != "" {
		t.Fatalf("%s %q: %+v", verb, args, r)
	}
	return r.out
}

const callsModule = "../../internal/e2e/testdata/calls.c"

// insmod has the command load a module of C into the guest's kernel: the log has a line for each call that a program there makes, with its arguments.
func (v *verbs) insmod(t *testing.T) {
	const calls = 40
	v.modules(t, "insmod", callsModule, "symbol=do_fchownat")
	if out := v.modules(t, "lsmod"); !regexp.MustCompile(`(?m)^calls +\d+  0$`).MatchString(out) {
		t.Errorf("lsmod: %s", out)
	}
	v.g.Hit("chown", calls, 0)
	v.g.Hit("chown", calls, 1)
	out := v.modules(t, "dmesg")
	for i := range 2 * calls {
		want := fmt.Sprintf(`\] calls: call %d at do_fchownat\+0x0/0x[0-9a-f]+, dfd -100, name /no/such\n`, i+1)
		if !regexp.MustCompile(want).MatchString(out) {
			t.Fatalf("dmesg without %s: %s", want, out)
		}
	}
	if got := strings.Count(out, ": call "); got != 2*calls {
		t.Errorf("%d lines of %d calls", got, 2*calls)
	}
	if r := v.run(t, "list"); !regexp.MustCompile(`(?m)^[0-9a-f]+  k  do_fchownat\+0x[0-9a-f] .*\[OPTIMIZED\]$`).MatchString(r.out) || strings.Contains(r.out, "fixup_exception") {
		t.Errorf("list: %+v", r)
	}
	v.modules(t, "disable")
	v.g.Hit("chown", calls, 0)
	v.modules(t, "enable")
	v.g.Hit("chown", calls, 0)
	if out := v.modules(t, "rmmod", "calls"); !strings.HasSuffix(out, fmt.Sprintf("] calls: %d calls\n", 3*calls)) {
		t.Errorf("rmmod: %s", out)
	}
	if r := v.run(t, "rmmod", "calls"); r.status != 1 || !strings.Contains(r.errs, "has no modules") {
		t.Errorf("rmmod of none: %+v", r)
	}
	if r := v.run(t, "insmod", callsModule, "symbol=no_such_function"); r.status != 1 || !strings.Contains(r.errs, "module calls: its start has returned -2") {
		t.Errorf("a start that fails: %+v", r)
	}
	if r := v.run(t, "list"); r.out != "" {
		t.Errorf("left: %s", r.out)
	}
}

// insmodKilled kills the process that holds the guest for a module: its handlers run on, and kprobe detach takes all out.
func (v *verbs) insmodKilled(t *testing.T) {
	v.modules(t, "insmod", callsModule, "symbol=do_fchownat", "fault=30")
	v.g.Hit("chown", 10, 0)
	v.killHolder(t)
	if c := v.g.Hit("chown", 100, 1); c.Failed != 100 { // with a fault among them, which the guest's kernel alone sees
		t.Errorf("%+v", c)
	}
	if r := v.run(t, "detach"); r.status != 0 {
		t.Errorf("detach: %+v", r)
	}
	if c := v.g.Hit("chown", 100, 1); c.Failed != 100 {
		t.Errorf("%+v", c)
	}
	v.insmod(t)
}

// insmodKilledAsking kills the process that holds the guest while a module's start asks it for probes, again and again: the task that runs the start goes on.
func (v *verbs) insmodKilledAsking(t *testing.T) {
	insmod := v.command(t, "insmod", "testdata/again.c")
	if err := insmod.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); !strings.Contains(v.run(t, "list").out, "_sys_getppid"); {
		if time.Now().After(end) {
			t.Fatal("the module's probe is never there")
		}
	}
	v.killHolder(t)
	if err := insmod.Wait(); err == nil {
		t.Error("insmod has succeeded")
	}
	if r := v.run(t, "detach"); r.status != 0 {
		t.Errorf("detach: %+v", r)
	}
	if c := v.g.Hit("getppid", 100, 1); c.OK != 100 {
		t.Errorf("%+v", c)
	}
	v.empty(t)
	v.insmod(t)
}

// killHolder kills the process that holds the guest.
func (v *verbs) killHolder(t *testing.T) {
	t.Helper()
	h, err := qemu.Holder(v.g.Spec)
	if err != nil || h == nil {
		t.Fatalf("the holder: %v, %v", h, err)
	}
	if err := unix.Kill(h.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := holder.Wait(h.PID); err != nil { // its files are closed before it has ended
		t.Fatal(err)
	}
}

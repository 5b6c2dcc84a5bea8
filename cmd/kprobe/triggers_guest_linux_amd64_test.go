package main

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// triggers runs triggers in a guest's kernel: what is shown are the hits of a window, with their callers, and a histogram of all hits.
func (v *verbs) triggers(t *testing.T) {
	const calls = 50
	tr := v.start(t, 3,
		"p:on do_sys_openat2 name=+0(%si):ustring", "-R", `traceon:1 if name == "/no/such"`,
		"p:call __x64_sys_getppid", "-R", "stacktrace", "-R", "hist:keys=common_pid.execname",
		"p:off do_filp_open name=+0(+0(%si)):string", "-R", `traceoff if name == "/no/other"`)
	pids := map[int]bool{}
	for _, name := range []string{"/no/other", "/no/such", "/no/other", "/no/such"} {
		v.g.Hit("openname", 1, 0, name, "0", "0")
		pids[v.g.Hit("getppid", calls, 0).PID] = true
	}
	r := tr.end(t, unix.SIGINT)
	if r.status != 0 || hitsOf(t, r.errs, "call") != uint64(len(pids)*calls) {
		t.Errorf("status %d: %s", r.status, r.errs)
	}
	lines, stacks := strings.Count(r.out, ": call: ("), strings.Count(r.out, ")\n => ")
	if lines != calls || stacks != calls || strings.Contains(r.out, "<stack trace>") {
		t.Errorf("%d lines of calls, %d with callers, want %d: %.2000s", lines, stacks, calls, r.out)
	}
	if n := strings.Count(r.out, "{ common_pid: hit "); n != len(pids) || !strings.Contains(r.out, "\n    Hits: 200\n") {
		t.Errorf("a histogram with %d entries, want %d: %s", n, len(pids), r.out[max(0, len(r.out)-1000):])
	}
	v.empty(t)
}

package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// metrics: what the histograms of a guest's kernel are as metrics is what the program has counted, by CPU too.
func (v *verbs) metrics(t *testing.T) {
	tr := v.startCommand(t, 2, v.command(t, "hist", "--format", "prometheus", "p:ppid __x64_sys_getppid", "keys=common_cpu", "r:ret __x64_sys_getppid v=$retval:u32", "keys=v.log2"))
	v.g.Hit("getppid", 500, 0)
	v.g.Hit("getppid", 300, 1)
	r := tr.end(t, unix.SIGINT)
	guest := strconv.Quote(v.g.Spec.String())
	for _, line := range []string{
		fmt.Sprintf(`kprobe_hits_total{group="kprobes",event="ppid",guest=%s} 800`, guest),
		fmt.Sprintf(`kprobe_keyed_hits_total{group="kprobes",event="ppid",guest=%s,common_cpu="0"} 500`, guest),
		fmt.Sprintf(`kprobe_keyed_hits_total{group="kprobes",event="ppid",guest=%s,common_cpu="1"} 300`, guest),
		fmt.Sprintf(`kprobe_v_count{group="kprobes",event="ret",guest=%s} 800`, guest),
	} {
		if r.status != 0 || !strings.Contains(r.out, line+"\n") {
			t.Errorf("status %d, no line %s in\n%s%s", r.status, line, r.out, r.errs)
		}
	}
	v.empty(t)
}

// perfetto: each call is a slice with its result, on a track of its thread.
func (v *verbs) perfetto(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace")
	tr := v.startCommand(t, 2, v.command(t, "record", "--format", "perfetto", "-o", file, "p:ppid __x64_sys_getppid", "r:ret __x64_sys_getppid v=$retval:u32"))
	c := v.g.Hit("getppid", 200, 0)
	r := tr.end(t, unix.SIGINT)
	const proto = "../../internal/e2e/testdata"
	out, err := exec.Command("sh", "-c", "protoc --decode=perfetto.protos.Trace --proto_path="+proto+" "+proto+"/perfetto.proto <"+file).CombinedOutput()
	if err != nil || r.status != 0 {
		t.Fatalf("%v, status %d: %.2000s%s", err, r.status, out, r.errs)
	}
	for what, want := range map[string]int{
		"type: TYPE_SLICE_BEGIN": 200, "type: TYPE_SLICE_END": 200, "type: TYPE_INSTANT": 400, fmt.Sprintf("name: \"hit-%d\"", c.PID): 1, "dict_entries {": 400,
	} {
		if n := strings.Count(string(out), what); n != want {
			t.Errorf("%d times %s, want %d", n, what, want)
		}
	}
	v.empty(t)
}

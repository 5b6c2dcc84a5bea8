package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTraceCmd has Debian's trace-cmd, which knows one place of tracefs, drive a mount: in a mount namespace of its own it stands there.
// The program's own count of calls is the judge.
func TestTraceCmd(t *testing.T) {
	t.Parallel()
	p := program(t, "chowns")
	m := mount(t, p)
	dir := t.TempDir()
	serveHits(t, dir, func(what, n string) {
		if what == "recorders" {
			recorders(t, n)
			return
		}
		p.Counts(what + " " + n)
	})
	if err := os.Symlink("/bin/sh", filepath.Join(dir, "sh")); err != nil {
		t.Fatal(err)
	}
	define := func() {
		m.is(`echo 'p:g/e do_fchownat dfd=%di:s32 name=+0(%si):string u=%dx:u32' > kprobe_events; echo 'p:g/s ksys_sync' >> kprobe_events`, "")
	}
	define()
	// trace-cmd writes 1 to a file of /proc, where it has 1 already, which containers refuse. It reads the kernel's symbols twice, and fails
	// where some came or went between, as other tests have them do.
	script := `set -e
mount --bind ` + m.dir + ` /sys/kernel/tracing
echo 1 > ftrace_enabled
mount --bind ftrace_enabled /proc/sys/kernel/ftrace_enabled
: > kallsyms
mount --bind kallsyms /proc/kallsyms
`
	inside := func(commands string) string {
		t.Helper()
		cmd := exec.Command("unshare", "-m", "/bin/sh", "-c", script+commands)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HIT="+filepath.Join(dir, "hit"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("install trace-cmd, as ./test does: %s: %v: %s", commands, err, out)
		}
		return string(out)
	}
	expect := func(commands string, want int, part string) {
		t.Helper()
		if out := inside(commands); strings.Count(out, part) != want {
			t.Errorf("%s: %q stands there %d times, not %d:\n%s", commands, part, strings.Count(out, part), want, out)
		}
	}
	expect(`trace-cmd list -e`, 2, "g:")
	expect(`trace-cmd start -e g:e -f 'u == 7' -e g:s -R 'traceoff:1'; $HIT chown 3 0; $HIT sync 1 0; $HIT chown 5 0; trace-cmd show`, 3, ` name="/no/such" u=7`)
	expect(`trace-cmd stop; trace-cmd extract -o x.dat; trace-cmd report -i x.dat`, 3, ` name="/no/such" u=7`)
	expect(`trace-cmd report -i x.dat -R`, 3, " dfd=")
	expect(`trace-cmd reset; grep -c . /sys/kernel/tracing/kprobe_events || true`, 1, "0\n") // with all events
	define()
	expect(`trace-cmd record -o y.dat -e g sh -c '$HIT recorders $PPID; $HIT chown 40 0'; trace-cmd report -i y.dat`, 40, ` name="/no/such" u=7`)
	expect(`trace-cmd start -e g:e; echo told > /sys/kernel/tracing/trace_marker; trace-cmd extract -o z.dat; trace-cmd report -i z.dat`, 1, "told")
	expect(`trace-cmd hist -i y.dat`, 1, " e #40\n")
	expect(`trace-cmd clear; trace-cmd show`, 0, "u=7")
	expect(`trace-cmd reset`, 0, "u=7")
	if n := right(t, p, "chown 1"); n["chowns"] != 3+5+40+1 {
		t.Error(fmt.Sprint(n))
	}
}

// recorders waits until every child of trace-cmd that records waits for data. One that trace-cmd tells to end before it has begun reads
// nothing (trace-cmd 3.1.6), and what was recorded is lost.
func recorders(t *testing.T, tracecmd string) {
	children, err := os.ReadFile("/proc/" + tracecmd + "/task/" + tracecmd + "/children")
	if err != nil {
		t.Error(err)
		return
	}
	waits := 0
	for _, pid := range strings.Fields(string(children)) {
		name, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil || string(name) != "trace-cmd\n" {
			continue // the command
		}
		waits++
		within(t, "trace-cmd records", func() bool {
			call, err := os.ReadFile("/proc/" + pid + "/syscall")
			return err == nil && strings.HasPrefix(string(call), fmt.Sprint(unix.SYS_PSELECT6, " "))
		})
	}
	if waits == 0 {
		t.Errorf("trace-cmd %s has no recorders", tracecmd)
	}
}

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/guestkit"
	"kprobes.dev/kprobes/internal/testguest"
)

const (
	cases      = "testdata/conform.sh"
	transcript = "testdata/conform.txt"
	// conformLimit is how long all cases may take on one side.
	conformLimit = 10 * time.Minute
)

// TestConformProcess puts small cases of shell for all files to the mount of a process, and compares what they print with what they have
// printed in a guest, at its kernel's own files.
func TestConformProcess(t *testing.T) {
	t.Parallel()
	p := program(t, "chowns")
	m := mount(t, p)
	got := askMount(t, m, func(what, n string) { p.Counts(what + " " + n) })
	conform(t, "process", kernelSaid(t), got)
	right(t, p, "sync 1")
}

// TestConformGuest does so with the mount of a guest. A long run has the guest's kernel say again what it says.
func TestConformGuest(t *testing.T) {
	t.Parallel()
	g := testguest.Boot(t, &testguest.Options{
		Kernel: guestkit.Build{Package: guestkit.Cloud.Package, Suite: "trixie"}, CPUs: 1, // Linux 6.12
		Files: map[string]string{"conform.sh": cases},
	})
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		r, err := g.Run("/bin/sh", "-c", "HIT=/bin/hit exec sh /conform.sh /sys/kernel/tracing")
		if err != nil || r.Status != 0 {
			t.Fatalf("status %d, %v: %s", r.Status, err, r.Stderr)
		}
		differing(t, kernelSaid(t), normal(r.Stdout))
	}
	m := mountAt(t, t.TempDir(), "--guest", g.Spec.String())
	got := askMount(t, m, func(what, n string) {
		if r, err := g.Run("/bin/hit", what, n, "0"); err != nil || r.Status != 0 {
			t.Errorf("hit %s %s: status %d, %v: %s", what, n, r.Status, err, r.Stderr)
		}
	})
	conform(t, "guest", kernelSaid(t), got)
}

// differing reports the steps that two transcripts of the kernel have differently.
func differing(t *testing.T, want, got string) {
	t.Helper()
	a, b := steps(want), steps(got)
	if len(a) != len(b) {
		t.Errorf("the kernel's transcript has %d steps, now %d", len(a), len(b))
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Errorf("%s\n  was: %s\n  is:  %s", a[i].name(), shown(a[i].text), shown(b[i].text))
		}
	}
}

func kernelSaid(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(transcript)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// askMount runs the cases at a mount; hit has the target make calls.
func askMount(t *testing.T, m *mounted, hit func(what, n string)) string {
	t.Helper()
	dir := t.TempDir()
	box, err := guestkit.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(box, "--install", "-s", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	serveHits(t, dir, hit)
	b, err := os.ReadFile(cases)
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "conform.sh")
	if err := os.WriteFile(script, bytes.ReplaceAll(b, []byte(guestBox), []byte(box)), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), conformLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, box, "sh", script, m.dir)
	cmd.Env = []string{"PATH=" + dir, "HIT=" + filepath.Join(dir, "hit")}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v; the cases have printed at last: %s; kprobe mount: %s", err, out[max(0, len(out)-2000):], m.errs)
	}
	return normal(atGuestBox(string(out), box))
}

// guestBox is busybox in a guest, in whose file the cases have probes.
const guestBox = "/bin/busybox"

// atGuestBox gives what the cases print with another file as they print it with that of a guest: carets that stand behind it come nearer.
func atGuestBox(out, file string) string {
	lines := strings.Split(out, "\n")
	for i := 1; i < len(lines); i++ {
		at := strings.Index(lines[i-1], file)
		if caret := strings.Index(lines[i], "^"); at >= 0 && caret > at && strings.TrimSpace(lines[i]) == "^" {
			lines[i] = strings.Repeat(" ", caret-len(file)+len(guestBox)) + "^"
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), file, guestBox)
}

// serveHits makes a command hit in dir, which calls hit and waits for its end, by two pipes.
func serveHits(t *testing.T, dir string, hit func(what, n string)) {
	t.Helper()
	ask, done := filepath.Join(dir, "ask"), filepath.Join(dir, "done")
	for _, f := range []string{ask, done} {
		if err := unix.Mkfifo(f, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := fmt.Sprintf("#!%s\necho \"$1 $2\" >%s\nread -r x <%s\n", filepath.Join(dir, "sh"), ask, done)
	if err := os.WriteFile(filepath.Join(dir, "hit"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	var pipes [2]*os.File
	for i, f := range []string{ask, done} {
		var err error
		if pipes[i], err = os.OpenFile(f, os.O_RDWR, 0); err != nil { // RDWR: neither ends while nobody else has it open
			t.Fatal(err)
		}
	}
	end := make(chan struct{})
	go func() {
		defer close(end)
		defer pipes[1].Close() // who still waits reads its end
		for lines := bufio.NewScanner(pipes[0]); lines.Scan(); {
			what, n, _ := strings.Cut(lines.Text(), " ")
			hit(what, n)
			if _, err := pipes[1].WriteString("\n"); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	t.Cleanup(func() {
		pipes[0].Close()
		<-end
	})
}

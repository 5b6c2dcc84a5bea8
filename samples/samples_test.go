// Package samples_test runs the samples as a user would and compares what they print with
// what they say they have done.
package samples_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// build builds a sample once.
var build = func() func(t *testing.T, name string) string {
	var once sync.Once
	var dir string
	var out []byte
	var err error
	return func(t *testing.T, name string) string {
		t.Helper()
		once.Do(func() {
			if dir, err = os.MkdirTemp("", "samples-"); err == nil {
				out, err = exec.Command("go", "build", "-o", dir+"/", "./...").CombinedOutput()
			}
		})
		if err != nil {
			t.Fatalf("go build: %v: %s", err, out)
		}
		return filepath.Join(dir, name)
	}
}()

// run runs a sample to its end and gives the lines it printed.
func run(t *testing.T, name string, args ...string) []string {
	t.Helper()
	cmd := exec.Command(build(t, name), args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, errs.String())
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

// want compares lines with regular expressions, one for each.
func want(t *testing.T, got []string, exprs ...string) {
	t.Helper()
	if len(got) != len(exprs) {
		t.Errorf("%d lines, want %d", len(got), len(exprs))
	}
	for i := range min(len(got), len(exprs)) {
		if !regexp.MustCompile("^" + exprs[i] + "$").MatchString(got[i]) {
			t.Errorf("line %d is %q, want %s", i+1, got[i], exprs[i])
		}
	}
	if t.Failed() {
		t.Logf("all lines:\n%s", strings.Join(got, "\n"))
	}
}

// repeat gives exprs n times over.
func repeat(n int, exprs ...string) (out []string) {
	for range n {
		out = append(out, exprs...)
	}
	return out
}

// around puts lines between the first and the last ones.
func around(first string, middle []string, last ...string) []string {
	return append(append([]string{first}, middle...), last...)
}

func TestKprobe(t *testing.T) {
	const n = 7
	hit := repeat(n,
		`pre_handler: <main\.clone> p->addr = 0x[0-9a-f]{16}, ip = [0-9a-f]+, flags = 0x[0-9a-f]+`,
		`post_handler: <main\.clone> p->addr = 0x[0-9a-f]{16}, flags = 0x[0-9a-f]+`)
	lines := run(t, "kprobe_example", "-calls", fmt.Sprint(n), "-pause", "1ms")
	want(t, lines, around(`Planted kprobe at [0-9a-f]{16}`, hit, `kprobe at [0-9a-f]{16} unregistered`,
		`main\.clone was called 7 times; 7 hits, 0 missed, 0 lines dropped`)...)
	addr := strings.TrimPrefix(lines[0], "Planted kprobe at ")
	for i, l := range lines[:len(lines)-1] {
		if !strings.Contains(l, addr) {
			t.Errorf("line %d does not name the address %s: %s", i+1, addr, l)
		}
	}
	if ip := strings.TrimLeft(addr, "0"); !strings.Contains(lines[1], "ip = "+ip+",") {
		t.Errorf("the pre handler's ip is not 0x%s: %s", ip, lines[1])
	}
}

func TestKprobeStack(t *testing.T) {
	lines := run(t, "kprobe_example", "-calls", "1", "-pause", "1ms", "-stack")
	text := strings.Join(lines, "\n")
	if !regexp.MustCompile(`(?s)pre_handler: .*\n main\.work\+0x[0-9a-f]+\n main\.run\+.*\n main\.main\+.*\npost_handler: `).MatchString(text) {
		t.Errorf("no call stack of main.clone in\n%s", text)
	}
}

// In a function that everything calls, the allocator among them, the handlers run while
// anything goes on; the program is none the worse for it, and the sums are right.
func TestKprobeAnywhere(t *testing.T) {
	lines := run(t, "kprobe_example", "-symbol", "runtime.mallocgc", "-calls", "5", "-pause", "1ms")
	var calls, hits, missed, dropped int
	last := lines[len(lines)-1]
	if _, err := fmt.Sscanf(last, "main.clone was called %d times; %d hits, %d missed, %d lines dropped", &calls, &hits, &missed, &dropped); err != nil {
		t.Fatalf("%q: %v", last, err)
	}
	if printed := len(lines) - 3; calls != 5 || hits == 0 || printed+dropped != 2*hits {
		t.Errorf("%d lines printed, but: %s", printed, last)
	}
}

func TestKretprobe(t *testing.T) {
	var back []string
	for i := range 7 {
		back = append(back, fmt.Sprintf(`main\.clone returned %d and took [0-9]{7,} ns to execute`, 4711+i)) // it sleeps 1 ms
	}
	want(t, run(t, "kretprobe_example", "-calls", "7", "-pause", "1ms"), around(`Planted return probe at main\.clone: [0-9a-f]{16}`, back,
		`kretprobe at [0-9a-f]{16} unregistered`, `Missed probing 0 instances of main\.clone`,
		`main\.clone was called 7 times; 7 returns, 0 lines dropped`)...)
}

func TestJprobe(t *testing.T) {
	var hit []string
	for i := range 7 {
		hit = append(hit, fmt.Sprintf(`jprobe: clone_flags = 0x11, stack_start = 0x%x stack_size = 0x2000`, i<<12))
	}
	want(t, run(t, "jprobe_example", "-calls", "7", "-pause", "1ms"), around(`Planted jprobe at [0-9a-f]{16}, handler addr [0-9a-f]{16}`, hit,
		`jprobe at [0-9a-f]{16} unregistered`,
		`main\.clone was called 7 times, 0 with another result; 7 hits, 0 missed, 0 lines dropped`)...)
}

// Ctrl-C ends each with its exit lines and status 0.
func TestInterrupt(t *testing.T) {
	for name, exit := range map[string]string{
		"kprobe_example":    "\nkprobe at ",
		"kretprobe_example": "\nMissed probing 0 instances of main.clone\n",
		"jprobe_example":    "\njprobe at ",
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(build(t, name), "-calls", "0", "-pause", "1ms")
			pipe, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			lines := bufio.NewScanner(pipe)
			for n := 0; lines.Scan(); n++ {
				out.WriteString(lines.Text() + "\n")
				if n == 5 {
					_ = cmd.Process.Signal(os.Interrupt)
				}
			}
			err = cmd.Wait()
			if text := out.String(); err != nil || !strings.Contains(text, exit) || !strings.Contains(text, " unregistered\n") {
				t.Errorf("%v\n%s", err, text)
			}
		})
	}
}

// A probe that can not be registered: the errno as a module would return it, the reason in
// words, status 1.
func TestRefused(t *testing.T) {
	for _, c := range []struct{ name, flag, symbol, want string }{
		{"kprobe_example", "-symbol", "nothing", "register_kprobe failed, returned -2: "},
		{"kprobe_example", "-symbol", "runtime.sigtramp", "register_kprobe failed, returned -22: "},
		{"kretprobe_example", "-func", "nothing", "register_kretprobe failed, returned -2: "},
		{"jprobe_example", "-symbol", "main.run", "register_jprobe failed, returned -22: "},
	} {
		cmd := exec.Command(build(t, c.name), c.flag, c.symbol)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.HasPrefix(errs.String(), c.want) || len(out) != 0 {
			t.Errorf("%s %s: %v\n%s%s", c.name, c.symbol, err, out, errs.String())
		}
	}
}

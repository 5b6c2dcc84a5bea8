// Package e2e tests the command as a user runs it, on programs that count for themselves.
// The programs are those of internal/testprog.
package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait of these tests. Nothing measures it; gdb with thousands of places
// takes a minute on a busy machine.
const patience = 3 * time.Minute

// handlerWait is how long threads wait for handlers where none is to be missed: the longest that
// there is (process.TargetOptions).
const handlerWait = time.Minute

// long is set where all that can be tried is to be tried: it takes half an hour.
var long = os.Getenv("KPROBES_E2E_LONG") != ""

// lasting is how long a test lasts that could go on for ever: a short time, in a long run ten
// minutes, or what KPROBES_E2E_LONG says if that is a duration (3m).
func lasting(short time.Duration) time.Duration {
	if !long {
		return short
	}
	if d, err := time.ParseDuration(os.Getenv("KPROBES_E2E_LONG")); err == nil && d > 0 {
		return d
	}
	return 10 * time.Minute
}

var (
	binaries string // directory of the commands built
	plain    = sync.OnceValues(func() (string, error) { return buildCommand("kprobe") })
	faulty   = sync.OnceValues(func() (string, error) { return buildCommand("kprobe-fault", "-tags=kprobes_fault") })
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if pid := os.Getenv(askActions); pid != "" {
		if err := tellActions(pid); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	var err error
	if binaries, err = os.MkdirTemp("", "kprobe-e2e"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(binaries)
	return m.Run()
}

func buildCommand(name string, flags ...string) (string, error) {
	out := filepath.Join(binaries, name)
	args := append([]string{"build", "-o", out}, flags...)
	cmd := exec.Command("go", append(args, "kprobes.dev/kprobes/cmd/kprobe")...)
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, msg)
	}
	return out, nil
}

// command is the kprobe command.
func command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	path, err := plain()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(path, args...)
}

// outcome is how a command ended.
type outcome struct {
	stdout, stderr string
	code           int // -1: killed by signal
	signal         syscall.Signal
}

func (o outcome) String() string {
	return fmt.Sprintf("status %d, signal %d\nstdout: %.2000s\nstderr: %.4000s", o.code, int(o.signal), o.stdout, o.stderr)
}

// run runs a command to its end, which must come.
func run(t testing.TB, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &out
	}
	cmd.Stderr = &errs
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !late.Stop() {
		t.Fatalf("%s does not end\nstdout: %.2000s\nstderr: %.2000s", cmd, &out, &errs)
	}
	return outcomeOf(t, err, out.String(), errs.String())
}

func outcomeOf(t testing.TB, err error, out, errs string) outcome {
	t.Helper()
	o := outcome{stdout: out, stderr: errs}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		o.code = exit.ExitCode()
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			o.signal = ws.Signal()
		}
	default:
		t.Fatal(err)
	}
	return o
}

// fails runs a command that must end with a status and these words on stderr.
func fails(t testing.TB, cmd *exec.Cmd, code int, words ...string) outcome {
	t.Helper()
	o := run(t, cmd)
	if o.code != code {
		t.Fatalf("%s: want status %d: %v", cmd, code, o)
	}
	for _, w := range words {
		if !strings.Contains(o.stderr, w) {
			t.Errorf("%s: stderr without %q: %v", cmd, w, o)
		}
	}
	return o
}

// within waits for something that must come.
func within(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

package self_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/target/self"
)

// What may end the process, or changes it for good, is done by a child: the test program
// itself, started anew with childEnv naming one of children.
const childEnv = "KPROBES_SELF_CHILD"

// children are the programs that a child can be. They are entered by init functions.
var children = map[string]func(c *kprobes.Core) error{}

// childWait is how long a child may take.
const childWait = 10 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(tracerEnv) != "" {
		os.Exit(beTracer())
	}
	if name := os.Getenv(childEnv); name != "" {
		os.Exit(beChild(children[name]))
	}
	os.Exit(m.Run())
}

// beChild runs a child's program and gives its exit status.
func beChild(f func(c *kprobes.Core) error) int {
	c, err := openOwn()
	if err == nil {
		err = errors.Join(f(c), c.Close(nil))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// openOwn makes the process its own target.
func openOwn() (*kprobes.Core, error) {
	st, err := self.Attach(nil)
	if err != nil {
		return nil, err
	}
	return kprobes.Open(st, nil)
}

// child runs a child and returns what it has printed to its standard output. One that fails
// or is ended by a signal is an error of the test.
func child(t *testing.T, name string, env ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), childWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(append(os.Environ(), childEnv+"="+name), env...)
	var out, told bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &told
	if err := cmd.Run(); err != nil {
		t.Fatalf("child %s: %v\n%s", name, err, head(told.String()))
	}
	return out.String()
}

// head is the beginning of a text: of a crash that says what it was.
func head(s string) string {
	const lines = 60
	parts := strings.SplitAfterN(s, "\n", lines+1)
	return strings.Join(parts[:min(len(parts), lines)], "")
}

package autoprobe

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes/trace"
)

// childVar makes the test binary the program that TestOwnProcess starts.
const childVar = "KPROBES_AUTOPROBE_CHILD"

// called is what that program probes.
//
//go:noinline
func called(n int) int { return n + 1 }

const calls = 1000

func TestMain(m *testing.M) {
	if os.Getenv(childVar) == "" {
		os.Exit(m.Run())
	}
	n := 0
	for range calls {
		n = called(n)
	}
	in, err := trace.Self()
	if err == nil {
		err = in.WriteProfile(os.Stdout)
	}
	if err == nil {
		err = in.WriteTrace(os.Stdout)
	}
	if err != nil || n != calls {
		fmt.Println(n, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A program is probed from its start, by a variable of its environment alone.
func TestOwnProcess(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"=1",
		Var+"=p:in,kprobes.dev/kprobes/autoprobe.called,n=$arg1;p:bad,nosuch;r:out,kprobes.dev/kprobes/autoprobe.called,v=$retval:u64")
	var words strings.Builder
	cmd.Stderr = &words
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, &words)
	}
	if want := hit.ProfileLine("in", calls, 0) + hit.ProfileLine("out", calls, 0); !strings.HasPrefix(string(out), want) {
		t.Errorf("profile\n%.1000s\nwant\n%s", out, want)
	}
	if !strings.Contains(string(out), fmt.Sprintf(" v=%d\n", calls)) {
		t.Errorf("no last result in\n%.1000s", out)
	}
	if !strings.Contains(words.String(), "Failed to add event(-22): p:bad nosuch\n") {
		t.Errorf("on standard error: %s", &words)
	}
}

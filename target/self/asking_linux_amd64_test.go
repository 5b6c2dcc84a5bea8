package self

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
)

// TestAsking: in a program without C no record asks the kernel before it reads memory, and bad pointers harm nobody. In one with
// C, or that sets actions of signals itself, each asks once, and bad pointers harm nobody when the resident handler has been replaced.
func TestAsking(t *testing.T) {
	const rounds, calls = 5, 300
	for _, v := range append(newVariants(), variant{"acts", []string{"CGO_ENABLED=0"}, []string{"-tags=acts"}}) {
		if v.name == "race" {
			continue // there every function calls more than it seems
		}
		t.Run(v.name, func(t *testing.T) {
			cmd := exec.Command(v.build(t, nil, "asking"), strconv.Itoa(rounds), strconv.Itoa(calls))
			cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
			var told strings.Builder
			cmd.Stderr = &told
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			lines.Scan()
			tid, err := strconv.Atoi(lines.Text())
			if err != nil {
				_ = cmd.Wait()
				t.Fatalf("%v: %s", err, told.String())
			}
			want := map[uint64]int{}
			if strings.HasPrefix(v.name, "cgo") || v.name == "acts" {
				want[unix.SYS_RT_SIGPROCMASK], want[unix.SYS_RT_SIGACTION] = calls, calls
			}
			push := func() { _, _ = in.Write([]byte{1}) }
			var seen []string
			good := false // the runtime may need a call now and then: one round without is enough
			for range rounds {
				got, err := testprog.SystemCalls(tid, push)
				if err != nil {
					t.Fatal(err)
				}
				good = good || maps.Equal(testprog.WithoutRuntime(got, calls), want)
				seen = append(seen, fmt.Sprint(got))
			}
			if !good {
				t.Errorf("system calls in rounds of %d records %s, want %v", calls, seen, want)
			}
			push()
			lines.Scan()
			if err := cmd.Wait(); err != nil || lines.Text() != "ok" {
				t.Errorf("%v: %q, %s", err, lines.Text(), told.String())
			}
		})
	}
}

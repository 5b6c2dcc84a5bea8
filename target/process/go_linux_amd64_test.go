package process

import (
	"os/exec"
	"path/filepath"
	"testing"

	"kprobes.dev/kprobes/internal/ptrace"
)

// TestAllgsFromCode: what the code of runtime.forEachG shows is what the symbol says, and
// a stripped program, which has only the code, lists its goroutines.
func TestAllgsFromCode(t *testing.T) {
	for _, flags := range [][]string{nil, {"-buildmode=pie"}, {"-ldflags=-s -w"}, {"-buildmode=pie", "-ldflags=-s -w"}} {
		out := filepath.Join(t.TempDir(), "gowork")
		cmd := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), "../../internal/testprog/gowork")...)
		if msg, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, msg)
		}
		r := run(t, out)
		p, err := OpenUnwaited(r.PID)
		if err != nil {
			t.Fatal(err)
		}
		target, err := Attach(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := target.Prepare(); err != nil {
			t.Fatal(err)
		}
		g := target.golang
		if addr, err := g.allgsFromCode(target.module[0]); err != nil || addr != g.allgs {
			t.Errorf("%q: allgs 0x%x, from the code 0x%x, %v", flags, g.allgs, addr, err)
		}
		hasGoroutines(t, target)
		if err := target.Close(); err != nil {
			t.Error(err)
		}
		p.Close()
	}
}

// hasGoroutines checks that the main goroutine and the runtime's own are found, each with
// its stack pointer in its stack.
func hasGoroutines(t *testing.T, target *Target) {
	t.Helper()
	ids := map[uint64]bool{}
	err := target.stopped(func(s *ptrace.Stopped) error {
		gs, err := target.golang.goroutines(s.Threads())
		for _, g := range gs {
			ids[g.id] = true
			if g.sp < g.lo || g.sp > g.hi {
				t.Errorf("goroutine %d: stack pointer 0x%x, stack 0x%x-0x%x", g.id, g.sp, g.lo, g.hi)
			}
		}
		return err
	})
	if err != nil || !ids[1] || len(ids) < 4 {
		t.Errorf("goroutines %v: %v", ids, err)
	}
}

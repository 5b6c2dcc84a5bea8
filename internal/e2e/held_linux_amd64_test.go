package e2e

import (
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// What a program that has not run yet does with SIGTRAP is not known: one blocks it in main,
// the other takes it there. No breakpoint of the engine's may stand in them; the kernel's may.
func TestHeldStartTakesNoBreakpoint(t *testing.T) {
	for name, function := range map[string]string{"tight": "tight", "trapuser": "narrow"} {
		t.Run(name, func(t *testing.T) {
			prog := testprog.Copy(t, testprog.Build(t, name))
			start := func(args ...string) outcome {
				t.Helper()
				cmd := command(t, append(append([]string{"trace", "--stat"}, args...), "--", prog)...)
				cmd.Stdin = strings.NewReader("go 50\nquit\n")
				return run(t, cmd)
			}
			o := start("p:a " + function + " n=%di")
			n := lastCounts(t, o.stdout)
			if o.code != 0 || n["bad"] != 0 || n[function] == 0 {
				t.Errorf("%v: %v", n, o)
			}
			result{outcome: o, totals: totals(o.stderr)}.counted(t, "a", n[function], "uprobe")
			for _, args := range [][]string{
				{"--tactic", "boost", "p:a " + function},
				{"--tactic", "step", "p:a " + function},
				{"r:a " + function},
			} {
				if o := start(args...); o.code != 1 || o.stdout != "" || !strings.Contains(o.stderr, "has not run yet") {
					t.Errorf("%q: want a refusal before the program's start: %v", args, o)
				}
			}
		})
	}
}

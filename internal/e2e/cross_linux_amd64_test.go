package e2e

import (
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// Functions that share a tail: no jump of the engine's stands over an instruction that another function
// jumps to, near or far, with names and without.
func TestCrossingJumps(t *testing.T) {
	for name, c := range map[string]struct {
		flags  []string
		probes []string
	}{
		"names":    {nil, []string{"p:middle middle", "p:tail middle+3", "p:near near", "p:far far"}},
		"stripped": {[]string{"-rdynamic", "-s"}, []string{"p:middle middle", "p:tail middle+3", "p:near near", "p:far far"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := testprog.Start(t, testprog.Copy(t, testprog.Build(t, "cross", c.flags...)))
			s := trace(t, p.PID, append([]string{"--counters"}, c.probes...)...)
			n := right(t, p, "go 500")
			r := s.end()
			r.counted(t, "middle", n["middle"], "uprobe")
			r.counted(t, "tail", n["middle"]+n["near"]+n["far"], "jump")
			r.counted(t, "near", n["near"], "")
			r.counted(t, "far", n["far"], "")

			s = trace(t, p.PID, "--counters", "--tactic", "boost", c.probes[0], c.probes[1])
			n = grown(n, right(t, p, "go 500"))
			r = s.end()
			r.counted(t, "middle", n["middle"], "boost")
			r.counted(t, "tail", n["middle"]+n["near"]+n["far"], "boost")
		})
	}
}

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// Instructions of a restartable sequence, and the one that announces it, run nowhere else:
// no tactic may stand there. Around it, counts are right, and so are the program's.
func TestRestartableSequences(t *testing.T) {
	for _, flags := range [][]string{{"-no-pie"}, {"-pie", "-fPIE"}} {
		t.Run(flags[0], func(t *testing.T) {
			path := testprog.Build(t, "sequence", append(flags, "-pthread")...)
			at := func(label string, off int) string {
				return fmt.Sprintf("p %#x", int(symbolOf(t, path, label))+off)
			}
			p := testprog.Start(t, path)
			for _, place := range []string{at("add_start", -4), at("add_start", 0), at("add_middle", 0), at("add_end", -4)} {
				for _, tactic := range append(tactics, "uprobe") {
					o := run(t, command(t, withTactic(tactic, "trace", "-p", fmt.Sprint(p.PID), "--duration", "1s", place)...))
					if o.code != 1 || !strings.Contains(o.stderr, "restartable sequence") {
						t.Errorf("%s, tactic %q: %v", place, tactic, o)
					}
				}
			}
			// No jump fits at the others: the loop comes back to the third byte.
			s := trace(t, p.PID, "--tactic", "boost", "p:in add", "p:first"+at("add_first", 0)[1:],
				"p:end"+at("add_end", 0)[1:], "r:out add ret=$retval")
			n := right(t, p, "go 20000") // its counts too
			r := s.end()
			for _, event := range []string{"in", "out", "end"} {
				r.counted(t, event, n["add"], "boost")
			}
			r.counted(t, "first", n["tries"], "boost")
			r.whole(t)
			s = trace(t, p.PID, "p:first"+at("add_first", 0)[1:])
			n = grown(n, right(t, p, "go 2000"))
			r = s.end()
			r.counted(t, "first", n["tries"], "jump")
			r.whole(t)
			intact(t, p.PID)
		})
	}
}

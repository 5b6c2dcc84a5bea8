package process

import (
	"fmt"

	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// maxNeed is what the work of a probe takes below the stack pointer, in bytes, but for signal frames and for
// more than three values that are read by pointers (docs/kprobe-trace.md has the table).
const maxNeed = 320

// lookRoom finds out whether a thread stands so near the end of its stack that there is no room for a probe. What
// it calls from there must not be probed: the events' sites wait until it stands elsewhere. The engine's own
// sites, which have no points, do not. Goroutines' stacks are checked at each hit. Precondition: the world is stopped.
func (t *Target) lookRoom(s *ptrace.Stopped, add []*target.Site) target.Blocks {
	b := target.Blocks{}
	if t.golang != nil || len(add) == 0 {
		return b
	}
	for _, th := range s.Threads() {
		room, ends := s.StackRoom(th, maxNeed)
		if !ends {
			continue
		}
		for _, a := range add {
			if len(a.Points) > 0 {
				b.Block(a, blocked(th.TID, th.ResumePC(), fmt.Sprintf("it has %d bytes of stack left there, and a probe takes up to %d", room, maxNeed)))
			}
		}
		break
	}
	return b
}

package process

import (
	"fmt"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target"
)

// maxNeed is what the work of a probe takes below the stack pointer, in bytes, but for signal frames and for
// more than three values that are read by pointers (docs/kprobe-trace.md has the table).
const maxNeed = 280

// lookRoom finds out whether a thread stands so near the end of its stack that there is no room for a probe. What
// it calls from there must not be probed: the events' sites wait until it stands elsewhere. The engine's own
// sites, which have no points, do not. Goroutines' stacks are checked at each hit. Precondition: the world is stopped.
func (t *Target) lookRoom(s *Stopped, add []*target.Site) target.Blocks {
	b := target.Blocks{}
	if t.golang != nil || len(add) == 0 {
		return b
	}
	for _, th := range s.Threads() {
		room, ends := s.roomOf(th)
		if !ends {
			continue
		}
		for _, a := range add {
			if len(a.Points) > 0 {
				b.Block(a, blocked(th.TID, th.ResumeRIP(), fmt.Sprintf("it has %d bytes of stack left there, and a probe takes up to %d", room, maxNeed)))
			}
		}
		break
	}
	return b
}

// fewThreads are so many that each one's stack is searched for the frame of a signal handler on an alternate stack.
const fewThreads = 16

// roomOf is how many bytes of stack a thread has left, and whether these are less than maxNeed.
func (s *Stopped) roomOf(th *Thread) (room uint64, ends bool) {
	few := len(s.Threads()) <= fewThreads
	if !few && th.regs.RSP%procfs.PageSize >= maxNeed {
		return 0, false // all of it lies on one page: no mapping is looked up
	}
	if m, ok, err := s.mapAt(th.regs.RSP); !few && ok && err == nil && m.Perm&procfs.PermWrite != 0 && th.regs.RSP-m.Start >= maxNeed {
		return 0, false // in one mapping: the others are not looked up
	}
	maps, err := s.Maps()
	if err != nil {
		return 0, false
	}
	if m, ok := procfs.FindMap(maps, th.regs.RSP); ok && few {
		for next, ok := procfs.FindMap(maps, m.End); ok && next.Perm&procfs.PermWrite != 0 && m.End-th.regs.RSP < stackScan; next, ok = procfs.FindMap(maps, m.End) {
			m.End = next.End // the stack may be static memory
		}
		if alt, on := s.altStack(m, th.regs.RSP); on {
			room = th.regs.RSP - alt.Lo
			return room, room < maxNeed
		}
	}
	return roomBelow(maps, th.regs.RSP)
}

// roomBelow is how many bytes lie between a stack pointer and the end of its mapping, and whether they are
// less than maxNeed, and the end of the stack: nothing that can be written lies below it, and the kernel does not
// make it grow.
func roomBelow(maps []procfs.Map, sp uint64) (room uint64, ends bool) {
	m, ok := procfs.FindMap(maps, sp)
	if !ok || m.Perm&procfs.PermWrite == 0 || m.Path == "[stack]" {
		return 0, false
	}
	below, ok := procfs.FindMap(maps, m.Start-1)
	return sp - m.Start, sp-m.Start < maxNeed && !(ok && below.Perm&procfs.PermWrite != 0)
}

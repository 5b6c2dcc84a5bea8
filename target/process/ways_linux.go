package process

import (
	"fmt"
	"slices"

	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// ways are what a change means for the threads, and what those have been found to block.
type ways struct {
	*patch.Threads
	add    []*target.Site
	blocks target.Blocks
	// onStack: the stacks have been searched, and this is blocked by what stands there.
	onStack target.Blocks
}

// plannedWays is waysOf; where nothing has changed since the plan was made it is the plan's.
func (t *Target) plannedWays(c *target.Change) *ways {
	p := t.plans[c]
	if p == nil || !slices.Equal(p.zombie, t.zombie) || c.Blocked() {
		return t.waysOf(c)
	}
	w := p.ways
	p.ways = nil // threads mark what they block there
	if w == nil {
		w = t.waysOf(c)
	}
	return w
}

// waysOf finds them for the groups of a change that are not blocked. Threads leave all detours that go: most of these can be freed
// in the same stop then.
func (t *Target) waysOf(c *target.Change) *ways {
	open := c.Open()
	return &ways{
		Threads: patch.NewThreads(open.Add, open.Remove, t.zombie, patch.Policy{MoveOut: true}),
		add:     open.Add, blocks: target.Blocks{},
	}
}

// byStack says whether the stacks are to be searched.
func (w *ways) byStack() bool { return w.Anywhere() }

// block notes what is blocked by a thread that will go on at an address and cannot be moved.
func (w *ways) block(tid int, at uint64, why string) {
	w.Blocked(at, func(s *target.Site, _ bool) { w.blocks.Block(s, blocked(tid, at, why)) })
}

// lookWord looks at a word of a stack.
func (w *ways) lookWord(tid int, at, v uint64) {
	w.Blocked(v, func(s *target.Site, inDetour bool) {
		where := "there"
		if inDetour {
			where = "into a detour"
		}
		w.onStack.Block(s, blocked(tid, v, fmt.Sprintf("its stack at 0x%x may hold a context that returns %s", at, where)))
	})
}

func blocked(tid int, pc uint64, why string) error {
	return &target.BusyError{TID: tid, Addr: pc, Why: why}
}

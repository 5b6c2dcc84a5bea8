package process

import (
	"fmt"
	"testing"

	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// Whether a call has ended is told only by the stack that it is on, though others lie in the same
// mapping: an alternate stack of signals, another thread's, a coroutine's.
func TestCallsOfSharedStacks(t *testing.T) {
	prog := build(t, "stacks")
	for name, left := range map[string]bool{
		"alternate": false, "alternate-thread": false, "pair": false, "guarded": false,
		"fiber-above-dead": false, "fiber-below-dead": false, "fiber-below-living": false,
		"left": true, "left-thread": true, "left-dead": true,
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, prog, name)
			var i amd64.Instance
			if l := r.Line(); !scanned(l, &i) {
				t.Fatalf("the program says %q", l)
			}
			h := handle(t, r, never)
			retry(t, func() error {
				return h.tg.stopped(func(s *ptrace.Stopped) error {
					p, err := h.tg.newReaper(s, &target.Reap{})
					if err != nil {
						return err
					}
					if over := p.over(i); over != left || !h.tg.stands(i.SP, i.Return) {
						t.Errorf("the call at 0x%x is over: %v, want %v; its return address stands: %v", i.SP, over, left, h.tg.stands(i.SP, i.Return))
					}
					return nil
				})
			})
		})
	}
}

func scanned(l string, i *amd64.Instance) bool {
	n, err := fmt.Sscanf(l, "%x %x", &i.SP, &i.Return)
	return n == 2 && err == nil
}

package e2e

import (
	"fmt"
	"os"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
)

// faulting are events at the instructions of the program segv that fault, which run as copies.
var faulting = []string{"p:touch touch p=%di v=+0(%di):u8", "p:past past", "p:divide divide a=%ax", "p:odd odd s=+0(%sp):string", "p:nilread nilread p=%di v=+0(%di):u64"}

// probed starts segv with these flags of its handlers, and arms the events.
func probed(t *testing.T, flags int, tactic arch.Tactic) (*testprog.Proc, *kprobes.Core, []*kprobes.Event) {
	t.Helper()
	p := testprog.Start(t, testprog.Build(t, "segv"), fmt.Sprint(flags))
	core := open(t, p)
	return p, core, add(t, core, tactic, faulting...)
}

// TestFaultHandlerFlags: the program's own handlers see faults of displaced instructions where
// the program has them, on the stack and with the signals blocked that they have asked for.
func TestFaultHandlerFlags(t *testing.T) {
	for flags := range 8 { // SA_SIGINFO, SA_ONSTACK, SA_NODEFER
		for i, tactic := range []arch.Tactic{"", arch.TacticBoost, arch.TacticStep} {
			if !long && i != flags%3 {
				continue
			}
			t.Run(fmt.Sprintf("%d_%s", flags, or(tactic, arch.TacticJump)), func(t *testing.T) {
				p, core, evs := probed(t, flags, tactic)
				n := right(t, p, "go 50")
				if err := core.Close(nil); err != nil {
					t.Error(err)
				}
				for _, e := range evs {
					if c := core.Counts(e); c.Hits != n[e.Name] {
						t.Errorf("%s: %+v, the program counts %d", e.Name, c, n[e.Name])
					}
				}
				right(t, p, "go 5")
			})
		}
	}
}

// TestFaultsKill: a fault of a displaced instruction kills by the signal that it would kill by
// without the probe: at the first one where there is no handler, at the second one behind a
// handler that serves once (SA_RESETHAND).
func TestFaultsKill(t *testing.T) {
	const (
		siginfo   = 1
		once      = 8
		noHandler = 16
	)
	for _, tactic := range []arch.Tactic{"", arch.TacticBoost, arch.TacticStep} {
		t.Run(string(or(tactic, arch.TacticJump)), func(t *testing.T) {
			for command, flags := range map[string]int{"die": noHandler, "once": siginfo | once} {
				p, core, _ := probed(t, flags, tactic)
				if n := right(t, p, command); n["killed"] != 4 {
					t.Errorf("%s: %v: %s", command, n, p.Stderr())
				}
				if err := core.Close(nil); err != nil {
					t.Error(err)
				}
				intact(t, p.PID)
				right(t, p, command)
			}
		})
	}
}

// TestHandlersStay: a program that has put other handlers in the place of the resident ones, and calls these from
// there or puts them back when we have left, finds its own behind them; so does a tracer that comes then.
func TestHandlersStay(t *testing.T) {
	for name, leaves := range map[string]func(t *testing.T, p *testprog.Proc){
		"closed": func(t *testing.T, p *testprog.Proc) {
			core := open(t, p)
			add(t, core, "", faulting...)
			right(t, p, "go 5")
			right(t, p, "swap")
			right(t, p, "go 5")
			if err := core.Close(nil); err != nil {
				t.Error(err)
			}
		},
		"killed": func(t *testing.T, p *testprog.Proc) {
			leave(t, p.PID, faulting)
			right(t, p, "swap")
			right(t, p, "go 5")
			detach(t, p.PID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := testprog.Start(t, testprog.Build(t, "segv"), "35") // in which no memory becomes executable
			t.Run("leave", func(t *testing.T) { leaves(t, p) })
			intact(t, p.PID)
			right(t, p, "go 5")
			right(t, p, "back")
			right(t, p, "go 5")
			before := right(t, p, "count")
			core := open(t, p)
			evs := add(t, core, "", faulting...)
			n := right(t, p, "go 5")
			if err := core.Close(nil); err != nil {
				t.Error(err)
			}
			for _, e := range evs {
				if c := core.Counts(e); c.Hits != n[e.Name]-before[e.Name] {
					t.Errorf("%s: %+v, the program counts %d more", e.Name, c, n[e.Name]-before[e.Name])
				}
			}
			intact(t, p.PID)
			right(t, p, "go 5")
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.PID))
			if err != nil {
				t.Fatal(err)
			}
			if l, err := leftover(p.PID); l != nil || err != nil {
				t.Errorf("left: %+v, %v\n%s", l, err, maps)
			}
		})
	}
}

// TestStayKilledAtEveryStep: kprobe detach is killed at its steps in a program that calls our
// handlers from its own. What it has not done the next one does, and the handlers stay.
func TestStayKilledAtEveryStep(t *testing.T) {
	swapped := func() *testprog.Proc {
		p := testprog.Start(t, testprog.Build(t, "segv"))
		leave(t, p.PID, faulting)
		right(t, p, "swap")
		return p
	}
	steps := func(int) []string { return stepsOfDetach(t, swapped().PID) }
	strike := func(_ int, at fault) bool {
		p := swapped()
		struck := strikeDetach(t, p.PID, at)
		right(t, p, "go 2")
		detach(t, p.PID)
		intact(t, p.PID)
		right(t, p, "go 2")
		right(t, p, "back")
		right(t, p, "go 2")
		return struck
	}
	strikes{steps, strike}.each(t, faultsOf(usual(func() []string { return steps(0) }), 0, 17))
}

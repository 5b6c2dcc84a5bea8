// Package plan decides where the code of a function's probes stands, by which tactic and why not by a faster one, and
// generates that code. A plan is made of values and is one: it asks no target and holds no lock.
package plan

import (
	"fmt"
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/target"
)

// Function is the function that probes are to stand in.
type Function struct {
	Name  string
	Start uint64
	Code  arch.Function
	// Text gives n bytes of the function's code as they were analysed. They do not change.
	Text func(addr uint64, n int) ([]byte, error)
}

// Probe is an event, or a probe with handlers, as far as a plan needs to know it.
type Probe struct {
	Points []uint64 // the instructions at which its work is done
	// Slow says why a path that a handler changes is taken at a jump, as Linux does where a probe is not optimised; nil
	// for a probe that is.
	Slow error
}

// Constraints say how the probes of a function may be served.
type Constraints struct {
	Force arch.Tactic // by this tactic or not at all; "": by the best that is safe
	// NoTraps says why no breakpoint may stand in the function, nil if one may.
	NoTraps error
	// Trap says why breakpoints are to stand also where jumps could; nil: they are not.
	Trap error
	// JumpOnly: breakpoints can not stand where Trap wants them.
	JumpOnly bool
	// Held are instructions at which somebody outside of the target holds a probe: no region may have one of them.
	Held []uint64
}

// Traps says whether breakpoints stand where jumps could.
func (c *Constraints) Traps() bool {
	return c.Trap != nil && c.Force == "" && c.NoTraps == nil && !c.JumpOnly
}

// Plan is where the code of a function's probes stands.
type Plan struct {
	Regions []arch.Region
	// JumpOnly: jumps stand, since breakpoints can not stand where the constraints want them.
	JumpOnly bool

	f       Function
	probes  []Probe
	c       Constraints
	refused map[uint64]error // points that no region covers, and why
}

// Make plans for all of a function's probes together. It asks the analysis of the code at most twice.
func Make(f Function, probes []Probe, c Constraints) *Plan {
	p := &Plan{f: f, probes: probes, c: c, JumpOnly: c.JumpOnly}
	points := pointsOf(probes)
	p.ask(points)
	if len(p.refused) == 0 || !c.Traps() {
		return p
	}
	c.JumpOnly = true
	jumps := &Plan{f: f, probes: probes, c: c, JumpOnly: true}
	if jumps.ask(points); len(jumps.refused) < len(p.refused) {
		return jumps
	}
	return p
}

func (p *Plan) ask(points []uint64) {
	policy := arch.Policy{Force: p.c.Force, Traps: p.c.NoTraps, Held: p.c.Held}
	if p.c.Traps() {
		policy.Unoptimised = points
	}
	p.Regions, p.refused = p.f.Code.Plan(points, policy)
}

// pointsOf lists the points of probes, each once, in the order of their addresses.
func pointsOf(probes []Probe) []uint64 {
	if len(probes) == 1 && len(probes[0].Points) == 1 {
		return probes[0].Points
	}
	var out []uint64
	for i := range probes {
		out = append(out, probes[i].Points...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Refuses says why no region covers one of the points; nil: regions cover all of them.
func (p *Plan) Refuses(points []uint64) error {
	for _, at := range points {
		if err := p.refused[at]; err != nil {
			return fmt.Errorf("%s+0x%x: no patch fits: %w", p.f.Name, at-p.f.Start, err)
		}
	}
	return nil
}

// Form tells by which tactic control reaches a probe with these points: the slowest of theirs. why says why it is not
// a faster one; nil for the fastest.
func (p *Plan) Form(points []uint64) (tactic arch.Tactic, why error) {
	for _, r := range p.Regions {
		if slices.ContainsFunc(points, r.Holds) && (tactic == "" || rank(r.Tactic()) > rank(tactic)) {
			tactic, why = r.Tactic(), r.Why()
		}
	}
	if tactic != "" && tactic != arch.TacticJump {
		why = p.whyTrap(why)
	}
	return tactic, why
}

// rank is the place of a tactic among all, the fastest first.
func rank(t arch.Tactic) int {
	return slices.Index([]arch.Tactic{arch.TacticJump, arch.TacticBoost, arch.TacticStep, arch.TacticUprobe, arch.TacticBreak}, t)
}

// whyTrap is why a breakpoint stands at a region: what was asked for, else what the region says.
func (p *Plan) whyTrap(why error) error {
	switch {
	case p.c.Force != "":
		return ErrAsked
	case p.c.Trap != nil && !p.JumpOnly:
		return p.c.Trap
	}
	return why
}

// reason tells in short, for the target's memory, why a region has a breakpoint, or why a changed path is taken at its
// jump.
func (p *Plan) reason(r arch.Region) target.Reason {
	if r.Tactic() != arch.TacticJump {
		return ReasonOf(p.whyTrap(r.Why()))
	}
	for i := range p.probes {
		if pr := &p.probes[i]; pr.Slow != nil && slices.ContainsFunc(pr.Points, r.Holds) {
			return ReasonOf(pr.Slow)
		}
	}
	return target.ReasonNone
}

// Answers says whether the plan is what Make would give for these probes and constraints.
func (p *Plan) Answers(probes []Probe, c Constraints) bool {
	if c.Force != p.c.Force || c.NoTraps != p.c.NoTraps || c.Trap != p.c.Trap || c.JumpOnly != p.c.JumpOnly || !slices.Equal(c.Held, p.c.Held) {
		return false
	}
	return slices.EqualFunc(probes, p.probes, func(a, b Probe) bool { return a.Slow == b.Slow && slices.Equal(a.Points, b.Points) })
}

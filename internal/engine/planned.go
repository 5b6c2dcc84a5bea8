package engine

import (
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/plan"
)

// plan is where the code of the function's events is to stand, and of e too, which may be one that has no code now; nil
// stands for none. It is the plan that was made last if nothing has changed since of what that was made from.
func (f *function) plan(e *Event) *plan.Plan {
	probes, c := f.probes(e), f.planConstraints()
	if f.planned == nil || !f.planned.Answers(probes, c) {
		f.planned = plan.Make(f.planFunction(), probes, c)
		f.jumpOnly = f.planned.JumpOnly
	}
	return f.planned
}

func (f *function) planFunction() plan.Function {
	return plan.Function{Name: f.Name, Start: f.Start, Code: f.Code, Text: f.Text}
}

// probes are the function's events that have code, and e.
func (f *function) probes(e *Event) []plan.Probe {
	out := make([]plan.Probe, 0, len(f.events)+1)
	for _, o := range f.events {
		if !o.idle() {
			out = append(out, plan.Probe{Points: o.points, Slow: o.plain()})
		}
	}
	if e != nil && (e.idle() || !slices.Contains(f.events, e)) {
		out = append(out, plan.Probe{Points: e.points})
	}
	return out
}

// planConstraints say how the function's events may be served now.
func (f *function) planConstraints() plan.Constraints {
	c := plan.Constraints{Force: f.constraints.force, NoTraps: f.noTraps(), JumpOnly: f.jumpOnly, Held: f.heldPoints()}
	switch {
	case f.blockedErr != nil:
		c.Trap = f.blockedErr
	case f.knobs != nil && f.knobs.optimizationOff:
		c.Trap = plan.ErrOff
	}
	return c
}

// serves says why the points of an event can not all be covered beside the function's other events.
func (f *function) serves(e *Event) error { return f.plan(e).Refuses(e.points) }

// takesJump says why no jump can stand at an instruction of a function in which nothing else stands.
func (f *function) takesJump(at uint64) error {
	points := []uint64{at}
	return plan.Make(f.planFunction(), []plan.Probe{{Points: points}}, plan.Constraints{Force: arch.TacticJump}).Refuses(points)
}

package amd64

import (
	"fmt"
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/interval"
)

// JumpLen is the length of the jump that a region's first bytes become: E9 and a
// displacement of four bytes.
const JumpLen = 5

// maxBack is how many bytes before a probe point a region may start, so that a short
// last instruction of a block (a ret) is covered by what stands before it.
const maxBack = 32

// pageSize is the unit in which the kernel writes another process's memory at once.
const pageSize = 4096

// Step is one instruction of a region.
type Step struct {
	Addr uint64
	Inst *Inst
	Code []byte
}

// Region is a run of whole instructions whose first JumpLen bytes become a jump to a
// detour. The bytes after those stay as they are: code that jumps to an instruction
// there still finds it.
type Region struct {
	Addr  uint64
	Len   uint64 // bytes of the instructions, and of the padding that the jump needs
	Steps []Step
	Ends  bool // the last instruction never falls through
	// Trap is TacticBoost or TacticStep for a breakpoint in place of the jump; "" else.
	Trap arch.Tactic
	// NotJump is why it is not a jump.
	NotJump error
}

// End is the address after the region's last instruction (or its padding).
func (r *Region) End() uint64 { return r.Addr + r.Len }

// own makes the region independent of the flow that it was planned in.
func (r *Region) own() {
	ins := make([]Inst, len(r.Steps))
	for i := range r.Steps {
		ins[i] = *r.Steps[i].Inst
		r.Steps[i].Inst = &ins[i]
	}
}

// Holds says whether the region has an instruction at addr.
func (r *Region) Holds(addr uint64) bool {
	for _, s := range r.Steps {
		if s.Addr == addr {
			return true
		}
	}
	return false
}

// Regions plans jump regions for one function.
type Regions struct {
	Flow *Flow
	// After is the number of bytes behind the function that belong to nobody.
	After  int
	Policy arch.Policy
	// Prohibited says that no region may have the instruction at addr, because the kernel
	// holds a probe there; nil: none.
	Prohibited func(addr uint64) bool
	// Keep are bytes that must stay where they are.
	Keep []interval.Range

	// Reserved are bytes that somebody else patches.
	Reserved interval.Range

	slow []uint64 // the points that get a breakpoint in any case, sorted
}

// Plan finds regions that cover all points, in address order. points must be sorted
// and without doubles. refused holds the points that none covers.
func (p *Regions) Plan(points []uint64) (regions []*Region, refused map[uint64]*Refusal) {
	refused = map[uint64]*Refusal{}
	p.slow = nil
	for _, pt := range p.Policy.Unoptimised {
		if _, ok := slices.BinarySearch(points, pt); ok {
			p.slow = append(p.slow, pt)
		}
	}
	slices.Sort(p.slow)
	var floor uint64
	for _, pt := range points {
		if n := len(regions); n > 0 && regions[n-1].Holds(pt) {
			continue
		}
		var before *Region
		if n := len(regions); n > 0 {
			before, regions = regions[n-1], regions[:n-1]
		}
		rs, ref := p.best(pt, floor, before)
		regions = append(regions, rs...)
		if ref != nil {
			refused[pt] = ref
			continue
		}
		floor = regions[len(regions)-1].End()
	}
	return regions, refused
}

// best covers pt by the best tactic that is allowed: a jump of its own, else the jump
// before it made longer, else a breakpoint. before is the last region so far, or nil; it
// is among those given back unless a longer one takes its place.
func (p *Regions) best(pt, floor uint64, before *Region) ([]*Region, *Refusal) {
	var kept []*Region
	if before != nil {
		kept = append(kept, before)
	}
	if f := p.Policy.Force; f == arch.TacticBoost || f == arch.TacticStep {
		r, ref := p.trap(pt, floor, f, nil)
		return join(kept, r), ref
	}
	if p.isSlow(pt) {
		r, ref := p.trap(pt, floor, arch.TacticBoost, p.refuse(pt, RuleSlow, nil))
		return join(kept, r), ref
	}
	r, ref := p.cover(pt, floor)
	if ref == nil {
		return join(kept, r), nil
	}
	if before != nil && before.Trap == "" {
		if ext := p.extend(before, pt); ext != nil {
			return []*Region{ext}, nil
		}
	}
	p.nameBranch(ref)
	if p.Policy.Force == "" {
		t, no := p.trap(pt, floor, arch.TacticBoost, ref)
		if no == nil {
			return join(kept, t), nil
		}
		if no.Rule == RuleTraps {
			ref.Trap = no.Err
		}
	}
	return kept, ref
}

func join(kept []*Region, r *Region) []*Region {
	if r == nil {
		return kept
	}
	return append(kept, r)
}

// within says that addr may lie in another instruction, which a patch there would change too:
// behind a lock prefix that some branch skips, or behind bytes that are reached and are none.
func (p *Regions) within(addr uint64) *Refusal {
	if outer, ok := p.Flow.cover(addr); ok {
		return p.refuse(addr, RuleBoundary, fmt.Errorf("the instruction at 0x%x reaches over it", outer))
	}
	for b := addr - 1; addr-b < MaxLen; b-- {
		if p.Flow.marked(b, markBad) {
			return p.refuse(b, RuleUndecoded, nil)
		}
	}
	return nil
}

// trap makes a region of one instruction with a breakpoint in its first byte.
func (p *Regions) trap(pt, floor uint64, tactic arch.Tactic, why *Refusal) (*Region, *Refusal) {
	if err := p.trapError(); err != nil {
		return nil, p.refuse(pt, RuleTraps, err)
	}
	if pt < floor {
		return nil, p.refuse(pt, RuleOverlap, nil)
	}
	if ref := p.within(pt); ref != nil {
		return nil, ref
	}
	step, ref := p.step(pt, pt, pt)
	if ref != nil {
		return nil, ref
	}
	r := &Region{Addr: pt, Len: uint64(step.Inst.Len), Steps: []Step{step}, Ends: endsFlow(step.Inst), Trap: tactic}
	if why != nil {
		r.NotJump = why
	}
	return r, nil
}

// trapError says why the policy allows no breakpoint.
func (p *Regions) trapError() error {
	if f := p.Policy.Force; f == arch.TacticJump || f.Held() {
		return fmt.Errorf("the tactic %s is asked for", f)
	}
	return p.Policy.Traps
}

// isSlow says whether addr is a point that gets a breakpoint in any case.
func (p *Regions) isSlow(addr uint64) bool {
	_, ok := slices.BinarySearch(p.slow, addr)
	return ok
}

// cover finds a region that holds pt and starts at or after floor: at pt itself, else
// at the nearest instruction before it from which control only falls to pt.
func (p *Regions) cover(pt, floor uint64) (*Region, *Refusal) {
	if _, ok := p.Flow.Inst(pt); !ok {
		return nil, &Refusal{Addr: pt, Rule: RuleBoundary}
	}
	if pt < floor {
		return nil, p.refuse(pt, RuleOverlap, nil)
	}
	r, first := p.build(pt, pt)
	if first == nil {
		return r, nil
	}
	if p.Flow.Target(pt) || first.Rule == RuleRelocate && first.Addr == pt {
		return nil, first
	}
	for s := pt; ; {
		prev, ok := p.Flow.Prev(s)
		if !ok || prev < floor || pt-prev > maxBack {
			return nil, first
		}
		if r, ref := p.build(prev, pt); ref == nil {
			return r, nil
		}
		if p.Flow.Target(prev) {
			return nil, first
		}
		s = prev
	}
}

// extend makes the region longer so that it holds pt, or gives nil.
func (p *Regions) extend(r *Region, pt uint64) *Region {
	if pt-r.Addr > maxBack {
		return nil
	}
	ext, ref := p.build(r.Addr, pt)
	if ref != nil {
		return nil
	}
	return ext
}

// build makes the region that starts at s and holds the instruction at upto.
func (p *Regions) build(s, upto uint64) (*Region, *Refusal) {
	if s%pageSize > pageSize-JumpLen {
		return nil, p.refuse(s, RulePage, nil)
	}
	if ref := p.within(s); ref != nil {
		return nil, ref
	}
	r := &Region{Addr: s}
	for a := s; r.Len < JumpLen || a <= upto; {
		if r.Ends {
			return p.pad(r, a, upto)
		}
		if p.isSlow(a) {
			return nil, p.refuse(a, RuleReserved, nil)
		}
		step, ref := p.step(s, a, upto)
		if ref != nil {
			return nil, ref
		}
		last := r.last()
		if last != nil && (last.Inst.Kind == KindCall || last.Inst.Kind == KindCallInd) {
			return nil, p.refuse(last.Addr, RuleCall, nil)
		}
		r.Steps = append(r.Steps, step)
		r.Len += uint64(step.Inst.Len)
		r.Ends = endsFlow(step.Inst)
		a += uint64(step.Inst.Len)
	}
	return r, nil
}

func (r *Region) last() *Step {
	if len(r.Steps) == 0 {
		return nil
	}
	return &r.Steps[len(r.Steps)-1]
}

// step checks the instruction at a as part of a region that starts at s and must
// hold upto.
func (p *Regions) step(s, a, upto uint64) (Step, *Refusal) {
	in, ok := p.Flow.Inst(a)
	if !ok {
		return Step{}, p.refuse(a, RuleRoom, nil)
	}
	code := p.Flow.Bytes(a, int(in.Len))
	if p.Prohibited != nil && p.Prohibited(a) {
		return Step{}, p.refuse(a, RuleOverlap, nil)
	}
	if r := p.Reserved; a < r.End && a+uint64(in.Len) > r.Start {
		return Step{}, p.refuse(a, RulePatched, nil)
	}
	if p.kept(a, uint64(in.Len)) {
		return Step{}, p.refuse(a, RuleSequence, nil)
	}
	if b, ok := p.targetBetween(s, a, uint64(in.Len), upto); ok {
		return Step{}, p.refuseTarget(a, b)
	}
	if err := Relocatable(in, code); err != nil {
		return Step{}, p.refuse(a, RuleRelocate, err)
	}
	// A signal has the kernel set a thread back to the system call, to repeat it: the bytes of a jump would be there.
	if in.Kind == KindSyscall && a != s {
		return Step{}, p.refuse(a, RuleSyscall, nil)
	}
	return Step{Addr: a, Inst: in, Code: code}, nil
}

// kept says whether one of the n bytes at a must stay.
func (p *Regions) kept(a, n uint64) bool {
	return slices.ContainsFunc(p.Keep, func(r interval.Range) bool { return a < r.End && a+n > r.Start })
}

// targetBetween gives the first byte of the instruction of n bytes at a that something may
// jump to, where that would be wrong: into the jump's inner bytes, or between the start
// and the last probe point, past which the points before it would not be seen.
func (p *Regions) targetBetween(s, a, n, upto uint64) (uint64, bool) {
	for b := a; b < a+n; b++ {
		if b > s && (b < s+JumpLen || b <= upto) && p.Flow.Target(b) {
			return b, true
		}
	}
	return 0, false
}

// pad completes a region whose last instruction never falls through with the padding
// that follows the function.
func (p *Regions) pad(r *Region, a, upto uint64) (*Region, *Refusal) {
	if a <= upto {
		return nil, p.refuse(a, RuleRoom, nil)
	}
	need := int(JumpLen - r.Len)
	if have := p.room(a); have < need {
		return nil, p.refuse(r.last().Addr, RuleRoom, fmt.Errorf("%d bytes are free behind this instruction, the jump needs %d", have, need))
	}
	for b := a; b < a+uint64(need); b++ {
		if p.Flow.Target(b) || b >= p.Flow.End() && p.Flow.leavesTo(b) {
			return nil, p.refuseTarget(b, b)
		}
	}
	r.Len = JumpLen
	return r, nil
}

// room counts the bytes from a that no code needs.
func (p *Regions) room(a uint64) int {
	n := p.Flow.PaddingAt(a)
	if a+uint64(n) == p.Flow.End() {
		n += p.After
	}
	return n
}

// SortPoints sorts addresses and drops doubles.
func SortPoints(pts []uint64) []uint64 {
	slices.Sort(pts)
	return slices.Compact(pts)
}

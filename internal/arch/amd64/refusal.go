package amd64

import (
	"fmt"
	"slices"

	"kprobes.dev/kprobes/internal/arch"
)

// Rule names a condition of a region that does not hold.
type Rule string

// Rules of a region. Linux calls the bytes replaced the DCR (detoured code region) and its inner
// bytes the JTPR (jump target prohibition region): Documentation/trace/kprobes.rst, Safety Check.
const (
	RuleBoundary  Rule = "not an instruction boundary"
	RuleUndecoded Rule = "instruction is not known"
	RuleRelocate  Rule = "instruction can not run elsewhere"
	RuleTarget    Rule = "another instruction jumps into the bytes"
	RuleCall      Rule = "a call stands before the last instruction"
	RuleRoom      Rule = "too short for a jump"
	RulePage      Rule = "the jump would cross a page"
	RuleOverlap   Rule = "the bytes belong to another probe's region"
	RuleTraps     Rule = "no breakpoint may stand here"
	RuleSyscall   Rule = "a system call in the bytes would restart inside them"
	RuleSlow      Rule = "a breakpoint is asked for"
	RuleReserved  Rule = "the bytes belong to a probe that is to have a breakpoint"
	RulePatched   Rule = "the bytes are patched by the kernel's own tracer (ftrace): probe the function's entry"
	RuleSequence  Rule = "the instruction may run nowhere else: it belongs to a restartable sequence (rseq), or a kernel patches it or knows it by its address"
	RuleIndirect  Rule = "a jump whose targets are not known may lead into the bytes"
)

// rules are all rules; their places in the list stand in targets' memory, and never change.
var rules = []Rule{
	"", RuleBoundary, RuleUndecoded, RuleRelocate, RuleTarget, RuleCall, RuleRoom, RulePage, RuleOverlap, RuleTraps,
	RuleSyscall, RuleSlow, RuleReserved, RulePatched, RuleSequence, RuleIndirect,
}

// Code numbers the rule, for where there is one byte for it; 0: it has no number.
func (r Rule) Code() uint8 { return uint8(max(slices.Index(rules, r), 0)) }

// RuleOf gives the rule with a number; "" if it is not known.
func RuleOf(code uint8) Rule {
	if int(code) < len(rules) {
		return rules[code]
	}
	return ""
}

// Refusal says why no region can stand at an address.
type Refusal struct {
	Addr  uint64 // the instruction that is in the way
	Rule  Rule
	Bytes []byte // its bytes
	Err   error  // the cause, if there is one
	Trap  error  // why no breakpoint may take the jump's place, if that is the policy's

	target uint64 // of RuleTarget: the byte that something leads to
}

// Error tells the rule, the place and the bytes.
func (r *Refusal) Error() string {
	s := fmt.Sprintf("%s at 0x%x (% x)", string(r.Rule), r.Addr, r.Bytes)
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	if r.Trap != nil {
		s += "; no breakpoint in its place: " + r.Trap.Error()
	}
	return s
}

// RuleCode implements arch.Refusal.
func (r *Refusal) RuleCode() uint8 { return r.Rule.Code() }

// Is recognises arch.ErrUnprobeable.
func (r *Refusal) Is(err error) bool {
	return err == arch.ErrUnprobeable && (r.Rule == RuleRelocate || r.Rule == RuleSequence)
}

// Unwrap gives the cause.
func (r *Refusal) Unwrap() error { return r.Err }

// refuse makes a refusal by a rule, with the instruction at an address.
func (p *Regions) refuse(addr uint64, rule Rule, err error) *Refusal {
	n := 1
	if in, ok := p.Flow.Inst(addr); ok {
		n = int(in.Len)
	}
	return &Refusal{Addr: addr, Rule: rule, Bytes: p.Flow.Bytes(addr, n), Err: err}
}

// refuseTarget refuses bytes that something else may lead into: at b, in the instruction at a.
func (p *Regions) refuseTarget(a, b uint64) *Refusal {
	if far := p.Flow.unresolved; !p.Flow.marked(b, markTarget) && len(far) > 0 {
		return p.refuse(far[0], RuleIndirect, nil)
	}
	r := p.refuse(a, RuleTarget, nil)
	r.target = b
	return r
}

// nameBranch adds to a refusal which instruction leads into the bytes, if it is of this function.
// It looks at the whole function, so it is asked once for a probe, not for each region tried.
func (p *Regions) nameBranch(r *Refusal) {
	if r.target == 0 || r.Err != nil {
		return
	}
	for at, in := range p.Flow.All() {
		if to, ok := branchTarget(&flowNode{addr: at, in: *in}); ok && to == r.target {
			r.Err = fmt.Errorf("the one at 0x%x (% x) leads to 0x%x", at, p.Flow.Bytes(at, int(in.Len)), to)
			return
		}
	}
}

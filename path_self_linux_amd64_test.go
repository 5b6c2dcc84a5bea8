//go:build !race

package kprobes_test

import "testing"

//go:noinline
func selfPassed(a, b uint64) uint64 { return a*7 + b }

var passedFn = selfPassed

func ownPassed(t *testing.T) *passed {
	return &passed{ownCore(t), selfPrefix + "selfPassed", func(t *testing.T) uint64 {
		t.Helper()
		return passedFn(5, 3)
	}}
}

// TestPassInstructionSelf: in the own process.
func TestPassInstructionSelf(t *testing.T) { ownPassed(t).check(t) }

// TestGoIntoAnotherSelf: in the own process.
func TestGoIntoAnotherSelf(t *testing.T) {
	p := ownPassed(t)
	intoAnother(t, p.c, p.fn, selfPrefix+"selfLived", p.call)
}

// TestGoAstraySelf: in the own process.
func TestGoAstraySelf(t *testing.T) { ownPassed(t).astray(t) }

package plan

import (
	"errors"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/target"
)

// Reasons why a probe is not optimised where a jump would fit, or stands.
var (
	ErrOff     = errors.New("kprobes-optimization is off")
	ErrPost    = errors.New("has a post handler")
	ErrBesides = errors.New("a probe at the same instruction has a post handler")
	ErrAsked   = errors.New("this tactic was asked for")
)

// QueuedError is why a probe is not armed, or not by a jump yet: a thread is in the way.
type QueuedError struct{ Why error }

// Error tells what is waited for.
func (e *QueuedError) Error() string { return "queued: " + e.Why.Error() }

// Unwrap gives what is waited for.
func (e *QueuedError) Unwrap() error { return e.Why }

// ReasonOf is the number that stands for a reason in a target's memory; target.ReasonNone if none does.
func ReasonOf(why error) target.Reason {
	var queued *QueuedError
	var rule arch.Refusal
	switch {
	case why == nil:
	case errors.As(why, &queued):
		return target.ReasonQueued
	case errors.As(why, &rule):
		return target.ReasonRule + target.Reason(rule.RuleCode())
	case why == ErrPost || why == ErrBesides:
		return target.ReasonPost
	case why == ErrOff:
		return target.ReasonStraight
	case why == ErrAsked:
		return target.ReasonAsked
	}
	return target.ReasonNone
}

package kprobes

import (
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/target/self"
)

// attachSelf opens the own process as a target.
func attachSelf() (target.Target, error) { return self.Attach(nil) }

// isSelf says whether a target is the own process.
func isSelf(t target.Target) bool {
	_, ok := t.(*self.Target)
	return ok
}

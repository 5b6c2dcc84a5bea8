package engine

import (
	"fmt"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/handler"
)

// armedAs is how an event gets control, and why not by a faster tactic.
type armedAs struct {
	tactic arch.Tactic
	why    error
}

// eventForm is how an event gets control.
type eventForm struct {
	e *Event
	armedAs
}

// served is an event that code does the work of, with its handlers.
type served struct {
	e *Event
	n *handler.Calls // nil: it has none
}

// become notes how the event gets control now. The fields that its owner reads change only
// while the owner calls, and not when the optimiser or the reaper does its work meanwhile.
func (e *Event) become(f armedAs) {
	e.form = f
	if e.core == nil || !e.core.background && !e.core.tidying {
		e.Tactic, e.Why = f.tactic, f.why
	}
	e.updateOptimized()
}

// Form tells how the event gets control now, and why not by a faster tactic; nil for the
// fastest. "": it does not, for it is disabled, has no place yet, or waits to be armed.
func (e *Event) Form() (Tactic, error) {
	e.core.mu.Lock()
	defer e.core.mu.Unlock()
	if e.held == nil && e.idle() {
		return "", e.withdrawn
	}
	return e.form.tactic, e.form.why
}

// plainly is a reason on one line, without where in the code it applies.
func plainly(why error) string {
	if why == nil {
		return ""
	}
	return printable(fmt.Sprint(why))
}

package engine

// Form tells how the event gets control now, and why not by a faster tactic; nil for the
// fastest. "": it does not, for it is disabled, has no place yet, or waits to be armed.
func (e *Event) Form() (Tactic, error) {
	e.knobs.mu.Lock()
	defer e.knobs.mu.Unlock()
	if e.held == nil && e.idle() {
		return "", e.withdrawn
	}
	return e.form.tactic, e.form.why
}

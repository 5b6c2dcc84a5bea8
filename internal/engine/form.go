package engine

// Form tells how the event gets control now, and why not by a faster tactic: see kprobes.Event.Form.
func (e *Event) Form() (Tactic, error) {
	e.knobs.mu.Lock()
	defer e.knobs.mu.Unlock()
	if e.held == nil && e.idle() {
		return "", e.whyOut()
	}
	return e.form.tactic, e.form.why
}

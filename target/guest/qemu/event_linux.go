package qemu

// Event is something that happened to the machine.
type Event int

const (
	// Reset: the machine has been reset; what was in its memory is going.
	Reset Event = iota + 1
	// Shutdown: the guest has shut down, or QEMU was told to.
	Shutdown
	// Gone: QEMU has ended, or has closed the monitor. It is the last event.
	Gone
)

func (e Event) String() string {
	switch e {
	case Reset:
		return "reset"
	case Shutdown:
		return "shutdown"
	case Gone:
		return "gone"
	}
	return "unknown event"
}

// maxEvents is how many events wait for a reader; more are dropped, but for Gone.
const maxEvents = 64

// eventOf translates QMP's events.
func eventOf(name string) (Event, bool) {
	switch name {
	case "RESET":
		return Reset, true
	case "SHUTDOWN":
		return Shutdown, true
	}
	return 0, false
}

// post hands on an event of the monitor, and keeps one place for Gone.
func (m *Machine) post(name string) {
	if e, ok := eventOf(name); ok && len(m.events) < maxEvents {
		m.events <- e
	}
}

// Events tells what happens to the machine. The channel is closed after Gone, and when the
// machine is closed; one that was opened for reading only (Options.Unlocked) tells nothing.
func (m *Machine) Events() <-chan Event { return m.events }

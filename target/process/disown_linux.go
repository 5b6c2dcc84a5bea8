package process

import (
	"errors"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// ErrDetached says that somebody else has taken out what a tracer that still lives had put into the process.
var ErrDetached = errors.New("somebody else has taken kprobe's code out of the process (kprobe detach --force)")

// disown has a tracer that lives change nothing any more: it would find the program's own bytes, and arm its probes
// anew on code that goes. Precondition: the world is stopped.
func (l *Leftover) disown() error {
	if l.ControlBlock == 0 {
		return nil
	}
	return controlBlockAt(l.p, l.ControlBlock).put(hdrMarker, 0)
}

// ours says whether the control block is still what this tracer has made.
func (h *controlBlock) ours() error {
	switch marker, err := h.get(hdrMarker); {
	case errors.Is(err, ErrFault), err == nil && marker != h.marker:
		return errno.Errorf(unix.EBUSY, "process %d: %w", h.p.PID(), ErrDetached)
	default:
		return err
	}
}

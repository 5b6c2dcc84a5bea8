package linux

import (
	"errors"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/event"
)

// refusal is what the kernel's error_log says about a command.
type refusal struct {
	text string
	pos  int // byte of the command
}

const (
	logCommand = "  Command: "
	logError   = ": error: "
)

// findRefusal gives the newest entry of an error_log that is about a command.
func findRefusal(log, cmd string) (refusal, bool) {
	lines := strings.Split(log, "\n")
	for i := len(lines) - 2; i > 0; i-- {
		if lines[i] != logCommand+cmd {
			continue
		}
		_, text, ok := strings.Cut(lines[i-1], logError)
		caret := strings.IndexByte(lines[i+1], '^')
		if ok && caret >= len(logCommand) {
			return refusal{text, caret - len(logCommand)}, true
		}
	}
	return refusal{}, false
}

// refused makes the error of a definition that the kernel did not take: its own text and
// caret where its log has them, moved to the user's words.
func refused(d *event.Def, cmd, log string, cause error) error {
	var no syscall.Errno
	errors.As(cause, &no)
	r, ok := findRefusal(log, cmd)
	if !ok {
		return d.Refuse(event.FailRegProbe, d.Place.Pos, "the kernel gives no reason", no)
	}
	pos := column(d, cmd, r.pos)
	if c, ok := codeOf(r.text); ok {
		if c.Errno() == no {
			return d.Refuse(c, pos, "", nil)
		}
		return d.Refuse(c, pos, "", no)
	}
	return d.Refuse(event.FailRegProbe, pos, r.text, no)
}

// codeOf finds the error with a text; kernels of other versions have other texts too.
func codeOf(text string) (event.Code, bool) {
	for c := event.Code(0); c.Text() != ""; c++ {
		if c.Text() == text {
			return c, true
		}
	}
	return 0, false
}

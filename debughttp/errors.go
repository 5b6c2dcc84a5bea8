package debughttp

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/target"
)

// statusOf is the status of an answer that tells of an error, by its errno.
func statusOf(err error) int {
	var e *event.Error
	var refused interface{ LogEntry() string } // a filter, a trigger or a synthetic event
	var trigger *event.TriggerError
	var tooMuch *http.MaxBytesError
	var no syscall.Errno
	switch {
	case errors.As(err, &tooMuch):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &e), errors.As(err, &refused), errors.As(err, &trigger):
		return http.StatusBadRequest
	case errors.Is(err, target.ErrGone):
		return http.StatusGone
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return http.StatusConflict
	case errors.Is(err, unix.ENOENT):
		return http.StatusNotFound
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return http.StatusForbidden
	case errors.As(err, &no):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// explain gives an error's text: that of a definition as the error_log has it, with its
// caret, and below it why and what to do instead.
func explain(err error) string {
	var e *event.Error
	if !errors.As(err, &e) {
		return strings.TrimSuffix(err.Error(), "\n") + "\n"
	}
	return e.Detail() + fmt.Sprintln(e)
}

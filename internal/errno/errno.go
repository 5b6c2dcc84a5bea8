// Package errno gives errors the errno that Linux's documentation of Kprobes promises, where the
// errno's own text would add nothing to theirs, or mislead: the C library's words for EILSEQ
// speak of multibyte characters.
package errno

import (
	"fmt"
	"syscall"
)

// silent is an error with an errno that its text does not show.
type silent struct {
	error
	errno syscall.Errno
}

// Unwrap makes errors.Is and errors.As find both.
func (s *silent) Unwrap() []error { return []error{s.error, s.errno} }

// Errorf is fmt.Errorf; errors.Is(err, e) holds, and the text does not show e.
func Errorf(e syscall.Errno, format string, args ...any) error {
	return &silent{fmt.Errorf(format, args...), e}
}

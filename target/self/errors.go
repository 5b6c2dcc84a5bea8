package self

import (
	"errors"

	"kprobes.dev/kprobes/internal/target"
)

// ErrBlocked says that a thread stands, or may return to, where a change would harm it.
var ErrBlocked = target.ErrBlocked

// ErrForeign says that bytes of the program are neither what its file has nor ours.
var ErrForeign = errors.New("the program's code is not what its file has: somebody else patched it")

package engine

import (
	"errors"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
)

// refused wraps the reason why an event can not be armed.
func (e *Event) refused(err error) error {
	if e.h != nil {
		return e.h.refused(err)
	}
	return e.Def.Refuse(event.FailRegProbe, e.Def.Place.Pos, "", notRegistered{err})
}

// refused is the reason why the probe can not be armed.
func (p *Probe) refused(err error) error {
	var no unix.Errno
	if errors.As(err, &no) {
		return err
	}
	return errno.Errorf(unix.EOPNOTSUPP, "%w", err)
}

// plain is the error of a definition as one who wrote none wants it: the reason, with its
// errno.
func plain(err error) error {
	var bad *event.Error
	if !errors.As(err, &bad) {
		return err
	}
	var no unix.Errno
	switch {
	case bad.Err == nil && bad.Code == event.BadRetprobe:
		return errno.Errorf(unix.EINVAL, "a return probe stands at a function's entry: leave the offset out")
	case bad.Err == nil:
		return errno.Errorf(unix.EINVAL, "%s", bad.Code.Text())
	case bad.Code == event.BadInsnBndry && !errors.Is(bad.Err, unix.EILSEQ):
		return errno.Errorf(unix.EILSEQ, "%w", bad.Err)
	case errors.As(bad.Err, &no):
		return plain(bad.Err)
	}
	return errno.Errorf(unix.EINVAL, "%w", plain(bad.Err))
}

// notRegistered is the reason why an event could not be registered. It is ErrRegister too.
type notRegistered struct{ error }

func (n notRegistered) Unwrap() []error { return []error{n.error, ErrRegister} }

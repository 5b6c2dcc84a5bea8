package self

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// Traps says that breakpoints may stand in the process: TrapsAt tells where not.
func (t *Target) Traps() error { return nil }

// setsMask is the function by which Go code is known to change a thread's signal mask without the
// runtime.
const setsMask = "golang.org/x/sys/unix.PthreadSigmask"

// TrapsAt says why no breakpoint may stand in the function that starts at an address; nil:
// it may.
func (t *Target) TrapsAt(fn uint64, asked bool) error {
	path, err := t.path()
	if err != nil {
		return err
	}
	if why := path[fn]; why != "" {
		return errno.Errorf(unix.EOPNOTSUPP, "it may run while SIGTRAP is blocked: %s", why)
	}
	if asked {
		return nil
	}
	if iscgo {
		return errCgo
	}
	m := t.Space().ModuleAt(fn)
	if m == nil || !m.Main {
		return errCode
	}
	if f, _, ok := m.Image.At(m.Linktime(fn)); !ok || f.Lang != symbol.LangGo {
		return errCode
	}
	if t.masks() {
		return errMask
	}
	return nil
}

// FaultsCaught says whether no thread that is in the function that starts at an address can have the signals of a fault
// blocked: the mask of a program's Go code is the runtime's. Else a record asks for the mask before it reads memory.
func (t *Target) FaultsCaught(fn uint64) bool {
	if !t.caught() {
		return false
	}
	path, err := t.path()
	if err != nil || path[fn] != "" {
		return false
	}
	m := t.Space().ModuleAt(fn)
	if m == nil || !m.Main {
		return false
	}
	f, _, ok := m.Image.At(m.Linktime(fn))
	return ok && f.Lang == symbol.LangGo
}

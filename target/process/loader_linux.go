package process

import (
	"errors"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/symbol"
)

// loaderHook is the function that the dynamic loaders of glibc and musl call for
// debuggers after they have changed the list of objects (struct r_debug, r_brk).
const loaderHook = "_dl_debug_state"

// Loader finds the loader's hook.
func (t *Target) Loader() (place symbol.Resolved, words uint64, ok bool) {
	if t.control == nil || t.module[0].im.Interp() == "" {
		return place, 0, false
	}
	for _, m := range t.Space().Modules() {
		fns := m.Image.All(loaderHook)
		if len(fns) != 1 || m.Main {
			continue
		}
		v := fns[0].Addr
		return symbol.Resolved{Module: m, Func: fns[0], Vaddr: v, Addr: m.Runtime(v)}, t.control.addr + hdrWait, true
	}
	return place, 0, false
}

// The second word of the probe on the loader: a thread waits if it is zero.
const (
	waitedInVain = arch.WaitedInVain // until the next answer
	waitsNoMore  = 2                 // for good
)

// Answer lets a thread go on that waits in the loader's hook. If one has given up meanwhile
// the next waits all the same: the tracer is slow, and not gone.
func (t *Target) Answer() (late bool, err error) {
	off, err := t.control.get(hdrWait + 8)
	if err != nil {
		return false, err
	}
	return off&waitedInVain != 0, errors.Join(t.control.letLoaderGo(), t.control.put(hdrWait+8, off&waitsNoMore))
}

// letLoaderGo counts up the answer.
func (h *controlBlock) letLoaderGo() error {
	n, err := h.get(hdrWait)
	if err != nil {
		return err
	}
	return h.put(hdrWait, n+1)
}

// letLoadersGo has nobody wait in the loader's hook any more. It is to be called until nobody does: a thread that
// has read the answer just before waits for the next one.
func (h *controlBlock) letLoadersGo() error {
	return errors.Join(h.put(hdrWait+8, waitsNoMore), h.letLoaderGo())
}

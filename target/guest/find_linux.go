package guest

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// findRunning finds the kernel that the vCPUs run. With KASLR each boot has another place, so that
// memory may hold whole kernels of earlier boots.
func findRunning(m *qemu.Machine) (*kernel.Kernel, error) {
	k, err := kernel.Find(m)
	var several *kernel.AmbiguousError
	if err != nil && !errors.As(err, &several) {
		return nil, err
	}
	all := []*kernel.Kernel{k}
	if several != nil {
		all = slices.Clone(several.Kernels) // the error keeps its own
	}
	roots, rootsErr := m.Roots()
	switch {
	case rootsErr == nil:
		all = slices.DeleteFunc(all, func(k *kernel.Kernel) bool { return !slices.ContainsFunc(roots, k.Owns) })
	case !errors.Is(rootsErr, qemu.ErrHeld):
		return nil, rootsErr
	case several != nil: // who holds the machine has asked
		all = slices.DeleteFunc(all, func(k *kernel.Kernel) bool { return !traced(m, k) })
	}
	switch {
	case len(all) == 1:
		return all[0], nil
	case len(all) == 0 && rootsErr == nil:
		return nil, errno.Errorf(unix.EAGAIN, "the kernels in the guest's memory are those of earlier boots: no vCPU runs them; the next has not come up yet: try again in a moment")
	}
	return nil, several
}

// unlessEnded gives the error of reading a kernel, or, where the kernel has ended meanwhile, that there
// is none yet (EAGAIN): what is missing in its memory then was written over, and tells nothing.
func unlessEnded(m *qemu.Machine, k *kernel.Kernel, err error) error {
	ended := k.Check() != nil
	if roots, e := m.Roots(); e == nil {
		ended = ended || !slices.ContainsFunc(roots, k.Owns)
	}
	if !ended {
		return err
	}
	return errno.Errorf(unix.EAGAIN, "no kernel has come up yet: %s, which was found in the guest's memory, ended while it was read (%v); try again in a moment", k.Release(), err)
}

// traced says whether a tracer that runs has its probes in a kernel: of one that has followed a
// reboot the kernel before it may tell too, but its patches do not stand there.
func traced(m *qemu.Machine, k *kernel.Kernel) bool {
	l, err := (&Target{m: m, k: k}).FindLeftover()
	if err != nil || l == nil || !l.Alive() {
		return false
	}
	for i := range l.Sites {
		if l.State(&l.Sites[i]) == stateOptimized {
			return true
		}
	}
	return len(l.Sites) == 0
}

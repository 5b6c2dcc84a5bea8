package ptrace

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// LearnLocks finds out whether the process locks all memory that it maps (mlockall with MCL_FUTURE):
// a page that may not be accessed is mapped, which takes no memory, and is looked at. Only a process
// that has locked memory is asked.
func (s *Stopped) LearnLocks() (locks bool, err error) {
	p := s.p
	st, err := p.ReadFile("status")
	if err != nil || !locksSome(string(st)) {
		return false, err
	}
	at, err := s.Mmap(0, procfs.PageSize, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
	if errors.Is(err, unix.EAGAIN) {
		return false, fmt.Errorf("process %d: it locks all its memory (mlockall), and RLIMIT_MEMLOCK leaves none: raise it (prlimit --pid %d --memlock=unlimited): %w", p.pid, p.pid, err)
	}
	if err != nil {
		return false, err
	}
	locks, err = p.locked(at)
	if err = errors.Join(err, s.Munmap(at, procfs.PageSize)); err != nil || !locks {
		return false, err
	}
	p.locks.Store(true)
	return true, nil
}

// LocksAll says whether the process locks all memory that it maps, as LearnLocks has found.
func (p *Process) LocksAll() bool { return p.locks.Load() }

// locksSome says whether a process has locked memory, by the text of proc(5) status.
func locksSome(status string) bool {
	for l := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(l, "VmLck:"); ok {
			return strings.Fields(v + " 0")[0] != "0"
		}
	}
	return false
}

// locked says whether the mapping at an address is locked, by proc(5) smaps.
func (p *Process) locked(at uint64) (bool, error) {
	b, err := p.ReadFile("smaps")
	if err != nil {
		return false, err
	}
	_, text, found := strings.Cut("\n"+string(b), fmt.Sprintf("\n%08x-", at))
	if !found {
		return false, fmt.Errorf("process %d: smaps has no mapping at 0x%x", p.pid, at)
	}
	_, flags, _ := strings.Cut(text, "VmFlags:")
	flags, _, _ = strings.Cut(flags, "\n")
	return slices.Contains(strings.Fields(flags), "lo"), nil
}

// Package headroom tells how much memory a process may still take before the kernel refuses
// it more, or kills it: the limits of its memory cgroups (version 1 and 2), its resource
// limits, the machine's memory, and what the machine may promise where it does not overcommit.
package headroom

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Take is what a step takes, in bytes.
type Take struct {
	Charged uint64 // pages that the process's memory cgroup pays
	Ours    uint64 // pages that the tracer's pays
	Mapped  uint64 // address space of the process
	Private uint64 // of that private and writable
	Locked  uint64 // of Mapped, in a process that locks all its memory in future (mlockall)
}

// Plus adds two steps.
func (t Take) Plus(o Take) Take {
	return Take{t.Charged + o.Charged, t.Ours + o.Ours, t.Mapped + o.Mapped, t.Private + o.Private, t.Locked + o.Locked}
}

// kind says what of a Take counts for a limit.
type kind int

const (
	ofTarget kind = iota // Charged
	ofTracer             // Ours
	ofBoth               // Charged and Ours
	ofSpace
	ofPrivate
	ofLocked
)

func (k kind) of(t Take) uint64 {
	switch k {
	case ofTarget:
		return t.Charged
	case ofTracer:
		return t.Ours
	case ofBoth:
		return t.Charged + t.Ours
	case ofSpace:
		return t.Mapped
	case ofPrivate:
		return t.Private
	}
	return t.Locked
}

// Limit is one bound. Sizes are in bytes.
type Limit struct {
	Name   string // what bounds, and where
	Max    uint64
	Used   uint64 // what can be reclaimed at once (page cache that nobody uses) is not counted
	Advice string // how to raise it
	kind   kind
}

// Free is what is left.
func (l Limit) Free() uint64 { return l.Max - min(l.Used, l.Max) }

// Error says which limit leaves too little.
type Error struct {
	Limit Limit
	Need  uint64
}

func (e *Error) Error() string {
	return fmt.Sprintf("memory: %s needed, and %s of %s are free (%s); no more than half of that is taken: %s",
		size(e.Need), size(e.Limit.Free()), size(e.Limit.Max), e.Limit.Name, e.Limit.Advice)
}

// Is makes errors.Is(err, unix.ENOMEM) hold.
func (e *Error) Is(target error) bool { return target == unix.ENOMEM }

func size(n uint64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

// Limits are all that bind a process.
type Limits []Limit

// share: a step takes at most one part in so many of what is free. The rest is the program's,
// which has its own peaks, and its neighbours'.
const share = 2

// Check is an *Error if a step takes more than a limit leaves: more than half of what is free.
func (ls Limits) Check(t Take) error {
	for _, l := range ls {
		if n := l.kind.of(t); n > 0 && n > l.Free()/share {
			return &Error{l, n}
		}
	}
	return nil
}

// Root is the file system that Of reads: "/" but for tests.
type Root string

// Of finds the limits of a process, and those of the tracer: the calling process. What cannot
// be read does not bind. locks: the process locks all that it maps (mlockall with MCL_FUTURE).
func (r Root) Of(pid, tracer int, locks bool) (Limits, error) {
	var ls Limits
	theirs, err := r.cgroups(pid)
	if err != nil {
		return nil, err
	}
	own, err := r.cgroups(tracer)
	if err != nil {
		return nil, err
	}
	for _, l := range theirs {
		if _, ok := own[l.Name]; ok {
			l.kind = ofBoth
		}
		ls = append(ls, l)
	}
	for name, l := range own {
		if _, ok := theirs[name]; !ok {
			l.kind = ofTracer
			ls = append(ls, l)
		}
	}
	ls = append(ls, r.machine()...)
	return append(ls, r.rlimits(pid, locks)...), nil
}

// Cgroup gives the memory cgroup of a process, or the one above it, that leaves it the least;
// false: none limits it.
func (r Root) Cgroup(pid int) (least Limit, ok bool) {
	ls, err := r.cgroups(pid)
	if err != nil {
		return least, false
	}
	for _, l := range ls {
		if !ok || l.Free() < least.Free() {
			least, ok = l, true
		}
	}
	return least, ok
}

// rlimits reads proc(5) limits and status of a process.
func (r Root) rlimits(pid int, locks bool) Limits {
	limits, status := r.text("proc/%d/limits", pid), r.text("proc/%d/status", pid)
	var ls Limits
	for _, l := range []struct {
		line, used, name, flag string
		kind                   kind
	}{
		{"Max address space", "VmSize", "RLIMIT_AS", "--as", ofSpace},
		{"Max data size", "VmData", "RLIMIT_DATA", "--data", ofPrivate},
		{"Max locked memory", "VmLck", "RLIMIT_MEMLOCK", "--memlock", ofLocked},
	} {
		if l.kind == ofLocked && (!locks || mayLock(status)) {
			continue
		}
		soft, ok := softLimit(limits, l.line)
		if !ok {
			continue
		}
		used, _ := field(status, l.used+":")
		ls = append(ls, Limit{
			Name: fmt.Sprintf("%s of process %d", l.name, pid), Max: soft, Used: used << 10, kind: l.kind,
			Advice: fmt.Sprintf("raise it (prlimit --pid %d %s=unlimited), or give less to the ring (--buffer-size)", pid, l.flag),
		})
	}
	return ls
}

// mayLock says whether a process has CAP_IPC_LOCK, for which RLIMIT_MEMLOCK does not count.
func mayLock(status string) bool {
	for l := range strings.Lines(status) {
		var caps uint64
		if n, _ := fmt.Sscanf(l, "CapEff: %x", &caps); n == 1 {
			return caps>>unix.CAP_IPC_LOCK&1 != 0
		}
	}
	return false
}

// machine reads proc(5) meminfo, and whether memory is promised only where it is there.
func (r Root) machine() Limits {
	info := r.text("proc/meminfo")
	var ls Limits
	if total, ok := field(info, "MemTotal:"); ok {
		avail, ok := field(info, "MemAvailable:")
		if ok {
			ls = append(ls, Limit{Name: "this machine (MemAvailable)", Max: total << 10, Used: (total - min(avail, total)) << 10, kind: ofBoth, Advice: "free some, or give less to the ring (--buffer-size)"})
		}
	}
	if strings.TrimSpace(r.text("proc/sys/vm/overcommit_memory")) != "2" {
		return ls
	}
	limit, ok := field(info, "CommitLimit:")
	used, ok2 := field(info, "Committed_AS:")
	if ok && ok2 {
		ls = append(ls, Limit{Name: "CommitLimit of this machine, vm.overcommit_memory is 2", Max: limit << 10, Used: used << 10, kind: ofPrivate, Advice: "raise vm.overcommit_ratio, or probe less"})
	}
	return ls
}

// ErrUnread says that a file which should tell of a limit tells nothing that is understood.
var ErrUnread = errors.New("limit of memory cannot be read")

func unread(path, text string) error {
	return errno.Errorf(unix.EIO, "%s holds %q: %w", path, text, ErrUnread)
}

// noLimit is what version 1 shows for none: the largest number of whole pages.
const noLimit = math.MaxInt64 &^ 4095

package trace

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// PIDs are the threads whose hits alone are recorded, and act, in order; none: all threads' are. Not tells of those whose hits are not.
func (in *Instance) PIDs(not bool) []int {
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	return slices.Sorted(maps.Keys(*in.pidSet(not)))
}

func (in *Instance) pidSet(not bool) *map[int]bool {
	if not {
		return &in.notPIDs
	}
	return &in.onlyPIDs
}

// ClearPIDs is what opening set_event_pid, or set_event_notrace_pid, with O_TRUNC does.
func (in *Instance) ClearPIDs(not bool) {
	in.drain()
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	*in.pidSet(not) = nil
}

// AddPIDs adds the threads whose numbers text has, between spaces, as a write to set_event_pid, or set_event_notrace_pid, does. Their
// hits are told from others when records are read. EINVAL: a word is no number; EPERM: no thread has such a number.
func (in *Instance) AddPIDs(text string, not bool) error {
	var tids []int
	for _, w := range strings.Fields(text) {
		n, err := strconv.ParseUint(w, 0, 64)
		switch {
		case err != nil:
			return errno.Errorf(unix.EINVAL, "%q: the number of a thread is taken", w)
		case n > math.MaxInt32:
			return errno.Errorf(unix.EPERM, "%s: no thread has a number above %d", w, math.MaxInt32)
		}
		tids = append(tids, int(n))
	}
	in.drain()
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	set := in.pidSet(not)
	if *set == nil && len(tids) > 0 {
		*set = map[int]bool{}
	}
	for _, tid := range tids {
		(*set)[tid] = true
	}
	return nil
}

// chosen says whether a thread's hits are recorded. Precondition: pollMu is held.
func (in *Instance) chosen(tid int) bool {
	return (in.onlyPIDs == nil || in.onlyPIDs[tid]) && !in.notPIDs[tid]
}

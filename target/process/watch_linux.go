package process

import (
	"fmt"
	"os"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/watchpoint"
)

// watchSet has the watchpoints of a process.
type watchSet struct {
	watchpoint.Set

	// Whoever reads records has what follows for himself.
	ids     map[int]int // of threads: in their pid namespace, if that is not ours (foreign)
	foreign bool
}

// maxIDs bounds the ids that are kept.
const maxIDs = 1 << 16

// Watch arms a watchpoint, while all threads stand.
func (t *Target) Watch(w *target.Watch) (target.ExternalProbe, error) {
	return t.watch.Arm(w, t.p.PID(), func(o *watchpoint.Opening) error {
		return t.stopped(func(s *ptrace.Stopped) error {
			threads := s.Everyone()
			if err := o.Room(len(threads)); err != nil {
				return err
			}
			for _, th := range threads {
				if !o.Thread(th.TID) {
					break
				}
			}
			return o.Err()
		})
	})
}

// watched reads the records that there are of watchpoints.
func (t *Target) watched(f func(*target.UprobeRecord)) int {
	return t.watch.Poll(t.Space(), t.idInside, f)
}

// idInside is the id that a thread has in its own pid namespace: samples have the one that it has in ours. That of a thread
// that has ended before its first sample was read is not known, and stays.
func (t *Target) idInside(tid int) int {
	s := &t.watch
	if s.ids == nil {
		s.ids = map[int]int{}
		own, err1 := os.Readlink("/proc/self/ns/pid")
		its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", t.p.PID()))
		s.foreign = err1 == nil && err2 == nil && own != its
	}
	if !s.foreign {
		return tid
	}
	id, ok := s.ids[tid]
	if !ok {
		id = tid
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid)); err == nil {
			if st, err := procfs.ParseStatus(string(text)); err == nil {
				id = innermost(st.NSTID, tid)
			}
		}
		if len(s.ids) >= maxIDs {
			clear(s.ids)
		}
		s.ids[tid] = id
	}
	return id
}

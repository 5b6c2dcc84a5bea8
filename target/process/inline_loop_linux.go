package process

import (
	"fmt"
	"os"
	"time"

	"kprobes.dev/kprobes/internal/ptrace"
)

// A handler in line that does not end keeps its thread for ever, and nothing in the process can end it. The tracer sees that one run takes a slot for long, finds its thread,
// and, once that has used more than a second of a CPU since, sends it where a fault would: the handler is not called any more, and the thread goes on as if it had
// returned 0. It is sent there from the module's own code only, which has no lock and is in the middle of no record.

const (
	longSeen = time.Second // a run that is seen for so long is looked at
	longRan  = time.Second // CPU time after which it is ended
)

// longRun is a run that was seen before.
type longRun struct {
	run   uint64
	since time.Time
	tid   int           // its thread; 0: it was not looked for yet
	ran   time.Duration // CPU time of the thread when that was known
}

// EndLoops ends handlers in line that do not end by themselves. It is to be called again and again.
func (t *Target) EndLoops() {
	if t.inLine == nil {
		return
	}
	l := t.inLine
	runs, err := l.slots()
	if err != nil {
		return // the process is gone
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[uint64]bool{}
	for _, r := range runs {
		if r.Start {
			continue
		}
		seen[r.Key] = true
		if l.loops(r) && l.endRun(r) {
			delete(l.running, r.Key)
		}
	}
	for key := range l.running {
		if !seen[key] {
			delete(l.running, key)
		}
	}
}

// loops says whether a run has used so much time that it is to be ended. Precondition: mu is held.
func (l *inLine) loops(r slotRun) bool {
	was := l.running[r.Key]
	switch {
	case was == nil || was.run != r.Run:
		l.running[r.Key] = &longRun{run: r.Run, since: time.Now()}
		return false
	case time.Since(was.since) < longSeen:
		return false
	case was.tid == 0:
		was.tid, was.ran = l.threadOf(r.Key)
		return false
	}
	ran, err := l.cpuTime(was.tid)
	return err == nil && ran-was.ran > longRan
}

// threadOf finds the thread of a key, and how long it has run.
func (l *inLine) threadOf(key uint64) (tid int, ran time.Duration) {
	_ = l.t.stopped(func(s *ptrace.Stopped) error { // without it the next look tries again
		for _, th := range s.Threads() {
			if th.ThreadPointer() == key {
				tid = th.TID
			}
		}
		return nil
	})
	if tid == 0 {
		return 0, 0
	}
	ran, err := l.cpuTime(tid)
	if err != nil {
		return 0, 0
	}
	return tid, ran
}

// cpuTime is the CPU time that a thread has used: proc(5), schedstat.
func (l *inLine) cpuTime(tid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", l.t.p.PID(), tid))
	if err != nil {
		return 0, err
	}
	var ran int64
	_, err = fmt.Sscan(string(b), &ran)
	return time.Duration(ran), err
}

// endRun sends the thread of a run where a fault would. It says whether it could: the thread is in the module's code. Precondition: mu is held.
func (l *inLine) endRun(r slotRun) (ended bool) {
	_ = l.t.stopped(func(s *ptrace.Stopped) error { // the next look tries again
		runs, err := l.slots()
		if err != nil {
			return err
		}
		for _, now := range runs {
			if now.Key != r.Key || now.Run != r.Run {
				continue
			}
			for _, th := range s.Threads() {
				if th.ThreadPointer() != r.Key || !l.inModule(th.ResumePC()) {
					continue
				}
				regs := th.Regs()
				regs.Shift(l.run.Abandon-th.ResumePC(), 0)
				if err := th.SetRegs(regs); err != nil {
					return err
				}
				ended = true
				l.looped(r.Desc)
			}
		}
		return nil
	})
	return ended
}

func (l *inLine) inModule(pc uint64) bool {
	for _, m := range l.t.kmods {
		if m.at.Text.Contains(pc) {
			return true
		}
	}
	return false
}

// looped notes that the handler of a descriptor did not end. Precondition: mu is held.
func (l *inLine) looped(desc uint64) {
	for c, in := range l.calls {
		if c.Desc == desc {
			in.looped = true
		}
	}
}

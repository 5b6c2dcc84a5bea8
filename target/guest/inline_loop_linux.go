package guest

import (
	"slices"
	"time"

	"kprobes.dev/kprobes/target/guest/qemu"
)

// A handler in line that does not end keeps its vCPU for ever, with interrupts off. The tracer sees that one run takes a slot for long, looks at the vCPU again and
// again, and, once its registers have changed often enough, sends it where a fault would: the handler is not called any more, and the vCPU goes on
// as if it had returned 0. It is sent there from the module's own code only, which has no lock and is in the middle of no record.

const (
	longSeen  = time.Second // a run that is seen for so long is looked at
	longSteps = 8           // looks at which the vCPU had run on since the one before; a handler takes microseconds of a vCPU
)

// longRun is a run that was seen before.
type longRun struct {
	run   uint64
	since time.Time
	last  qemu.CPU // when it was looked at; the zero one: it was not
	steps int
}

// EndLoops ends handlers in line that do not end by themselves. It is to be called again and again.
func (t *Target) EndLoops() {
	l := t.inLine
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[int]bool{}
	for _, r := range l.runs() {
		seen[r.cpu] = true
		was := l.running[r.cpu]
		switch {
		case was == nil || was.run != r.Run:
			l.running[r.cpu] = &longRun{run: r.Run, since: time.Now()}
		case time.Since(was.since) >= longSeen:
			_ = t.stopped(func(s *qemu.Stop) error { return l.lookAt(s, r, was) }) // the next look tries again
		}
	}
	for cpu := range l.running {
		if !seen[cpu] {
			delete(l.running, cpu)
		}
	}
}

// lookAt looks whether a run goes on, and ends it if it has done so for too long. Preconditions: the vCPUs are stopped, mu is held.
func (l *inLine) lookAt(s *qemu.Stop, r slotRun, was *longRun) error {
	if !slices.ContainsFunc(l.runs(), func(now slotRun) bool { return now.cpu == r.cpu && now.Run == r.Run }) {
		return nil
	}
	cpus, err := s.CPUs()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(cpus, func(c qemu.CPU) bool { return c.PerCPU() == l.t.k.PerCPU(r.cpu) })
	if i < 0 {
		return nil
	}
	c := &cpus[i]
	if *c != was.last {
		was.last = *c
		was.steps++
	}
	if was.steps < longSteps || !l.inModule(c.PC()) {
		return nil
	}
	c.SetPC(l.run.Abandon)
	if err := s.SetCPU(c); err != nil {
		return err
	}
	delete(l.running, r.cpu)
	for call, in := range l.calls {
		in.looped = in.looped || call.Desc == r.Desc
	}
	return nil
}

func (l *inLine) inModule(pc uint64) bool {
	return slices.ContainsFunc(l.kmods, func(m *kmodule) bool { return m.at.Text.Contains(pc) })
}

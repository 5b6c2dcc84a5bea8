package executables

import (
	"errors"
	"sync"

	"kprobes.dev/kprobes/target/process"
)

// entry is a process that is known. member is nil while it is being armed, and if it has no probes.
type entry struct {
	pid    int
	member Member
	gone   sync.Once
	armed  chan struct{} // closed when it is not being armed any more
	once   sync.Once
}

// settle notes that the process is not being armed any more.
func (e *entry) settle() { e.once.Do(func() { close(e.armed) }) }

// known says whether a process has an entry, or is about to have one.
func (s *Set) known(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[pid] != nil || s.meets[pid] > 0
}

// meeting notes that a process is being met, with 1, and that it has been, with -1.
func (s *Set) meeting(pid, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.meets[pid] += n; s.meets[pid] == 0 {
		delete(s.meets, pid)
	}
}

// enter makes an entry; nil: there is one, or the set is being closed.
func (s *Set) enter(pid int) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.of[pid] != nil {
		return nil
	}
	e := &entry{pid: pid, armed: make(chan struct{})}
	s.of[pid] = e
	return e
}

func (s *Set) forget(e *entry) {
	e.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[e.pid] == e {
		delete(s.of, e.pid)
	}
}

// refused counts a process that has no probes. It stays known while it runs, so that it is not tried again and again.
func (s *Set) refused(e *entry, err error) {
	e.settle()
	short := errors.Is(err, process.ErrNoProcess) || errors.Is(err, process.ErrExec)
	s.mu.Lock()
	if short {
		s.counts.Short++
	} else {
		s.counts.Refused++
	}
	s.mu.Unlock()
	if short {
		s.forget(e)
		return
	}
	s.o.Refused(e.pid, err)
	if s.ends.add(e) != nil {
		s.forget(e)
	}
}

// arm has a process probed.
func (s *Set) arm(e *entry, p *process.Proc, stopped *process.Stopped, count func(*Counts)) {
	m, err := s.o.Arm(p, stopped)
	if err != nil {
		s.refused(e, err)
		return
	}
	s.mu.Lock()
	e.member = m
	count(&s.counts)
	s.mu.Unlock()
	e.settle()
	s.settle.Do(func() { close(s.settled) })
	err = s.ends.add(e)
	if err != nil || !p.Alive() || s.entryOf(e.pid) != e { // or it has executed another program meanwhile
		s.ended(e)
	}
}

// ended has a member leave whose process has ended.
func (s *Set) ended(e *entry) {
	s.forget(e)
	s.leave(e)
}

// leave has a member leave, once.
func (s *Set) leave(e *entry) {
	s.mu.Lock()
	m := e.member
	s.mu.Unlock()
	if m == nil {
		return
	}
	e.gone.Do(func() {
		done := make(chan struct{})
		s.mu.Lock()
		s.left[e.pid] = done
		s.mu.Unlock()
		s.leaves.Go(func() {
			s.leaving <- struct{}{}
			children := m.Leave()
			<-s.leaving // what follows may wait for others that leave
			s.mu.Lock()
			if s.left[e.pid] == done {
				delete(s.left, e.pid)
			}
			s.mu.Unlock()
			close(done)
			for _, pid := range children { // they have no probes now
				if s.takes(pid) && !s.known(pid) {
					s.attach(pid, func(c *Counts) { c.Forked++ })
				}
			}
		})
	})
}

// entryOf gives the entry of a process, nil if there is none.
func (s *Set) entryOf(pid int) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[pid]
}

// replaced has the member leave whose process has executed another program, and waits until it has: the process can be held but once. It may
// be armed still: it runs, and so executes another program, before it is known that it has its probes.
func (s *Set) replaced(pid int) {
	if e := s.entryOf(pid); e != nil {
		<-e.armed
		s.ended(e)
	}
	s.awaitLeft(pid)
}

// awaitLeft waits while a process is being left that has this id, or had it.
func (s *Set) awaitLeft(pid int) {
	s.mu.Lock()
	done := s.left[pid]
	s.mu.Unlock()
	if done != nil {
		<-done
	}
}

// Replaced tells the set that another program has taken the place of a member's. It does nothing once Close has begun: the member leaves then anyway.
func (s *Set) Replaced(m Member) {
	s.mu.Lock()
	var of *entry
	for _, e := range s.of {
		if e.member == m {
			of = e
		}
	}
	if of == nil || s.closed {
		s.mu.Unlock()
		return
	}
	s.arms.Add(1) // Close waits
	s.mu.Unlock()
	defer s.arms.Done()
	s.ended(of)
}

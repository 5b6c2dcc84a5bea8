package process

import (
	"errors"
	"slices"
)

// Some system calls need only one thread to make them, and the others may run meanwhile whatever they run: those that
// make no descriptor (a program may count on the number that its next one gets), and change nothing that a thread of the
// program knows of. Then only that thread is stopped. It is as in a stop of all: nobody else runs on its stack, where its
// frame lies, and if the tracer dies it makes the call, or not, and goes on. A thread that forks copies the frame with the
// stack, which the child's thread is not on; one that executes another program ends the stopped thread.

// oneTries is how many threads are tried before all are stopped.
const oneTries = 3

// callByOne lets a thread make system calls while the others run; where none can, one does while all are stopped. They
// must be such that may be made twice.
func (t *Target) callByOne(calls []Syscall) error {
	if t.held == nil && t.golang == nil { // no thread of a Go program has room on a stack that is surely its own
		for _, tid := range t.sleepers(oneTries) {
			s, err := t.p.stopOne(tid)
			if err != nil {
				continue // what is wrong the stop of all will tell
			}
			if err = errors.Join(s.CallAll(calls), s.Release()); err == nil {
				return nil
			}
		}
	}
	return t.stopped(func(s *Stopped) error { return s.CallAll(calls) })
}

// sleepers gives some threads that slept when they were last asked: the first thread, if it did, before others.
func (t *Target) sleepers(n int) (tids []int) {
	for tid, st := range t.before {
		if st.State == "S" {
			tids = append(tids, tid)
		}
	}
	slices.Sort(tids)
	return tids[:min(n, len(tids))]
}

// stopOne stops one thread.
func (p *Proc) stopOne(tid int) (*Stopped, error) {
	if err := p.stoppable(); err != nil {
		return nil, err
	}
	p.findGadgets() // reads files and memory: not while a thread waits
	s, _, err := p.attempt((*StopOptions)(nil).withDefaults().Deadline, tid)
	return s, err
}

// stopThread stops the thread that the stop is for.
func (s *Stopped) stopThread() error {
	t, err := s.seize(s.groups[0], s.only)
	if t == nil || err != nil {
		return errors.Join(errMoved, err)
	}
	s.known[s.only] = t
	if err := s.stopThese([]*Thread{t}, parkAfter); err != nil {
		return err
	}
	if !t.stopped {
		return errMoved
	}
	s.threads = []*Thread{t}
	return nil
}

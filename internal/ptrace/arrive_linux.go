package ptrace

import (
	"fmt"
	"slices"
	"time"
)

// lingerTime is how long threads that were told to stop, and need not any more, are waited
// for; lingerD how long those of them that sleep uninterruptibly.
const (
	lingerTime = 5 * time.Second
	lingerD    = 100 * time.Millisecond
)

// linger waits for threads that have been told to stop and may be on their way out of a system call
// with EINTR: each is let go when it arrives and that is undone, while the others run already.
func (s *Stopped) linger(pending []*Thread) {
	now := time.Now()
	end, look := now.Add(lingerTime), now.Add(lingerD)
	for n := 0; len(pending) > 0; n++ {
		pending = slices.DeleteFunc(pending, func(t *Thread) bool {
			done, err := t.arrive()
			if done && t.stopped {
				t.release(0)
			}
			return done || err != nil
		})
		if sleep(n, end) != nil {
			break
		}
		if time.Now().After(look) && len(pending) <= askedAtOnce {
			look = time.Now().Add(lingerD)
			pending = slices.DeleteFunc(s.withoutWorkers(pending), func(t *Thread) bool {
				st, err := t.Status()
				return err != nil || st.State == "D"
			})
		}
	}
}

// parkAfter is how long nothing arrives before it is looked at what the missing threads wait for, and
// asleepLooks the number of looks after which those that sleep uninterruptibly are not waited for.
const (
	parkAfter   = 10 * time.Millisecond
	asleepLooks = 3
	askedAtOnce = 64 // of that many threads, since the files of one take 20 us
)

// awaitAll waits until every one of the threads has stopped or ended, or is parked. It gives up when
// none has for d.
func (s *Stopped) awaitAll(pending []*Thread, d time.Duration) error {
	pending = append([]*Thread(nil), pending...)
	last := s.since.Add(d + time.Duration(len(s.known))*perThread)
	look, deadline := s.until(d, last)
	for n, looks := 0, 0; len(pending) > 0; n++ {
		left, err := arrivals(pending)
		if err != nil {
			return err
		}
		if len(left) < len(pending) {
			n, looks = 0, 0
			look, deadline = s.until(d, last)
		}
		pending = left
		if len(pending) > 0 && time.Now().After(look) {
			pending = s.parkSome(pending)
			if looks++; looks >= asleepLooks && s.allAsleep(pending) {
				return s.stuck(pending, parkAfter*asleepLooks)
			}
			look = time.Now().Add(parkAfter)
		}
		if len(pending) > 0 && sleep(n, deadline) != nil || time.Now().After(deadline) {
			if len(pending) <= askedAtOnce {
				pending = s.withoutWorkers(pending)
			}
			if len(pending) > 0 {
				return s.stuck(pending, d)
			}
		}
	}
	return nil
}

// misses is after how many threads that have not arrived a pass ends: they arrive in about the order
// in which they were told to, and we keep a CPU from them.
const misses = 32

// arrivals takes threads that have arrived or ended, and gives the others.
func arrivals(pending []*Thread) (left []*Thread, err error) {
	missed := make([]*Thread, 0, misses)
	for i, t := range pending {
		done, err := t.arrive()
		if err != nil {
			return nil, fmt.Errorf("thread %d: %w", t.TID, err)
		}
		if !done {
			missed = append(missed, t)
		}
		if len(missed) == misses {
			n := copy(pending, pending[i+1:])
			return append(pending[:n], missed...), nil
		}
	}
	return missed, nil
}

// allAsleep says whether threads, one at least, sleep uninterruptibly.
func (s *Stopped) allAsleep(pending []*Thread) bool {
	if len(pending) > askedAtOnce {
		return false
	}
	for _, t := range pending {
		if st, err := t.Status(); err != nil || st.State != "D" {
			return false
		}
	}
	return len(pending) > 0
}

// until is when to look at the threads that have not arrived, and when to give up, if none arrives
// from now on.
func (s *Stopped) until(d time.Duration, last time.Time) (look, deadline time.Time) {
	now := time.Now()
	deadline = now.Add(d)
	if deadline.After(last) {
		deadline = last
	}
	return now.Add(parkAfter), deadline
}

// withoutWorkers drops threads that never run the program: those that have ended and stay
// as zombies, and the kernel's own in a user process (io_uring).
func (s *Stopped) withoutWorkers(pending []*Thread) (left []*Thread) {
	for _, t := range pending {
		st, err := s.p.statusIn(t.g, t.TID)
		if err != nil || st.State == "Z" || st.State == "X" {
			continue
		}
		if worker, err := s.p.worker(t.g, t.TID); err != nil || worker {
			continue
		}
		left = append(left, t)
	}
	return left
}

const stuckNamed = 4

func (s *Stopped) stuck(pending []*Thread, d time.Duration) error {
	e := &StuckError{PID: s.p.pid, Deadline: d}
	for _, t := range pending {
		if len(e.Threads) == stuckNamed {
			e.More = len(pending) - stuckNamed
			break
		}
		e.Threads = append(e.Threads, s.p.describe(t.g, t.TID))
	}
	return e
}

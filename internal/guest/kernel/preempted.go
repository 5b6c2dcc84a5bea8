package kernel

import (
	"encoding/binary"
	"strings"

	"kprobes.dev/kprobes/internal/interval"
)

// Interrupted is Saved for who wants to know whether a thread will go on inside given code that
// never sleeps. It leaves out threads that wait by their own will: such a thread has called
// schedule, and none of the calls that led there was interrupted. What looks like an address of
// that code on its stack is an old word that later calls have not written over, and may stay
// there for as long as the thread sleeps. What has called __schedule tells: preempt_schedule and
// its kin do it for a thread that was preempted. Where that can not be found out, a word of
// theirs on the stack is enough.
func (k *Kernel) Interrupted(sps []uint64, f func(t *Task, word uint64)) error {
	var waiting []Task
	err := k.stacks(sps, func(t Task) error {
		waiting = append(waiting, t)
		return nil
	}, k.reads(f))
	if err != nil {
		return err
	}
	at, known := k.switchedAt(waiting)
	for _, t := range waiting {
		asleep, err := k.calledSchedule(t, at, known)
		if err == nil && !asleep {
			err = k.stackOf(&t, f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// calledSchedule says whether a thread waits by its own will. at is how far above its stack
// pointer the return address of its call of __schedule stands, if that is known.
func (k *Kernel) calledSchedule(t Task, at uint64, known bool) (asleep bool, err error) {
	if known {
		ret, err := k.u64(t.SP + at)
		if err == nil && k.behindSchedule(ret) {
			return !interval.AnyContains(k.preempting(), ret), nil
		}
	}
	asleep = true
	err = k.words(inUse(t.SP, t.Stack), func(w uint64) { asleep = asleep && !interval.AnyContains(k.preempting(), w) })
	return asleep, err
}

// switchFrame is more than __schedule and what it calls to switch threads have on the stack.
const switchFrame = 1024

// switchVotes are enough threads for what they have in common to be so for good.
const switchVotes = 16

// switchedAt finds out how far above the saved stack pointer of a thread that does not run the
// return address of its call of __schedule stands. It is the same for all that have run before:
// the distance at which most of them have such an address, an old one or not. Not known: no
// symbol, or fewer than three such threads.
func (k *Kernel) switchedAt(waiting []Task) (at uint64, known bool) {
	k.switchedMu.Lock()
	defer k.switchedMu.Unlock()
	if k.switched != 0 {
		return k.switched, true
	}
	votes := map[uint64]int{}
	for _, t := range waiting {
		k.vote(t, votes)
	}
	most := 0
	for off, n := range votes {
		if n > most || n == most && off < at {
			at, most = off, n
		}
	}
	if most < 3 || most*2 <= len(waiting) {
		return 0, false
	}
	if most >= switchVotes {
		k.switched = at
	}
	return at, true
}

// vote counts the distances at which a thread has an address behind a call of __schedule.
func (k *Kernel) vote(t Task, votes map[uint64]int) {
	if !t.Stack.Contains(t.SP) {
		return
	}
	at := uint64(0)
	_ = k.words(interval.Range{Start: (t.SP + 7) &^ 7, End: min(t.SP+switchFrame, t.Stack.End)}, func(w uint64) { // what could be read counts
		if k.behindSchedule(w) {
			votes[at]++
		}
		at += 8
	})
}

// behindSchedule says whether an address is that behind a call of __schedule.
func (k *Kernel) behindSchedule(a uint64) bool { return k.InText(a) && k.callsSchedule(a-5) }

// callsSchedule says whether a call of __schedule stands at an address: E8 and a displacement.
func (k *Kernel) callsSchedule(at uint64) bool {
	to, ok := k.Addr("__schedule")
	var b [5]byte
	return ok && k.Read(at, b[:]) == nil && b[0] == 0xe8 && at+5+uint64(int64(int32(binary.LittleEndian.Uint32(b[1:])))) == to
}

// preempting lists the code from which threads are preempted; none in a kernel that is built
// without preemption.
func (k *Kernel) preempting() []interval.Range {
	k.preemptOnce.Do(func() {
		for i, s := range k.syms {
			if !strings.HasPrefix(s.Name, "preempt_schedule") || i+1 == len(k.syms) || !k.InText(s.Addr) {
				continue
			}
			end := s.Addr
			for j := i + 1; j < len(k.syms) && end == s.Addr; j++ {
				end = k.syms[j].Addr
			}
			k.preempt = append(k.preempt, interval.Range{Start: s.Addr, End: end})
		}
	})
	return k.preempt
}

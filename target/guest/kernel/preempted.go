package kernel

import "strings"

// Interrupted is Saved for who wants to know whether a thread will go on inside given code that
// never sleeps. It leaves out threads that wait by their own will: such a thread has called
// schedule, and none of the calls that led there was interrupted. What looks like an address of
// that code on its stack is an old word that later calls have not written over, and may stay
// there for as long as the thread sleeps. A thread that was preempted has returned to
// preempt_schedule and its kin from the scheduler's view: a word of theirs is on its stack.
func (k *Kernel) Interrupted(rsp []uint64, f func(word uint64)) error {
	preempting := k.preempting()
	return k.saved(rsp, func(t Task) error {
		asleep := true
		err := k.stack(t.SP, t.Stack, func(w uint64) { asleep = asleep && !anyContains(preempting, w) })
		if err != nil || asleep {
			return err
		}
		return k.stack(t.SP, t.Stack, f)
	}, f)
}

// preempting lists the code from which threads are preempted; none in a kernel that is built
// without preemption.
func (k *Kernel) preempting() []Range {
	k.preemptOnce.Do(func() {
		for i, s := range k.syms {
			if !strings.HasPrefix(s.Name, "preempt_schedule") || i+1 == len(k.syms) || !k.InText(s.Addr) {
				continue
			}
			end := s.Addr
			for j := i + 1; j < len(k.syms) && end == s.Addr; j++ {
				end = k.syms[j].Addr
			}
			k.preempt = append(k.preempt, Range{s.Addr, end})
		}
	})
	return k.preempt
}

func anyContains(rs []Range, a uint64) bool {
	for _, r := range rs {
		if r.Contains(a) {
			return true
		}
	}
	return false
}

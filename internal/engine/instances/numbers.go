package instances

import (
	"slices"
	"time"

	"kprobes.dev/kprobes/internal/target"
)

// Numbers are the event numbers of a ring whose events are gone, until they are used again. A number is free when no
// instance has it and no thread can count for it.
//
//	         ┌─► held ──┐
//	         │          ▼
//	in use ──┼─────► cooling ──► free ──► in use
//	         │                     ▲
//	         └─► counted ──────────┘
//
// Precondition of all methods: one goroutine at a time.
type Numbers struct {
	t       Target
	idle    func() bool  // no thread is in code that was taken out; nil: no thread ever is
	recycle func(id int) // see NewNumbers

	held    []int // of return probes: an instance may have the number
	counted []int // of events that only counted: what they have counted is read by the number
	cooling []int // a thread may still be in code that counts for the number
	free    []int // the one that is longest free comes first
}

// NewNumbers makes the list. It has none yet. recycle is called before a number is used again that Count was given.
func NewNumbers(t Target, recycle func(id int)) *Numbers {
	return &Numbers{t: t, idle: t.Capabilities().Idle, recycle: recycle}
}

// Free makes numbers free for which no code was put into the target.
func (n *Numbers) Free(ids ...int) { n.free = append(n.free, ids...) }

// Cool makes numbers free as soon as no thread can count for them. Precondition: no instance has them.
func (n *Numbers) Cool(ids ...int) {
	if len(ids) == 0 {
		return
	}
	n.cooling = append(n.cooling, ids...)
	if n.quiescent() {
		n.free, n.cooling = append(n.free, n.cooling...), nil
	}
}

// Hold takes a number that instances may have, until Vacate.
func (n *Numbers) Hold(id int) { n.held = append(n.held, id) }

// Vacate notes that no instance has the numbers any more. Numbers that are not held stay as they are.
func (n *Numbers) Vacate(ids ...int) {
	gone := map[int]bool{}
	for _, id := range ids {
		gone[id] = true
	}
	var vacant []int
	n.held = slices.DeleteFunc(n.held, func(id int) bool {
		if gone[id] {
			vacant = append(vacant, id)
		}
		return gone[id]
	})
	n.Cool(vacant...)
}

// short says whether no number is free, and some are held.
func (n *Numbers) short() bool { return len(n.free) == 0 && len(n.held) > 0 }

// Count takes numbers of events that only counted. They are used again last, since their counts are read until then.
func (n *Numbers) Count(ids ...int) { n.counted = append(n.counted, ids...) }

// Take gives a number to use again; false: there is none. A thread that may still count for one gets some time.
func (n *Numbers) Take() (id int, ok bool) {
	if len(n.free) == 0 && len(n.cooling) > 0 && n.waitQuiescent() {
		n.free, n.cooling = n.cooling, nil
	}
	if len(n.free) == 0 && len(n.counted) > 0 && n.waitQuiescent() {
		for _, id := range n.counted {
			n.recycle(id)
		}
		n.free, n.counted = n.counted, nil
	}
	if len(n.free) == 0 {
		return 0, false
	}
	id, n.free = n.free[0], n.free[1:]
	return id, true
}

// quiescent says whether no thread is in code that was taken out.
func (n *Numbers) quiescent() bool { return n.idle == nil || n.idle() }

// quiescentTries is how often the target looks for threads in code that was taken out.
const quiescentTries = 10

// waitQuiescent says whether all threads leave the code that was taken out, within some 50 milliseconds. The target learns
// that they have only when it looks for threads, which it does with each change.
func (n *Numbers) waitQuiescent() bool {
	for try := range quiescentTries {
		if n.quiescent() {
			return true
		}
		time.Sleep(time.Duration(try) * time.Millisecond)
		if n.t.Commit(&target.Change{}) != nil {
			return false
		}
	}
	return n.quiescent()
}

// Package handover is how a handler gives values to the rest of a program: a buffer that no
// one waits for and that takes no lock. A handler runs with the thread that hit in the middle
// of any function, be it the allocator, the scheduler or a channel's send: it may not print,
// wait, or take a lock that the interrupted code may hold (docs/HANDLERS.md). So it copies
// what is wanted, and a goroutine prints it later.
//
// Where the probed function is one's own, a channel does as well, sent to in a select with a
// default: see samples/jprobe_example.
package handover

import "sync/atomic"

// Buffer is a bounded queue for any number of writers and readers. Each slot's turn says who
// may use it next: the writer of position turn, then, one more, its reader.
type Buffer[T any] struct {
	slots   []slot[T]
	in, out atomic.Uint64
	dropped atomic.Uint64
}

type slot[T any] struct {
	turn  atomic.Uint64
	value T
}

// New makes a buffer for n values, at least 2. All its memory is there from the start: a
// handler must not allocate.
func New[T any](n int) *Buffer[T] {
	b := &Buffer[T]{slots: make([]slot[T], max(n, 2))}
	for i := range b.slots {
		b.slots[i].turn.Store(uint64(i))
	}
	return b
}

// Put adds a value, or drops and counts it if the buffer is full. It may be called by a
// handler that is atomic, on any thread.
func (b *Buffer[T]) Put(v T) {
	for {
		at := b.in.Load()
		s := &b.slots[at%uint64(len(b.slots))]
		switch turn := s.turn.Load(); {
		case turn < at: // not yet read since the last lap
			b.dropped.Add(1)
			return
		case turn == at && b.in.CompareAndSwap(at, at+1):
			s.value = v
			s.turn.Store(at + 1)
			return
		}
	}
}

// Get takes the oldest value; false: there is none now.
func (b *Buffer[T]) Get() (v T, ok bool) {
	for {
		at := b.out.Load()
		s := &b.slots[at%uint64(len(b.slots))]
		switch turn := s.turn.Load(); {
		case turn <= at: // not yet written
			return v, false
		case turn == at+1 && b.out.CompareAndSwap(at, at+1):
			v = s.value
			s.turn.Store(at + uint64(len(b.slots)))
			return v, true
		}
	}
}

// Dropped is the number of values for which there was no room.
func (b *Buffer[T]) Dropped() uint64 { return b.dropped.Load() }

package trace

import (
	"iter"
	"math"
	"sync"

	"kprobes.dev/kprobes/internal/hit"
)

// buffer keeps the newest hits of each CPU, as the kernel's trace buffer does: when a CPU's part is full the oldest are dropped or,
// without overwrite, the new one. Hits can be looked at, which changes nothing, or taken out, each by one reader. It may be used by
// several goroutines.
type buffer struct {
	mu        sync.Mutex
	queues    []*queue    // by CPU; nil: it had none
	size      int         // bytes that each keeps
	sizes     map[int]int // of CPUs that keep another number
	overwrite bool
	added     uint64        // hits: the order in which they came
	more      chan struct{} // closed when hits came; nil if nobody waits
}

// AllCPUs stands for all CPUs where one is asked for.
const AllCPUs = -1

// DefaultBuffer is how much a trace buffer keeps of each CPU, in bytes, where nobody says: as the kernel's (Linux 6.18).
const DefaultBuffer = 1410 << 10

// newBuffer makes a buffer of so many bytes for each CPU; 0: DefaultBuffer.
func newBuffer(size int) *buffer {
	if size <= 0 {
		size = DefaultBuffer
	}
	return &buffer{size: size, sizes: map[int]int{}, overwrite: true}
}

// of is the queue of a CPU, which is made.
func (b *buffer) of(cpu int) *queue {
	for len(b.queues) <= cpu {
		b.queues = append(b.queues, nil)
	}
	if b.queues[cpu] == nil {
		b.queues[cpu] = &queue{cpu: cpu}
	}
	return b.queues[cpu]
}

// some are the queues of a CPU, or of all.
func (b *buffer) some(cpu int) []*queue {
	switch {
	case cpu == AllCPUs:
		return b.queues
	case cpu < 0, cpu >= len(b.queues):
		return nil
	}
	return b.queues[cpu : cpu+1]
}

// Add copies a hit into the buffer. Readers that wait are woken by Wake.
func (b *buffer) Add(h *hit.Hit) {
	b.mu.Lock()
	cpu := max(h.CPU, 0)
	b.added++
	b.of(cpu).add(h, b.added, b.sizeOf(cpu), b.overwrite)
	b.mu.Unlock()
}

// SetOverwrite says whether a hit that finds its CPU's part full pushes out the oldest ones.
func (b *buffer) SetOverwrite(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.overwrite = on
}

// Size is how many bytes are kept of a CPU. Of AllCPUs: of each; 0: not of all as many.
func (b *buffer) Size(cpu int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cpu == AllCPUs && len(b.sizes) > 0 {
		return 0
	}
	return b.sizeOf(cpu)
}

func (b *buffer) sizeOf(cpu int) int {
	if len(b.sizes) > 0 {
		if n, ok := b.sizes[cpu]; ok {
			return n
		}
	}
	return b.size
}

// SetSize sets it; what is too much of the oldest goes.
func (b *buffer) SetSize(cpu, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case cpu == AllCPUs:
		b.size = size
		clear(b.sizes)
	case size == b.size:
		delete(b.sizes, cpu)
	default:
		b.sizes[cpu] = size
	}
	for _, q := range b.some(cpu) {
		if q != nil {
			q.trim(size)
		}
	}
}

// Wake wakes the readers that wait for hits, if there are any.
func (b *buffer) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q, _ := b.next(b.queues); q != nil {
		b.rouse()
	}
}

// Rouse wakes the readers that wait, whether there are hits or not.
func (b *buffer) Rouse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rouse()
}

func (b *buffer) rouse() {
	if b.more != nil {
		close(b.more)
		b.more = nil
	}
}

// Clear empties what is kept of a CPU, or of all; what was lost is forgotten too.
func (b *buffer) Clear(cpu int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	some := b.some(cpu)
	for i := range some {
		some[i] = nil
	}
}

// Swap exchanges what two buffers keep.
func (b *buffer) Swap(o *buffer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	b.queues, o.queues = o.queues, b.queues
}

// Look gives the hits of a CPU, or of all, that are there now, in the order in which they came, oldest first, to be ranged over once, and
// how many those and others are.
func (b *buffer) Look(cpu int) (sum bufferStats, hits iter.Seq[*hit.Hit]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var looks [][]run
	for _, q := range b.some(cpu) {
		if q != nil {
			sum.add(q.stats())
			looks = append(looks, q.look())
		}
	}
	return sum, merged(looks)
}

// Take takes the oldest hits of a CPU, or of all, out, if there are any: such as count for so many bytes, and one at least. No others were lost but before
// the first. Who has read a run calls done. Else more is closed when some come.
func (b *buffer) Take(cpu, bytes int) (runs []run, more <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	qs := b.some(cpu)
	for {
		q, before := b.next(qs)
		if q == nil {
			break
		}
		if h, lost := q.oldest(); runs != nil && (h.size() > bytes || lost > 0) {
			break
		}
		r, size := q.take(before, bytes)
		runs = append(runs, r)
		bytes -= size
	}
	if runs == nil {
		return nil, b.waits()
	}
	return runs, nil
}

// RingLost counts hits of a CPU that found the target's ring full, behind all that were added.
func (b *buffer) RingLost(cpu int, hits uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.of(cpu)
	q.ringLost += hits
	q.drop(hits)
}

// Waiting gives what is closed when hits of a CPU, or of any, come; nil: some are there and, of a CPU, take so many percent of what is kept.
func (b *buffer) Waiting(cpu, percent int) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	qs := b.some(cpu)
	if q, _ := b.next(qs); q == nil || cpu != AllCPUs && qs[0].bytes+PageSize < b.sizeOf(cpu)/100*percent { // a page that is not full counts, as the kernel's
		return b.waits()
	}
	return nil
}

func (b *buffer) waits() <-chan struct{} {
	if b.more == nil {
		b.more = make(chan struct{})
	}
	return b.more
}

// next is the queue with the oldest hit, nil: there is none, and before which hits of others come.
func (*buffer) next(qs []*queue) (first *queue, others uint64) {
	least := uint64(math.MaxUint64)
	others = least
	for _, q := range qs {
		if q == nil || q.empty() {
			continue
		}
		if h, _ := q.oldest(); h.came < least {
			first, others, least = q, least, h.came
		} else {
			others = min(others, h.came)
		}
	}
	return first, others
}

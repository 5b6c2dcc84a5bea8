package trace

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"kprobes.dev/kprobes/internal/hit"
)

// Buffer keeps the newest hits, as the kernel's trace buffer does in its overwrite mode:
// when it is full the oldest are dropped. Hits can be looked at, which changes nothing, or
// taken out, each by one reader. It may be used by several goroutines; one of them adds.
type Buffer struct {
	max int // bytes

	mu      sync.Mutex
	pages   []*page
	bytes   int
	first   int // of pages[0]: hits that were taken
	written uint64
	lost    map[int]uint64 // by CPU: dropped since the last Take, and taken by nobody
	more    chan struct{}  // closed when hits came; nil if nobody waits
}

// page is a run of hits with the bytes of their records. What was written to it is never
// changed, so that readers need no lock for what they have been given.
type page struct {
	hits []hit.Hit
	recs []byte
}

// A page is full when its hits or its bytes are.
const (
	pageHits = 512
	pageRecs = 32 << 10
	hitBytes = 112 // a hit.Hit takes
	// DefaultBuffer is the size of a Buffer, in bytes, where none is asked for.
	DefaultBuffer = 4 << 20
	minBuffer     = 4 * (pageHits*hitBytes + pageRecs)
)

// NewBuffer makes a buffer of about so many bytes; 0: DefaultBuffer. The least is some
// 300 KB.
func NewBuffer(bytes int) *Buffer {
	if bytes <= 0 {
		bytes = DefaultBuffer
	}
	return &Buffer{max: max(bytes, minBuffer), lost: map[int]uint64{}}
}

// Add copies a hit into the buffer. Readers that wait are woken by Wake.
func (b *Buffer) Add(h *hit.Hit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.room(len(h.Rec))
	n := len(p.recs)
	p.recs = append(p.recs, h.Rec...)
	p.hits = append(p.hits, *h)
	p.hits[len(p.hits)-1].Rec = p.recs[n:len(p.recs):len(p.recs)]
	b.bytes += hitBytes + len(h.Rec)
	b.written++
	for b.bytes > b.max && len(b.pages) > 1 {
		b.drop()
	}
}

// room gives a page that takes a record of so many bytes without moving what it has.
func (b *Buffer) room(n int) *page {
	if k := len(b.pages); k > 0 {
		if p := b.pages[k-1]; len(p.hits) < pageHits && len(p.recs)+n <= cap(p.recs) {
			return p
		}
	}
	p := &page{hits: make([]hit.Hit, 0, pageHits), recs: make([]byte, 0, max(pageRecs, n))}
	b.pages = append(b.pages, p)
	return p
}

// drop forgets the oldest page.
func (b *Buffer) drop() {
	p := b.pages[0]
	for i := b.first; i < len(p.hits); i++ {
		b.lost[p.hits[i].CPU]++
	}
	b.forget()
}

// forget takes the oldest page out.
func (b *Buffer) forget() {
	for i := range b.pages[0].hits {
		b.bytes -= hitBytes + len(b.pages[0].hits[i].Rec)
	}
	b.pages[0] = nil
	b.pages, b.first = b.pages[1:], 0
}

// Wake wakes the readers that wait for hits, if there are any.
func (b *Buffer) Wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pages) > 0 {
		b.wakeLocked()
	}
}

// rouse wakes the readers that wait, whether there are hits or not.
func (b *Buffer) rouse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wakeLocked()
}

func (b *Buffer) wakeLocked() {
	if b.more != nil {
		close(b.more)
		b.more = nil
	}
}

// Clear empties the buffer; what was lost is forgotten too.
func (b *Buffer) Clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pages, b.bytes, b.first, b.written = nil, 0, 0, 0
	clear(b.lost)
}

// Hits gives the hits that are there, oldest first, and how many were written since Clear.
func (b *Buffer) Hits() (runs [][]hit.Hit, written uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, p := range b.pages {
		from := 0
		if i == 0 {
			from = b.first
		}
		runs = append(runs, p.hits[from:len(p.hits):len(p.hits)])
	}
	return runs, b.written
}

// Take takes hits out: some of the oldest, at least one. It waits until there are any or
// ctx ends, whose error it gives then. lost tells, by CPU, what was dropped before them.
func (b *Buffer) Take(ctx context.Context) (hits []hit.Hit, lost []hit.Loss, err error) {
	for {
		hits, lost, more := b.take(pageHits)
		if len(hits) > 0 {
			return hits, lost, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-more:
		}
	}
}

// take takes up to most hits if there are any, else it gives a channel that is closed when some come.
func (b *Buffer) take(most int) ([]hit.Hit, []hit.Loss, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.pages) > 0 {
		p, last := b.pages[0], len(b.pages) == 1
		end := min(len(p.hits), b.first+most)
		hits := p.hits[b.first:end:end]
		b.first = end
		if !last && end == len(p.hits) {
			b.forget()
		}
		if len(hits) > 0 {
			return hits, b.losses(), nil
		}
		if last {
			break
		}
	}
	return nil, nil, b.moreLocked()
}

// waiting gives what is closed when hits come; nil: some are there.
func (b *Buffer) waiting() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, p := range b.pages {
		if i > 0 || b.first < len(p.hits) {
			return nil
		}
	}
	return b.moreLocked()
}

func (b *Buffer) moreLocked() <-chan struct{} {
	if b.more == nil {
		b.more = make(chan struct{})
	}
	return b.more
}

// losses gives what was lost, and starts anew.
func (b *Buffer) losses() []hit.Loss {
	var out []hit.Loss
	for _, cpu := range slices.SortedFunc(maps.Keys(b.lost), cmp.Compare[int]) {
		out = append(out, hit.Loss{CPU: cpu, Hits: b.lost[cpu]})
	}
	clear(b.lost)
	return out
}

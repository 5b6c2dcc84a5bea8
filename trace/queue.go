package trace

import (
	"iter"
	"slices"

	"kprobes.dev/kprobes/internal/hit"
)

// queue keeps the hits of one CPU.
type queue struct {
	cpu   int
	pages []*page
	bytes int // that the pages' hits count for
	first int // of pages[0]: hits that were taken

	written, overrun, dropped, ringLost, read uint64

	lost   uint64  // since the last hit was taken, before the first one that is kept
	behind uint64  // since the last hit was kept
	old    []*page // that are no part of it any more, and may be used again when nobody reads them
}

// maxOld bounds the pages that are kept to be used again.
const maxOld = 256

// bufferStats is what the file stats of a CPU tells.
type bufferStats struct {
	Entries  uint64 // that are kept
	Written  uint64 // since the buffer was cleared
	Overrun  uint64 // of these: pushed out, and read by nobody
	Dropped  uint64 // not taken: the target's ring was full, or the buffer, which is not overwritten
	RingLost uint64 // of these: the target's ring was full
	Read     uint64 // taken out
	Bytes    uint64
	OldestNs uint64 // the time of the oldest entry; 0: there is none
}

func (s *bufferStats) add(o bufferStats) {
	s.Entries += o.Entries
	s.Written += o.Written
	s.Overrun += o.Overrun
	s.Dropped += o.Dropped
	s.RingLost += o.RingLost
	s.Read += o.Read
	s.Bytes += o.Bytes
	if s.OldestNs == 0 || o.OldestNs != 0 && o.OldestNs < s.OldestNs {
		s.OldestNs = o.OldestNs
	}
}

// add copies a hit into the queue, which keeps so many bytes.
func (q *queue) add(h *hit.Hit, came uint64, size int, overwrite bool) {
	n := sizeOf(h, q.behind)
	if !overwrite && q.bytes+n > size {
		q.drop(1)
		return
	}
	if k := len(q.pages); k == 0 || !q.pages[k-1].add(h, came, q.behind) {
		q.open(len(h.Rec)).add(h, came, q.behind)
	}
	q.behind = 0
	q.bytes += n
	q.written++
	if q.bytes > size {
		q.trim(size)
	}
}

// drop counts hits that came, and are not there.
func (q *queue) drop(hits uint64) {
	q.dropped += hits
	q.behind += hits
}

// trim drops the oldest pages until no more than so many bytes are kept, or one page.
func (q *queue) trim(size int) {
	for q.bytes > size && len(q.pages) > 1 {
		n := uint64(q.pages[0].n - q.first)
		q.overrun += n
		q.lost += n
		q.forget()
	}
}

// open begins a page, with room for a record of so many bytes, and as many more as it can have hits if they are like those of the page before.
func (q *queue) open(bytes int) *page {
	each := bytes
	if k := len(q.pages); k > 0 && q.pages[k-1].n > 0 {
		each = max(each, q.pages[k-1].used/q.pages[k-1].n)
	}
	p := q.unread(max(bytes, min(each*pageHits, pageRecs)))
	q.pages = append(q.pages, p)
	return p
}

// forget takes the oldest page out.
func (q *queue) forget() {
	p := q.pages[0]
	for i := q.first; i < p.n; i++ {
		q.bytes -= p.heads[i].size()
		q.lost += p.lost(i)
	}
	q.pages[0] = nil
	q.pages, q.first = q.pages[1:], 0
	if !p.looked && len(q.old) < maxOld {
		q.old = append(q.old, p)
	}
}

// unread gives an empty page with room for so many bytes of records: one that was used before, if nobody reads it.
func (q *queue) unread(bytes int) *page {
	for i, p := range q.old {
		if p.readers.Load() > 0 {
			continue
		}
		q.old = slices.Delete(q.old, i, i+1)
		if len(p.recs) < bytes {
			break
		}
		p.reset()
		return p
	}
	return newPage(bytes)
}

func (q *queue) empty() bool {
	return len(q.pages) == 0 || len(q.pages) == 1 && q.first == q.pages[0].n
}

// oldest is the next hit to be taken, with how many were lost before it. Precondition: not empty.
func (q *queue) oldest() (h *head, lost uint64) {
	p, i := q.pages[0], q.first
	if i == p.n {
		p, i = q.pages[1], 0
	}
	return &p.heads[i], q.lost + p.lost(i)
}

// take takes hits out of the oldest page: those that came before another, and none behind which others were lost, such as count for so many
// bytes, and one at least. Precondition: not empty.
func (q *queue) take(before uint64, bytes int) (r run, size int) {
	if q.first == q.pages[0].n {
		q.forget()
	}
	p := q.pages[0]
	r = run{page: p, cpu: q.cpu, from: q.first, to: q.first}
	r.lost, q.lost = q.lost+p.lost(r.from), 0
	for r.to < p.n && (size == 0 || size+p.heads[r.to].size() <= bytes && p.heads[r.to].came < before && p.lost(r.to) == 0) {
		size += p.heads[r.to].size()
		r.to++
	}
	p.readers.Add(1)
	q.first = r.to
	q.bytes -= size
	q.read += uint64(r.to - r.from)
	return r, size
}

func (q *queue) stats() bufferStats {
	s := bufferStats{Written: q.written, Overrun: q.overrun, Dropped: q.dropped, RingLost: q.ringLost, Read: q.read, Bytes: uint64(q.bytes)}
	for i, p := range q.pages {
		s.Entries += uint64(p.n)
		if i == 0 {
			s.Entries -= uint64(q.first)
		}
	}
	if !q.empty() {
		h, _ := q.oldest()
		s.OldestNs = h.nanos
	}
	return s
}

// look is what a queue has now.
func (q *queue) look() (runs []run) {
	for i, p := range q.pages {
		r := run{page: p, cpu: q.cpu, to: p.n}
		if i == 0 {
			r.from = q.first
		}
		if r.from < r.to {
			p.looked = true
			runs = append(runs, r)
		}
	}
	return runs
}

// merged gives the hits of several queues' looks in the order in which they came. Their times tell that of one CPU only: clocks of a guest's
// may differ.
func merged(looks [][]run) iter.Seq[*hit.Hit] {
	return func(yield func(*hit.Hit) bool) {
		var h hit.Hit
		for {
			var first *[]run
			var came uint64
			for i := range looks {
				if l := &looks[i]; len(*l) > 0 {
					if c := (*l)[0].heads[(*l)[0].from].came; first == nil || c < came {
						first, came = l, c
					}
				}
			}
			if first == nil {
				return
			}
			r := &(*first)[0]
			h = r.hit(r.from, r.cpu)
			if r.from++; r.from == r.to {
				*first = (*first)[1:]
			}
			if !yield(&h) {
				return
			}
		}
	}
}

package trace

import (
	"iter"

	"kprobes.dev/kprobes/internal/hit"
)

// queue keeps the hits of one CPU.
type queue struct {
	cpu   int
	pages []*page
	bytes int // that the pages' hits take
	first int // of pages[0]: hits that were taken

	written, overrun, dropped, read uint64
	lost                            uint64 // dropped since the last hit was taken
}

// page is a run of hits with the bytes of their records. What was written to it is never
// changed, so that readers need no lock for what they have been given.
type page struct {
	hits []hit.Hit
	came []uint64 // as many: the order among those of all CPUs
	recs []byte
}

// A page is full when its hits or its bytes are.
const (
	pageHits = 64
	pageRecs = 4 << 10
	hitBytes = 120 // a hit.Hit takes, with its place in the order
)

// bufferStats is what the file stats of a CPU tells.
type bufferStats struct {
	Entries  uint64 // that are kept
	Written  uint64 // since the buffer was cleared
	Overrun  uint64 // of these: pushed out, and read by nobody
	Dropped  uint64 // not taken, since the buffer was full and is not overwritten
	Read     uint64 // taken out
	Bytes    uint64
	OldestNs uint64 // the time of the oldest entry; 0: there is none
}

func (s *bufferStats) add(o bufferStats) {
	s.Entries += o.Entries
	s.Written += o.Written
	s.Overrun += o.Overrun
	s.Dropped += o.Dropped
	s.Read += o.Read
	s.Bytes += o.Bytes
	if s.OldestNs == 0 || o.OldestNs != 0 && o.OldestNs < s.OldestNs {
		s.OldestNs = o.OldestNs
	}
}

// add copies a hit into the queue, which keeps so many bytes.
func (q *queue) add(h *hit.Hit, came uint64, size int, overwrite bool) {
	n := hitBytes + len(h.Rec)
	if !overwrite && q.bytes+n > size {
		q.dropped++
		q.lost++
		return
	}
	p := q.room(len(h.Rec))
	at := len(p.recs)
	p.recs = append(p.recs, h.Rec...)
	p.hits, p.came = append(p.hits, *h), append(p.came, came)
	p.hits[len(p.hits)-1].Rec = p.recs[at:len(p.recs):len(p.recs)]
	q.bytes += n
	q.written++
	q.trim(size)
}

// trim drops the oldest pages until no more than so many bytes are kept, or one page.
func (q *queue) trim(size int) {
	for q.bytes > size && len(q.pages) > 1 {
		n := uint64(len(q.pages[0].hits) - q.first)
		q.overrun += n
		q.lost += n
		q.forget()
	}
}

// room gives a page that takes a record of so many bytes without moving what it has.
func (q *queue) room(n int) *page {
	if k := len(q.pages); k > 0 {
		if p := q.pages[k-1]; len(p.hits) < pageHits && len(p.recs)+n <= cap(p.recs) {
			return p
		}
	}
	p := &page{hits: make([]hit.Hit, 0, pageHits), came: make([]uint64, 0, pageHits), recs: make([]byte, 0, max(pageRecs, n))}
	q.pages = append(q.pages, p)
	return p
}

// forget takes the oldest page out.
func (q *queue) forget() {
	p := q.pages[0]
	for i := q.first; i < len(p.hits); i++ {
		q.bytes -= hitBytes + len(p.hits[i].Rec)
	}
	q.pages[0] = nil
	q.pages, q.first = q.pages[1:], 0
}

func (q *queue) empty() bool {
	return len(q.pages) == 0 || len(q.pages) == 1 && q.first == len(q.pages[0].hits)
}

// oldest is the next hit to be taken. Precondition: not empty.
func (q *queue) oldest() *hit.Hit {
	if q.first == len(q.pages[0].hits) {
		return &q.pages[1].hits[0]
	}
	return &q.pages[0].hits[q.first]
}

// oldestCame is its place in the order of all CPUs' hits. Precondition: not empty.
func (q *queue) oldestCame() uint64 {
	if q.first == len(q.pages[0].hits) {
		return q.pages[1].came[0]
	}
	return q.pages[0].came[q.first]
}

// take takes the oldest hit out. Precondition: not empty.
func (q *queue) take() hit.Hit {
	if q.first == len(q.pages[0].hits) {
		q.forget()
	}
	h := q.pages[0].hits[q.first]
	q.first++
	q.bytes -= hitBytes + len(h.Rec)
	q.read++
	return h
}

// losses gives how many hits were lost since the last was taken, and starts anew.
func (q *queue) losses() uint64 {
	n := q.lost
	q.lost = 0
	return n
}

func (q *queue) stats() bufferStats {
	s := bufferStats{Written: q.written, Overrun: q.overrun, Dropped: q.dropped, Read: q.read, Bytes: uint64(q.bytes)}
	for i, p := range q.pages {
		s.Entries += uint64(len(p.hits))
		if i == 0 {
			s.Entries -= uint64(q.first)
		}
	}
	if !q.empty() {
		s.OldestNs = q.oldest().Nanos
	}
	return s
}

// look is what a queue had at a moment.
type look struct {
	runs [][]hit.Hit
	came [][]uint64
}

func (q *queue) look() *look {
	l := &look{}
	for i, p := range q.pages {
		from := 0
		if i == 0 {
			from = q.first
		}
		if from < len(p.hits) {
			l.runs = append(l.runs, p.hits[from:len(p.hits):len(p.hits)])
			l.came = append(l.came, p.came[from:len(p.came):len(p.came)])
		}
	}
	return l
}

// merged gives the hits of looks in the order in which they came. Their times tell that of one CPU only: clocks of a guest's may differ.
func merged(looks []*look) iter.Seq[*hit.Hit] {
	return func(yield func(*hit.Hit) bool) {
		for {
			var first *look
			for _, l := range looks {
				if len(l.runs) > 0 && (first == nil || l.came[0][0] < first.came[0][0]) {
					first = l
				}
			}
			if first == nil {
				return
			}
			h := &first.runs[0][0]
			first.runs[0], first.came[0] = first.runs[0][1:], first.came[0][1:]
			if len(first.runs[0]) == 0 {
				first.runs, first.came = first.runs[1:], first.came[1:]
			}
			if !yield(h) {
				return
			}
		}
	}
}

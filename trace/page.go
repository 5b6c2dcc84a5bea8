package trace

import (
	"sync/atomic"

	"kprobes.dev/kprobes/internal/hit"
)

// page is a run of hits of one CPU, with their records. What was written to it is never changed, and stays where it is, so that readers need
// no lock for what they have been given. What the garbage collector must look at comes first.
type page struct {
	events [fewEvents]*hit.Event
	others *[pageHits]*hit.Event // those behind them; nil: there are none
	rare   *[pageHits]rare       // of hits that have any; nil: none has
	recs   []byte                // as many as there is room for
	named  int                   // events that are set
	n      int                   // hits
	used   int                   // of recs

	readers atomic.Int32 // runs that are read (run.done)
	looked  bool         // Look has given it, and nobody knows for how long

	heads [pageHits]head
}

// reset makes a page empty, that nobody reads.
func (p *page) reset() {
	clear(p.events[:min(p.named, fewEvents)])
	p.others, p.rare = nil, nil
	p.named, p.n, p.used = 0, 0, 0
}

// A page is full when its hits or the bytes of its records are.
const (
	pageHits  = 64
	fewEvents = 8
	pageRecs  = 8 << 10 // bytes; a longer record has a page of its own
	headBytes = 48      // of a head
	rareBytes = 56      // of a rare
)

// head is what a hit has beside its record. It holds no pointers: a buffer has millions of hits.
type head struct {
	came, nanos  uint64 // came: the place in the order of all CPUs' hits
	goID, caller uint64
	tid          uint32
	off, bytes   uint32 // of the record
	event, flags uint8
}

// What flags of a head says.
const (
	flagUnknown = 1 << iota
	flagNoStack
	flagStackOnly
	flagRare
)

// rare is what few hits have.
type rare struct {
	lost    uint64 // hits that were lost before it
	ip      uint64
	before  bool
	comm    string
	context [8]byte
}

// isRare says whether a hit, before which others were lost, has any of it.
func isRare(h *hit.Hit, lost uint64) bool {
	return lost|h.IP != 0 || h.Before || h.Comm != "" || h.Context != [8]byte{}
}

// newPage makes a page with room for so many bytes of records.
func newPage(bytes int) *page { return &page{recs: make([]byte, bytes)} }

// add copies a hit into the page, before which others were lost, if it has room.
func (p *page) add(h *hit.Hit, came, lost uint64) bool {
	if p.n == pageHits || p.used+len(h.Rec) > len(p.recs) {
		return false
	}
	to := &p.heads[p.n]
	*to = head{came: came, nanos: h.Nanos, goID: h.GoID, caller: h.Caller, tid: uint32(h.TID), off: uint32(p.used), bytes: uint32(len(h.Rec)), event: p.number(h.Event)}
	to.flags = flagIf(h.Unknown, flagUnknown) | flagIf(h.NoStack, flagNoStack) | flagIf(h.StackOnly, flagStackOnly)
	if isRare(h, lost) {
		if p.rare == nil {
			p.rare = new([pageHits]rare)
		}
		p.rare[p.n] = rare{lost, h.IP, h.Before, h.Comm, h.Context}
		to.flags |= flagRare
	}
	p.used += copy(p.recs[p.used:], h.Rec)
	p.n++
	return true
}

func flagIf(is bool, flag uint8) uint8 {
	if is {
		return flag
	}
	return 0
}

// number gives the number of an event in the page.
func (p *page) number(e *hit.Event) uint8 {
	for i := p.named - 1; i >= 0; i-- {
		if *p.event(i) == e {
			return uint8(i)
		}
	}
	if p.named == fewEvents {
		p.others = new([pageHits]*hit.Event)
	}
	p.named++
	*p.event(p.named - 1) = e
	return uint8(p.named - 1)
}

// event is the place of an event.
func (p *page) event(n int) **hit.Event {
	if n < fewEvents {
		return &p.events[n]
	}
	return &p.others[n-fewEvents]
}

// sizeOf is what a hit counts for of what a buffer keeps, in bytes.
func sizeOf(h *hit.Hit, lost uint64) int {
	n := headBytes + len(h.Rec)
	if isRare(h, lost) {
		n += rareBytes
	}
	return n
}

func (h *head) size() int {
	n := headBytes + int(h.bytes)
	if h.flags&flagRare != 0 {
		n += rareBytes
	}
	return n
}

// lost is how many hits were lost before one.
func (p *page) lost(i int) uint64 {
	if p.heads[i].flags&flagRare == 0 {
		return 0
	}
	return p.rare[i].lost
}

// hit makes the hit that it was of what is kept of it. Its record is the page's.
func (p *page) hit(i, cpu int) hit.Hit {
	k := &p.heads[i]
	h := hit.Hit{
		Event: *p.event(int(k.event)), Nanos: k.nanos, CPU: cpu, TID: int(k.tid), GoID: k.goID, Caller: k.caller,
		Unknown: k.flags&flagUnknown != 0, NoStack: k.flags&flagNoStack != 0, StackOnly: k.flags&flagStackOnly != 0,
		Rec: p.recs[k.off : k.off+k.bytes : k.off+k.bytes],
	}
	if k.flags&flagRare != 0 {
		r := &p.rare[i]
		h.IP, h.Before, h.Comm, h.Context = r.ip, r.before, r.comm, r.context
	}
	return h
}

// run is a part of a page.
type run struct {
	*page
	cpu      int
	from, to int
	lost     uint64 // hits that were lost before the first one
}

// done says that a run that Take has given is not read any more, nor the records of its hits: their page may be used again.
func (r *run) done() { r.readers.Add(-1) }

// each gives the hits of a run, each until the next.
func (r *run) each(f func(h *hit.Hit)) {
	var h hit.Hit
	for i := r.from; i < r.to; i++ {
		h = r.hit(i, r.cpu)
		f(&h)
	}
}

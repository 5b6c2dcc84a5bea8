package ring

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Record is one record, copied out of the ring and checked.
type Record struct {
	Shard int    // where it was found
	CPU   int    // of that shard; for a locked shard the CPU that the writer chose
	Event uint32 // below Layout.Events
	TID   uint32
	TSC   uint64 // ticks of Now
	Bytes []byte // the whole record, header included; valid until the function that got it returns
}

// Stats are what a Reader has seen. Records per event are in Reader.Tally.
type Stats struct {
	Read    uint64 // records given out
	Dead    uint64 // records lost to writers that died, or were skipped with them (Reap)
	Late    uint64 // records given out after a later one of another shard
	Future  uint64 // records whose time had not come yet when they were read; given out as of then
	Corrupt uint64 // places where the shared memory held what no writer writes (see Reader.Corruption)
}

// Tally is the account of one event: Hits = Read + Lost + Counters.Hits.
type Tally struct {
	Counters
	Read uint64 // records given out by this reader
}

// Runs is how often the probes of the event ran: read, lost and only counted. Records
// that still lie in the ring are missing until they are drained, and so are those of
// writers that died (Stats.Dead), whose event nobody knows.
func (t Tally) Runs() uint64 { return t.Read + t.Lost + t.Hits }

// ReaderConfig is for NewReader. Nil and zero fields mean the default.
type ReaderConfig struct {
	// Margin, in ticks of Now, is how far behind the present Poll stays, so that a
	// record which is being written now can still be put in its place. Default: 4
	// million ticks, one to two milliseconds.
	Margin uint64
	// Now gives the time in the unit of the records; the default is Now.
	Now func() uint64
	// Hold, if it is not 0, is for writers whose clock can not be read here: a record is
	// given out when it has been known for so long. Margin and Now count for nothing then.
	Hold time.Duration
}

// Reader consumes the records of a ring, which has one reader at a time. It holds no
// lock: all methods but Allow are for one goroutine at a time.
//
// It trusts no byte of the ring. Positions are its own, every record is copied before
// it is looked at, and each Poll does a bounded amount of work whatever the shared
// memory holds.
type Reader struct {
	ring    *Ring
	shards  []*shard
	margin  uint64
	now     func() uint64
	hold    time.Duration
	known   []sighting      // with hold: what was the youngest record when
	ripened uint64          // with hold: records up to this time are to be given out
	bounds  []atomic.Uint32 // per event: smallest size in units << 16 | largest
	highest atomic.Uint32   // one more than the highest event of bounds
	longest uint32          // units of the largest record of those below counted
	counted uint32
	read    []uint64 // per event
	stats   Stats
	last    uint64 // time of the record given out last
	corrupt *Corruption
	heap    []*shard
}

// NewReader starts to read where the reader before it stopped. What a ring in use says
// about that is checked like everything else.
func NewReader(r *Ring, cfg *ReaderConfig) *Reader {
	rd := &Reader{ring: r, longest: MaxRecord / unit, margin: 4e6, now: Now, bounds: make([]atomic.Uint32, r.Events), read: make([]uint64, r.Events)}
	if cfg != nil && cfg.Margin != 0 {
		rd.margin = cfg.Margin
	}
	if cfg != nil && cfg.Now != nil {
		rd.now = cfg.Now
	}
	if cfg != nil && cfg.Hold != 0 {
		rd.hold, rd.now = cfg.Hold, func() uint64 { return ^uint64(0) }
	}
	for i := range r.Shards() {
		rd.shards = append(rd.shards, newShard(rd, i))
	}
	r.reader = rd
	return rd
}

// Allow tells which sizes, in bytes, the records of an event can have; records of an
// event that was never allowed are corrupt. To be called before the probe is armed;
// any goroutine may do so while another polls. Sizes are rounded up to whole words and
// must lie between RecHeader and MaxRecord.
func (rd *Reader) Allow(event uint32, smallest, largest int) error {
	if int(event) >= rd.ring.Events {
		return fmt.Errorf("ring: event %d: the ring has %d: %w", event, rd.ring.Events, unix.EINVAL)
	}
	if smallest < RecHeader || largest < smallest || largest > MaxRecord {
		return fmt.Errorf("ring: event %d: record size %d to %d: must lie within %d and %d: %w",
			event, smallest, largest, RecHeader, MaxRecord, unix.EINVAL)
	}
	up := func(n int) uint32 { return uint32(n+unit-1) / unit }
	rd.bounds[event].Store(up(smallest)<<16 | up(largest))
	for {
		n := rd.highest.Load()
		if n > event || rd.highest.CompareAndSwap(n, event+1) {
			return nil
		}
	}
}

// Poll gives out the records that are complete and older than the margin, in the order
// of their times, and says how many. fn must not call the reader.
func (rd *Reader) Poll(fn func(Record)) int {
	n, _ := rd.PollAt(rd.Now(), fn)
	return n
}

// Now gives the present for PollAt, in the unit of the records.
func (rd *Reader) Now() uint64 { return rd.now() }

// PollAt is Poll at a time that Now gave, the present or shortly before: who has records from
// elsewhere takes the time before he reads those. It tells up to which time all records have been
// given out by now; 0: not known.
func (rd *Reader) PollAt(now uint64, fn func(Record)) (n int, until uint64) {
	for _, s := range rd.shards {
		s.pull(now)
	}
	switch {
	case rd.hold != 0:
		until = rd.ripe(time.Now())
	case now >= rd.margin:
		until = now - rd.margin
	}
	return rd.merge(until, fn), until
}

// sighting is the time of the youngest record that was known at a moment.
type sighting struct {
	at  time.Time
	key uint64
}

// ripe is the time up to which records have been known for long enough.
func (rd *Reader) ripe(now time.Time) (until uint64) {
	newest := uint64(0)
	for _, s := range rd.shards {
		for _, e := range s.ents[s.seen:] {
			newest = max(newest, e.key)
		}
		s.seen = len(s.ents)
	}
	if newest > 0 {
		rd.known = append(rd.known, sighting{now, newest})
	}
	n := 0
	for ; n < len(rd.known) && now.Sub(rd.known[n].at) >= rd.hold; n++ {
		rd.ripened = max(rd.ripened, rd.known[n].key)
	}
	rd.known = rd.known[n:]
	return rd.ripened
}

// Drain gives out everything that is complete, without regard for the margin. Once no
// writer is left, and Reap was called for those that died, nothing stays behind.
func (rd *Reader) Drain(fn func(Record)) int {
	n := 0
	for {
		now := rd.now()
		more := false
		for _, s := range rd.shards {
			more = s.pull(now) || more
		}
		n += rd.merge(^uint64(0), fn)
		if !more {
			return n
		}
	}
}

// Stats returns the counts so far.
func (rd *Reader) Stats() Stats { return rd.stats }

// Tally returns the account of one event.
func (rd *Reader) Tally(event int) Tally {
	t := Tally{Counters: rd.ring.Sum(event)}
	if event >= 0 && event < len(rd.read) {
		t.Read = rd.read[event]
	}
	return t
}

// merge gives out what has been copied, up to a time: always the shard whose next
// record is the oldest, for as long as it stays the oldest.
func (rd *Reader) merge(until uint64, fn func(Record)) int {
	h := rd.heap[:0]
	for _, s := range rd.shards {
		if s.begin() && s.key() <= until {
			h = append(h, s)
		}
	}
	slices.SortFunc(h, func(a, b *shard) int { return cmp.Compare(a.key(), b.key()) })
	n := 0
	for len(h) > 0 {
		s, limit := h[0], until
		if next := second(h); next != nil {
			limit = min(limit, next.key())
		}
		n += rd.emit(s, limit, fn)
		if s.done() || s.key() > until {
			h[0] = h[len(h)-1]
			h = h[:len(h)-1]
		}
		sink(h)
	}
	for _, s := range rd.shards {
		s.compact()
	}
	return n
}

// emit gives out a shard's records up to a time.
func (rd *Reader) emit(s *shard, limit uint64, fn func(Record)) int {
	from := s.next
	for ; s.next < len(s.ents) && s.ents[s.next].key <= limit; s.next++ {
		e := s.ents[s.next]
		rec := s.record(e)
		if e.key < rd.last {
			rd.stats.Late++
		} else {
			rd.last = e.key
		}
		rd.read[rec.Event]++
		fn(rec)
	}
	rd.stats.Read += uint64(s.next - from)
	return s.next - from
}

// second is the shard that comes after the top of a heap.
func second(h []*shard) *shard {
	switch {
	case len(h) < 2:
		return nil
	case len(h) > 2 && h[2].key() < h[1].key():
		return h[2]
	}
	return h[1]
}

// sink puts the top of a heap in its place.
func sink(h []*shard) {
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h); c++ {
			if h[c].key() < h[least].key() {
				least = c
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

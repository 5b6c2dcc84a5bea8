package ring

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"
)

// shard is a reader's side of one shard.
//
//	ring:   ....|tail ====== records ====== head|....      shared
//	              │ pull: copy, then check
//	buf:    |rec|rec|rec|rec|                              private
//	ents:    key off  …  sorted by key, given out from next on
type shard struct {
	rd     *Reader
	index  int
	locked bool
	ctl    []byte // the control page
	data   []byte // data and slack

	// tail is the position read up to, in the form of the shard's head (locked: with
	// the count). It is the reader's own: the copy in the ring is only written.
	tail uint64

	buf   []byte
	ents  []entry
	next  int  // first entry that has not been given out
	seen  int  // entries that the reader has looked at (Reader.ripe)
	mixed bool // entries are not sorted by time

	stall   Stall // locked: what keeps the shard from being read, if stalled
	stalled bool
	badHead bool // the stall is a head that cannot be

	crowded time.Time         // until then Losses looks at it
	told    map[uint32]uint64 // what Losses has told of, by event
}

// entry is a record in buf.
type entry struct {
	key uint64 // the time it is sorted by
	off uint32 // into buf, in units
}

func newShard(rd *Reader, index int) *shard {
	s := &shard{rd: rd, index: index, locked: rd.ring.IsLocked(index)}
	s.bind()
	if s.locked {
		s.joinLocked()
	} else {
		s.tail = load(s.ctl, ShTail)
	}
	return s
}

// units is the number of positions before the place repeats.
func (s *shard) units() uint64 { return s.rd.ring.Units() }

// place is the byte offset of a position in the data.
func (s *shard) place(pos uint64) uint64 { return pos % s.units() * unit }

// full says whether copying has to wait until something is given out. A burst in which
// nothing is old enough for Poll stays in the ring beyond that, where a full shard makes
// the writers count what they drop.
func (s *shard) full() bool { return uint64(len(s.buf)) > 3*max(s.rd.ring.Data, Slack) }

// pull copies what is complete into buf and gives the space back to the writers. It
// says whether it stopped for want of room.
func (s *shard) pull(now uint64) bool {
	s.follow()
	from, of, more := s.tail, s.units(), false
	if s.locked {
		of, more = s.rd.ring.LockedUnits(), s.pullLocked(now)
	} else {
		more = s.pullRseq(now)
	}
	s.crowd((load(s.ctl, ShHead)-from)&posMask, of) // with what has come while it was copied
	return more
}

// pullRseq copies everything below the published head.
func (s *shard) pullRseq(now uint64) bool {
	s.checkTail(s.tail)
	head := load(s.ctl, ShHead)
	if head == s.tail {
		return false
	}
	if head-s.tail > s.units() {
		s.corrupt(s.tail, "head %#x is not within %#x units after it", head, s.units())
		s.setTail(head)
		return false
	}
	for s.tail != head {
		if s.full() {
			return true
		}
		if !s.pullRun(head, now) {
			s.setTail(head)
			return false
		}
	}
	return false
}

// pullRun copies the records from tail to head, or to the end of the data and the one
// record that runs over it. False means that what follows cannot be told apart.
func (s *shard) pullRun(head, now uint64) bool {
	at := s.place(s.tail)
	size := min((head-s.tail)*unit, uint64(len(s.data))-at)
	base := len(s.buf)
	s.buf = append(s.buf, s.data[at:at+size]...)
	off, end := uint64(0), min(size, uint64(s.rd.ring.Data)-at)
	for off < end {
		run := s.buf[base+int(off):]
		n, why := s.check(word0(run), uint64(len(run))/unit)
		if why != "" {
			s.corrupt(s.tail+off/unit, "%s (first word %#x)", why, word0(run))
			s.buf = s.buf[:base+int(off)]
			return false
		}
		s.push(uint32((base+int(off))/unit), word1(run), now)
		off += n * unit
	}
	s.buf = s.buf[:base+int(off)]
	s.setTail(s.tail + off/unit)
	return true
}

// check says how many units the record with this first word has, when at most avail
// units can be part of it, or why it is none.
func (s *shard) check(w0, avail uint64) (n uint64, why string) {
	n = UnitsOf(w0)
	event := EventOf(w0)
	if event >= len(s.rd.bounds) {
		return 0, "event number beyond the table"
	}
	bound := s.rd.bounds[event].Load()
	switch {
	case bound == 0:
		return 0, "event that is not in use"
	case n < uint64(bound>>16) || n > uint64(bound&0xffff):
		return 0, "size that the event cannot have"
	case n > avail:
		return 0, "record that ends behind the head"
	}
	return n, ""
}

// bind finds the shard in the ring's memory.
func (s *shard) bind() {
	r := s.rd.ring
	off := r.ShardOff(s.index)
	data := off + r.DataOff()
	s.ctl = r.mem[off : off+PageSize : off+PageSize]
	s.data = r.mem[data : data+r.Data+Slack : data+r.Data+Slack]
}

// push notes a record in buf. A time that has not come yet is no reason to hold it back
// for ever.
func (s *shard) push(off uint32, tsc, now uint64) {
	key := tsc
	if key > now {
		// The record may be younger than now by what the copying took.
		if at := s.rd.now(); key > at {
			s.rd.stats.Future++
			key = at
		}
	}
	if n := len(s.ents); n > 0 && s.ents[n-1].key > key {
		s.mixed = true
	}
	s.ents = append(s.ents, entry{key: key, off: off})
}

// setTail gives the units before pos back to the writers.
func (s *shard) setTail(pos uint64) {
	s.tail = pos
	store(s.ctl, ShTail, pos)
}

// checkTail restores the shared tail, which nobody else may write.
func (s *shard) checkTail(want uint64) {
	if got := load(s.ctl, ShTail); got != want {
		s.corrupt(want, "the tail was overwritten with %#x", got)
		store(s.ctl, ShTail, want)
	}
}

// begin makes the entries ready to be given out and says whether there are any.
func (s *shard) begin() bool {
	if s.mixed {
		slices.SortStableFunc(s.ents, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
		s.mixed = false
	}
	return len(s.ents) > 0
}

func (s *shard) done() bool { return s.next == len(s.ents) }

func (s *shard) key() uint64 { return s.ents[s.next].key }

// record makes a Record of an entry, whose first word was checked when it was pushed.
func (s *shard) record(e entry) Record {
	b := s.buf[uint64(e.off)*unit:]
	w0 := word0(b)
	n := UnitsOf(w0) * unit
	return Record{
		Shard: s.index,
		CPU:   s.index % s.rd.ring.CPUs,
		Event: uint32(EventOf(w0)),
		TID:   uint32(w0 >> 32),
		TSC:   word1(b),
		Bytes: b[:n:n],
	}
}

// compact drops what has been given out.
func (s *shard) compact() {
	if s.next == 0 {
		return
	}
	rest := s.ents[s.next:]
	first := uint32(len(s.buf) / unit)
	for _, e := range rest {
		first = min(first, e.off)
	}
	s.buf = s.buf[:copy(s.buf, s.buf[uint64(first)*unit:])]
	for i, e := range rest {
		s.ents[i] = entry{key: e.key, off: e.off - first}
	}
	s.ents = s.ents[:len(rest)]
	s.seen -= min(s.seen, s.next)
	s.next = 0
}

func word0(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }

func word1(b []byte) uint64 { return binary.NativeEndian.Uint64(b[unit:]) }

package ring

import "encoding/binary"

// reservation is what a reservation adds to a locked shard's head beside its units.
const reservation = 1 << posBits

// Stall is a locked shard that cannot be read on. For a moment that is ordinary: a
// writer has reserved and not yet committed. If it lasts, the writer was killed, is
// stopped, or the shard was overwritten.
type Stall struct {
	Shard   int
	Since   uint64 // when it was first seen, in ticks of Now
	Corrupt bool   // not a missing record but memory that no writer writes
}

// Stalls lists the locked shards that the last Poll or Drain found stuck. Only Reap
// ends a corrupt one; the others end by themselves if their writer lives.
func (rd *Reader) Stalls() []Stall {
	var out []Stall
	for _, s := range rd.shards {
		if s.stalled {
			out = append(out, s.stall)
		}
	}
	return out
}

// Mark is a moment in the life of the locked shards; see Reap.
type Mark struct{ heads []uint64 }

// Mark remembers what has been reserved up to now.
func (rd *Reader) Mark() Mark {
	var m Mark
	for _, s := range rd.shards[rd.ring.Locked(0):] {
		m.heads = append(m.heads, load(s.ctl, ShHead))
	}
	return m
}

// Reap gives up the reservations made before m that were never committed, together with
// whatever lies behind them up to m, in every shard that is stalled. It says how many
// records were lost by that; they are in Stats.Dead too.
//
// Preconditions: every thread, of every process that has the ring, that can still run
// was seen outside of the generated code at least once after m was made (its program
// counter, and those in the signal frames on its stacks). It need not be the same moment
// for all. Processes that have ended meet this by themselves, so a tracer whose target
// is gone may reap at once. If it does not hold, a writer may wake up and write into
// space that by then belongs to another record.
func (rd *Reader) Reap(m Mark) uint64 {
	lost, now := uint64(0), rd.now()
	for i, head := range m.heads {
		lost += rd.shards[rd.ring.Locked(i)].reap(head, now)
	}
	rd.stats.Dead += lost
	return lost
}

// joinLocked takes over from the reader before. Its account is kept up to date before
// the tail that writers see, so it is the truth if the two differ.
func (s *shard) joinLocked() {
	s.tail = load(s.ctl, ShRead)
	store(s.ctl, ShTail, s.tail&posMask)
}

// pullLocked copies and zeroes records up to the head, or to the first that is not
// committed.
func (s *shard) pullLocked(now uint64) bool {
	s.checkTail(s.tail & posMask)
	head := load(s.ctl, ShHead)
	if !s.sane(head) {
		s.stop(now, true)
		if !s.badHead {
			s.badHead = true
			s.corrupt(s.tail, "head %#x does not follow %#x", head, s.tail)
		}
		return false
	}
	s.badHead = false
	from, more := s.tail, false
	for s.tail != head {
		if more = s.full(); more {
			break
		}
		if !s.pullOne(head, now) {
			break
		}
	}
	if s.tail != from {
		s.publishLocked()
	}
	if s.tail == head {
		s.stalled = false
	}
	return more
}

// sane says whether a head can follow the tail.
func (s *shard) sane(head uint64) bool {
	units := (head - s.tail) & posMask
	return units <= s.rd.ring.LockedUnits() && (units != 0 || head == s.tail)
}

// pullOne copies and zeroes the record at the tail. False: there is none yet.
func (s *shard) pullOne(head, now uint64) bool {
	at := s.place(s.tail)
	w0 := load(s.data, at)
	if w0 == 0 {
		s.stop(now, false)
		return false
	}
	n, why := s.check(w0, (head-s.tail)&posMask)
	if why != "" {
		if s.stop(now, true) {
			s.corrupt(s.tail, "%s (first word %#x)", why, w0)
		}
		return false
	}
	base := len(s.buf)
	rec := s.data[at : at+n*unit]
	s.buf = append(s.buf, rec...)
	binary.NativeEndian.PutUint64(s.buf[base:], w0)
	s.push(uint32(base/unit), word1(s.buf[base:]), now)
	clear(rec)
	s.tail += n + reservation
	s.stalled = false
	return true
}

// publishLocked gives the zeroed units before the tail back to the writers.
func (s *shard) publishLocked() {
	store(s.ctl, ShRead, s.tail)
	store(s.ctl, ShTail, s.tail&posMask)
}

// stop notes that the shard is stuck and says whether that is news.
func (s *shard) stop(now uint64, corrupt bool) bool {
	if s.stalled && s.stall.Corrupt == corrupt {
		return false
	}
	if !s.stalled {
		s.stall = Stall{Shard: s.index, Since: now}
	}
	s.stalled, s.stall.Corrupt, s.badHead = true, corrupt, false
	return true
}

// reap skips what was reserved before mark.
func (s *shard) reap(mark, now uint64) uint64 {
	if s.pullLocked(now) || !s.stalled {
		return 0
	}
	if s.badHead {
		s.rebuild(mark)
		return 0
	}
	if !s.sane(mark) || mark == s.tail {
		return 0 // read beyond it already
	}
	lost := s.reserved(mark)
	s.zero(mark)
	s.tail = mark
	s.publishLocked()
	s.stalled = false
	return lost
}

// reserved is the number of reservations between tail and mark, or 0 if the count in
// the mark cannot be right.
func (s *shard) reserved(mark uint64) uint64 {
	n, units := (mark-s.tail)>>posBits, (mark-s.tail)&posMask
	if n == 0 {
		n = 1 << (64 - posBits)
	}
	if n > units*unit/RecHeader {
		s.corrupt(s.tail, "%d records reserved in %d units: not counted as lost", n, units)
		return 0
	}
	return n
}

// zero clears everything between tail and mark. If the end of the data lies between
// them, so does the only record that can use the slack.
func (s *shard) zero(mark uint64) {
	at, size := s.place(s.tail), (mark-s.tail)&posMask*unit
	end := s.rd.ring.Data
	if at+size <= end {
		clear(s.data[at : at+size])
		return
	}
	clear(s.data[at:])
	clear(s.data[:at+size-end])
}

// rebuild gives a shard with an impossible head a new start: all zero, a head that no
// writer can have seen, and the tail at it. If a writer got in between, the exchange
// fails and the shard stays stalled until it is reaped with a later mark.
func (s *shard) rebuild(mark uint64) {
	clear(s.data)
	fresh := (mark>>posBits + 1) << posBits
	store(s.ctl, ShTail, 0)
	if !swap(s.ctl, ShHead, mark, fresh) {
		store(s.ctl, ShTail, s.tail&posMask)
		return
	}
	s.tail = fresh
	s.publishLocked()
	s.stalled = false
}

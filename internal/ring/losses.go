package ring

import "time"

// crowdedFor is for how long Losses looks at a shard that was found crowded: a writer that found it full may count that later.
const crowdedFor = 100 * time.Millisecond

// crowd notes that a shard was so full, of so many units, that a record may have found no room in it.
func (s *shard) crowd(used, of uint64) {
	if used+uint64(s.rd.longest) > of {
		s.crowded = time.Now().Add(crowdedFor)
	}
}

// Losses tells of records that found their shard full, by event and CPU, which it has not told of before. It looks at the shards that Poll or
// Drain has found nearly full a moment ago, or at all. fn must not call the reader.
func (rd *Reader) Losses(all bool, fn func(event uint32, cpu int, records uint64)) {
	if n := rd.highest.Load(); n != rd.counted {
		rd.longest, rd.counted = 0, n
		for event := range n {
			rd.longest = max(rd.longest, rd.bounds[event].Load()&0xffff)
		}
	}
	for _, s := range rd.shards {
		if !all && s.crowded.IsZero() {
			continue
		}
		if !s.crowded.IsZero() && time.Now().After(s.crowded) {
			s.crowded = time.Time{}
		}
		s.losses(fn)
	}
}

func (s *shard) losses(fn func(event uint32, cpu int, records uint64)) {
	r := s.rd.ring
	off := r.ShardOff(s.index)
	for event := range s.rd.highest.Load() {
		if s.rd.bounds[event].Load() == 0 {
			continue
		}
		lost := load(r.mem, off+r.CounterOff(int(event))+CtrLost)
		told := s.told[event]
		if lost <= told { // it does not count backwards
			continue
		}
		if s.told == nil {
			s.told = map[uint32]uint64{}
		}
		s.told[event] = lost
		fn(event, s.index%r.CPUs, lost-told)
	}
}

// Forget has Losses begin anew with an event, whose counters are cleared (Ring.ClearCounters).
func (rd *Reader) Forget(event int) {
	for _, s := range rd.shards {
		if s.told[uint32(event)] > 0 {
			s.told[uint32(event)] = 0
		}
	}
}

package ring

// crowdedLooks is how often Losses looks at a shard that was found crowded: a writer that found it full may count that behind the reader's next look.
const crowdedLooks = 2

// crowd notes that a shard was so full, of so many units, that a record may have found no room in it.
func (s *shard) crowd(used, of uint64) {
	if used+MaxRecord/unit > of {
		s.crowded = crowdedLooks
	}
}

// Losses tells of records that found their shard full, by event and CPU, which it has not told of before. It looks at the shards that Poll or
// Drain has found nearly full, or at all: a loss of a moment ago is found in any case then. fn must not call the reader.
func (rd *Reader) Losses(all bool, fn func(event uint32, cpu int, records uint64)) {
	for _, s := range rd.shards {
		if !all && s.crowded == 0 {
			continue
		}
		s.crowded = max(s.crowded-1, 0)
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
		told := s.lost[event]
		if lost <= told { // it does not count backwards
			continue
		}
		if s.lost == nil {
			s.lost = map[uint32]uint64{}
		}
		s.lost[event] = lost
		fn(event, s.index%r.CPUs, lost-told)
	}
}

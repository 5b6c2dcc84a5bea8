package ring

import "fmt"

// Corruption is a place where the shared memory held what no writer writes: the target
// has written over it. The reader skips what it cannot tell apart and goes on.
type Corruption struct {
	Shard  int
	Pos    uint64 // position in the shard, in units of 8 bytes
	Reason string
}

// Error says where and why.
func (c *Corruption) Error() string {
	return fmt.Sprintf("ring: shard %d, position %#x: %s; the target wrote over the ring, records may be missing", c.Shard, c.Pos, c.Reason)
}

// Corruption is the place found last, or nil; Stats.Corrupt counts them.
func (rd *Reader) Corruption() *Corruption { return rd.corrupt }

func (s *shard) corrupt(pos uint64, format string, args ...any) {
	if s.locked {
		pos &= posMask
	}
	s.rd.stats.Corrupt++
	s.rd.corrupt = &Corruption{Shard: s.index, Pos: pos, Reason: fmt.Sprintf(format, args...)}
}

package ring

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// A sparse ring (Config.Sparse) has the pages of a shard's records only once somebody has asked
// for them with PrepareShard, or the reader has found a record in the shard: memory of a file is
// paid by the memory cgroup of whoever touches it first, and that is to be the reader's, not the
// writer's. Counters are there for all shards (PrepareEvents).
type sparse struct {
	mu    sync.Mutex
	there []atomic.Uint64                    // by shard: bytes from the start of its data that are there
	fill  func(i int, from, to uint64) error // brings these bytes of a shard's data in
}

// PrepareShard faults in the records of a shard of a sparse ring, once.
func (r *Ring) PrepareShard(i int) error { return r.prepareTo(i, r.Data+Slack) }

// prepareTo faults in so many bytes of a shard's data, without those that are there.
func (r *Ring) prepareTo(i int, size uint64) error {
	if r.sparse == nil {
		return nil
	}
	size = min((size+PageSize-1)&^uint64(PageSize-1), r.Data+Slack)
	there := &r.sparse.there[i]
	if there.Load() >= size {
		return nil
	}
	r.sparse.mu.Lock()
	defer r.sparse.mu.Unlock()
	from := there.Load()
	if from >= size {
		return nil
	}
	if err := r.sparse.fill(i, from, size); err != nil {
		return err
	}
	there.Store(size)
	return nil
}

// follow prepares a shard that a writer uses. What can not be had the writer takes. A locked shard holds
// little unread, which a writer fills while all its pages come in, and then loses records: it gets what can be
// written until the next look but one.
func (s *shard) follow() {
	r := s.rd.ring
	if r.sparse == nil || load(s.ctl, ShHead) == 0 {
		return
	}
	size := r.Data + Slack
	if s.locked {
		size = min(size, (s.tail&posMask+2*r.LockedUnits())*unit+Slack)
	}
	_ = r.prepareTo(s.index, size)
}

// Bounds of the records of a shard that DefaultShard gives, and of all shards of a kind together.
const (
	minShard = 64 << 10
	maxShard = 16 << 20
	maxTotal = 64 << 20
)

// DefaultShard is the DataSize for a ring whose writers run on so many CPUs: what a burst of some
// ten milliseconds fills, and with many CPUs less, since then all of them together count.
func DefaultShard(cpus int) int {
	size := maxShard
	for size > minShard && size*cpus > maxTotal {
		size /= 2
	}
	return size
}

// ParseCPUs reads a list of CPUs as the kernel writes it: 0-3,8. What is no number is passed over.
func ParseCPUs(list string) (cpus []int) {
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		lo, err := strconv.Atoi(from)
		hi, err2 := strconv.Atoi(to)
		for n := lo; err == nil && err2 == nil && n <= min(hi, MaxCPUs); n++ {
			cpus = append(cpus, n)
		}
	}
	return cpus
}

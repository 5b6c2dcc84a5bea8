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
	there []atomic.Bool     // by shard
	fill  func(i int) error // brings a shard's pages in
}

// PrepareShard faults in the records of a shard of a sparse ring, once.
func (r *Ring) PrepareShard(i int) error {
	if r.sparse == nil || r.sparse.there[i].Load() {
		return nil
	}
	r.sparse.mu.Lock()
	defer r.sparse.mu.Unlock()
	if r.sparse.there[i].Load() {
		return nil
	}
	if err := r.sparse.fill(i); err != nil {
		return err
	}
	r.sparse.there[i].Store(true)
	return nil
}

// follow prepares a shard that a writer uses. What can not be had the writer takes.
func (s *shard) follow() {
	if r := s.rd.ring; r.sparse != nil && !r.sparse.there[s.index].Load() && load(s.ctl, ShHead) != 0 {
		_ = r.PrepareShard(s.index)
	}
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

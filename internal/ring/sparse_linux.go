package ring

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"sync/atomic"
)

// makeSparse makes a ring that was just mapped a sparse one.
func (r *Ring) makeSparse() {
	r.sparse = &sparse{there: make([]atomic.Uint64, r.Shards()), fill: func(i int, from, to uint64) error {
		return r.populate(r.ShardOff(i)+r.DataOff()+from, to-from)
	}}
}

// PossibleCPUs is one more than the highest number that a CPU of this machine may have.
func PossibleCPUs() (int, error) { return possibleCPUs() }

// OnlineCPUs are the numbers of the CPUs that run now.
func OnlineCPUs() ([]int, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/online")
	if errors.Is(err, fs.ErrNotExist) {
		n, err := possibleCPUs()
		return ParseCPUs("0-" + strconv.Itoa(max(n-1, 0))), err
	}
	return ParseCPUs(string(b)), err
}

package ring

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
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

// possibleCPUs is the highest number a CPU of this machine can have, plus one.
func possibleCPUs() (int, error) {
	const path = "/sys/devices/system/cpu/possible"
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("ring: possible CPUs: %w", err)
	}
	list := strings.TrimSpace(string(b))
	last := list[strings.LastIndexAny(list, "-,")+1:]
	n, err := strconv.Atoi(last)
	if err != nil {
		return 0, fmt.Errorf("ring: possible CPUs: %s holds %q: %w", path, list, err)
	}
	return n + 1, nil
}

// populate makes pages present and writable here and in the file. Kernels before 5.14
// do not know the request; there every page is touched by an addition of nothing.
func (r *Ring) populate(off, size uint64) error {
	b := r.mem[off : off+size]
	err := unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) {
		for at := uint64(0); at < size; at += PageSize {
			touch(b, at)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("ring: %d bytes of pages: %w", size, err)
	}
	return nil
}

package main

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/ring"
)

const mib = 1 << 20

// footprint is what a probed process maps at kprobe trace's defaults, in bytes: the ring,
// and 2 MiB for the tables and the code.
func footprint() uint64 {
	n := possibleCPUs()
	l, err := ring.NewLayout(ring.Config{CPUs: n, Events: ring.MaxEvents, DataSize: ring.DefaultShard(n)})
	if err != nil {
		return 0
	}
	return l.Size() + 2*mib
}

// possibleCPUs is one more than the highest number that a CPU may have.
func possibleCPUs() int {
	list := strings.TrimSpace(readText("/sys/devices/system/cpu/possible"))
	n, err := strconv.Atoi(list[strings.LastIndexAny(list, "-,")+1:])
	if err != nil {
		return 1
	}
	return n + 1
}

// examineLimits looks at what memory a process may take; prefix goes before the names of
// the checks.
func examineLimits(pid int, prefix string) []finding {
	fs := []finding{checkMaps(sysctl("vm/max_map_count"), mapCount(pid)), checkCgroup(memoryLimit(pid), pages)}
	var as, fsize unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_AS, nil, &as); err == nil {
		fs = append(fs, checkAS(as.Cur, virtualSize(pid), footprint()))
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &fsize); err == nil && pid == os.Getpid() {
		fs = append(fs, checkFsize(fsize.Cur, footprint()))
	}
	for i := range fs {
		fs[i].Check = prefix + fs[i].Check
	}
	return fs
}

func mapCount(pid int) int {
	return strings.Count(readText(fmt.Sprintf("/proc/%d/maps", pid)), "\n")
}

// spareMaps is how many mappings probes may take before they share.
const spareMaps = 1000

func checkMaps(limit string, have int) finding {
	f := fine("mappings", "%d of at most %s (vm.max_map_count)", have, limit)
	n, err := strconv.Atoi(limit)
	switch {
	case err != nil:
		return fine("mappings", "vm.max_map_count is not known").warn("a process that is near it can not be probed")
	case have+16 > n:
		return f.fail("there is no room for the ring and the code: sysctl -w vm.max_map_count=262144")
	case have+spareMaps > n:
		return f.warn("many probes may not find room near the code: sysctl -w vm.max_map_count=262144")
	}
	return f
}

// virtualSize is the address space that a process uses, in bytes.
func virtualSize(pid int) uint64 {
	kb, _ := strconv.ParseUint(strings.TrimSuffix(statusField(readText(fmt.Sprintf("/proc/%d/status", pid)), "VmSize"), " kB"), 10, 64)
	return kb << 10
}

func checkAS(limit, have, need uint64) finding {
	if limit == math.MaxUint64 {
		return fine("address space", "not limited (RLIMIT_AS)")
	}
	f := fine("address space", "%d MiB of at most %d MiB (RLIMIT_AS)", have/mib, limit/mib)
	if have+need > limit {
		return f.fail(fmt.Sprintf("probes map %d MiB: prlimit --as=unlimited, or a smaller --buffer-size", need/mib))
	}
	return f
}

func checkFsize(limit, need uint64) finding {
	if limit == math.MaxUint64 || limit > need {
		return fine("file size", "enough for the ring (RLIMIT_FSIZE)")
	}
	return fine("file size", "at most %d MiB (RLIMIT_FSIZE)", limit/mib).
		fail("the ring's memory file counts as a file: ulimit -f unlimited, or a smaller --buffer-size")
}

// memory is what a process's cgroups leave it, in bytes.
type memory struct {
	limited bool
	limit   uint64
	used    uint64
	where   string
}

func (m memory) free() uint64 { return m.limit - min(m.used, m.limit) }

func checkCgroup(m memory, need uint64) finding {
	if !m.limited {
		return fine("memory", "not limited by a cgroup")
	}
	f := fine("memory", "%d MiB free of %d MiB (%s)", m.free()/mib, m.limit/mib, m.where)
	if m.free() < need {
		return f.warn("many probes, and return probes, are refused: they take no more than half of it; raise the limit")
	}
	return f
}

// pages is what a few thousand probes take of the process's cgroup, in bytes: pages of its code, of
// ours and of tables.
const pages = 32 * mib

// memoryLimit finds the cgroup of a process, or above it, that leaves it the least memory.
func memoryLimit(pid int) memory {
	l, ok := headroom.Root("/").Cgroup(pid)
	if !ok {
		return memory{}
	}
	return memory{true, l.Max, l.Used, l.Name}
}

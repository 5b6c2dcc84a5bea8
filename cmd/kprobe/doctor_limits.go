package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/ring"
	"kprobes.dev/kprobes/target/process"
)

const mib = 1 << 20

// footprint is what a probed process maps at kprobe trace's defaults, in bytes: the ring,
// and 96 MiB for the tables and the code, most of which is never touched.
func footprint() uint64 {
	l, err := ring.NewLayout(ring.Config{CPUs: possibleCPUs(), Events: ring.MaxEvents, DataSize: ringBytes})
	if err != nil {
		return 0
	}
	return l.Size() + 96*mib
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
	fs := []finding{checkMaps(sysctl("vm/max_map_count"), mapCount(pid)), checkCgroup(memoryLimit(pid), footprint())}
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
	f := fine("memory", "%d MiB free of %d MiB (cgroup %s)", m.free()/mib, m.limit/mib, m.where)
	if m.free() < need {
		return f.warn(fmt.Sprintf("a ring that fills up takes part of %d MiB from it: use a smaller --buffer-size, or raise the limit", need/mib))
	}
	return f
}

// memoryLimit finds the cgroup of a process, or above it, that leaves it the least memory.
func memoryLimit(pid int) memory {
	var least memory
	mounts, groups := readText("/proc/self/mounts"), readText(fmt.Sprintf("/proc/%d/cgroup", pid))
	for _, h := range memoryHierarchies(mounts, groups) {
		for dir := h.dir; strings.HasPrefix(dir, h.mount); dir = filepath.Dir(dir) {
			m, ok := readMemory(dir, h.limit, h.used)
			if ok && (!least.limited || m.free() < least.free()) {
				least = m
			}
		}
	}
	return least
}

// hierarchy is where a process stands in a tree of cgroups that limit memory.
type hierarchy struct{ mount, dir, limit, used string }

// memoryHierarchies reads mounts (proc(5) mounts) and groups (proc(5) cgroup): version 2,
// and the memory controller of version 1.
func memoryHierarchies(mounts, groups string) []hierarchy {
	var out []hierarchy
	for line := range strings.Lines(groups) {
		id := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(id) != 3 {
			continue
		}
		v2 := id[0] == "0" && id[1] == ""
		if !v2 && !listed(id[1], "memory") {
			continue
		}
		for mount := range strings.Lines(mounts) {
			m := strings.Fields(mount)
			switch {
			case len(m) < 4:
			case v2 && m[2] == "cgroup2":
				out = append(out, hierarchy{m[1], filepath.Join(m[1], id[2]), "memory.max", "memory.current"})
			case !v2 && m[2] == "cgroup" && listed(m[3], "memory"):
				out = append(out, hierarchy{m[1], filepath.Join(m[1], id[2]), "memory.limit_in_bytes", "memory.usage_in_bytes"})
			}
		}
	}
	return out
}

// listed says whether a word is in a list with commas.
func listed(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// noLimit is what version 1 shows for none: the largest number of whole pages.
const noLimit = math.MaxInt64 &^ (process.PageSize - 1)

func readMemory(dir, limit, used string) (memory, bool) {
	l, err := strconv.ParseUint(strings.TrimSpace(readText(filepath.Join(dir, limit))), 10, 64)
	u, uerr := strconv.ParseUint(strings.TrimSpace(readText(filepath.Join(dir, used))), 10, 64)
	if err != nil || uerr != nil || l >= noLimit {
		return memory{}, false
	}
	return memory{true, l, u, dir}, true
}

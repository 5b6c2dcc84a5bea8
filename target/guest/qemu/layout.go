package qemu

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// maxRegions bounds how many lines of a memory map are read.
const maxRegions = 1 << 16

// region is a piece of the physical address space, [start, end).
type region struct {
	start, end uint64
	kind       string // ram, rom, i/o, …
	name       string // of QEMU's memory region: a backend's id for its memory
	off        uint64 // in the region, which for a backend is the offset in its file
}

// regionLine is a line of `info mtree -f` (QEMU 7.2, softmmu/memory.c, mtree_print_flatview).
var regionLine = regexp.MustCompile(`^\s+([0-9a-f]{16})-([0-9a-f]{16}) \(prio -?\d+, ([^)]+)\): (.+?)(?: @([0-9a-f]{16}))?(?: KVM)?\s*$`)

// parseRegions reads the flat view of the address space "memory" from `info mtree -f`.
func parseRegions(text string) ([]region, error) {
	var regions []region
	inView, n := false, 0
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if n++; n > maxRegions {
			return nil, errno.Errorf(unix.E2BIG, "memory map of QEMU: more than %d lines", maxRegions)
		}
		switch {
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "FlatView"):
			if inView && len(regions) > 0 {
				return sorted(regions)
			}
			inView = false
		case strings.HasPrefix(line, ` AS "memory",`):
			inView = true
		case inView:
			if r, ok := parseRegion(line); ok {
				regions = append(regions, r)
			}
		}
	}
	if len(regions) == 0 {
		return nil, errno.Errorf(unix.EPROTO, "memory map of QEMU (info mtree -f): no address space \"memory\" in %d lines, %.100q", n, text)
	}
	return sorted(regions)
}

func parseRegion(line string) (region, bool) {
	f := regionLine.FindStringSubmatch(line)
	if f == nil {
		return region{}, false
	}
	start, err1 := strconv.ParseUint(f[1], 16, 64)
	last, err2 := strconv.ParseUint(f[2], 16, 64)
	var off uint64
	var err3 error
	if f[5] != "" {
		off, err3 = strconv.ParseUint(f[5], 16, 64)
	}
	if err1 != nil || err2 != nil || err3 != nil || last < start || last+1 == 0 {
		return region{}, false
	}
	return region{start: start, end: last + 1, kind: f[3], name: f[4], off: off}, true
}

// sorted checks that regions do not overlap.
func sorted(regions []region) ([]region, error) {
	slices.SortFunc(regions, func(a, b region) int { return cmp.Compare(a.start, b.start) })
	for i := 1; i < len(regions); i++ {
		if regions[i].start < regions[i-1].end {
			return nil, errno.Errorf(unix.EPROTO, "memory map of QEMU: %s at %#x and %s at %#x overlap",
				regions[i-1].name, regions[i-1].start, regions[i].name, regions[i].start)
		}
	}
	return regions, nil
}

// backed gives the pieces in which the backend named id is writable RAM, ascending;
// neighbours whose bytes follow one another in the file too are one. size is the file's.
func backed(regions []region, id string, size uint64) ([]region, error) {
	var out []region
	for _, r := range regions {
		if r.kind != "ram" || r.name != id && !strings.HasSuffix(r.name, "/"+id) {
			continue
		}
		if n := r.end - r.start; n > size || r.off > size-n {
			return nil, errno.Errorf(unix.EINVAL, "memory of the guest: %#x-%#x lies at offset %#x of a file of %#x bytes: it is not this guest's memory, or was truncated",
				r.start, r.end, r.off, size)
		}
		if k := len(out) - 1; k >= 0 && out[k].end == r.start && out[k].off+(out[k].end-out[k].start) == r.off {
			out[k].end = r.end
			continue
		}
		out = append(out, r)
	}
	return out, nil
}

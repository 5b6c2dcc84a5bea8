package process

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

// textName begins the names of the memory files that hold private copies of a program's text.
// Such a file has the bytes of one file of the program, at the same offsets, as far as they were
// copied; its name says which: textName:MAJOR:MINOR:INODE:NAME.
const textName = "kprobes:text"

// maxMemfdName is how long the name of a memory file may be, in bytes (memfd_create(2)).
const maxMemfdName = 249

// textFileName names the memory file with the copies of a mapping's file.
func textFileName(m procfs.Map) string {
	name := fmt.Sprintf("%s:%x:%x:%d:%s", textName, m.Dev>>32, m.Dev&0xffffffff, m.Inode, filepath.Base(m.Path))
	return name[:min(len(name), maxMemfdName)]
}

// isText says whether a mapping is a private copy of text.
func isText(m procfs.Map) bool { return strings.HasPrefix(m.Path, "/memfd:"+textName+":") }

// textOf gives the mapping of the program's file whose place a private copy has taken, as the
// copy's name tells.
func textOf(m procfs.Map) (procfs.Map, bool) {
	if !isText(m) {
		return m, false
	}
	rest := strings.TrimPrefix(m.Path, "/memfd:"+textName+":")
	f := strings.SplitN(rest, ":", 4)
	if len(f) != 4 {
		return m, false
	}
	var v [3]uint64
	for i, base := range []int{16, 16, 10} {
		n, err := strconv.ParseUint(f[i], base, 64)
		if err != nil {
			return m, false
		}
		v[i] = n
	}
	m.FileID = procfs.FileID{Dev: v[0]<<32 | v[1], Inode: v[2]}
	m.Path, m.Deleted = f[3], false
	return m, m.Inode != 0
}

// fileMaps gives the mappings as they are without private copies of text: a copy counts as the
// part of the file whose place it has taken, and neighbours that fit are one mapping again.
func fileMaps(maps []procfs.Map) []procfs.Map {
	if !slices.ContainsFunc(maps, isText) {
		return maps
	}
	paths := map[procfs.FileID]string{}
	for _, m := range maps {
		if !isText(m) && !m.Anonymous() {
			paths[m.FileID] = m.Path
		}
	}
	out := make([]procfs.Map, 0, len(maps))
	for _, m := range maps {
		if of, ok := textOf(m); ok {
			m = of
			if p := paths[m.FileID]; p != "" {
				m.Path = p
			}
		}
		if n := len(out); n > 0 && continues(out[n-1], m) {
			out[n-1].End = m.End
			continue
		}
		out = append(out, m)
	}
	return out
}

// continues says whether b goes on where a ends, in memory and in the file.
func continues(a, b procfs.Map) bool {
	return !a.Anonymous() && a.End == b.Start && a.FileID == b.FileID && a.Perm == b.Perm && a.Offset+a.Size() == b.Offset
}

// textRun is pages of text that are to become private, in one mapping of a file.
type textRun struct {
	interval.Range
	off  uint64 // of Lo in the file, bytes
	want []byte // what the file has there
}

// Bounds of what is made private.
const (
	textGap  = 8 * procfs.PageSize // pages between two that are probed are taken along, up to so many bytes
	textRuns = 256                 // in one change: larger gaps are taken along until there are no more
)

// pagesOf gives the pages that hold the addresses, each once, in order.
func pagesOf(addrs []uint64) []uint64 {
	out := make([]uint64, len(addrs))
	for i, a := range addrs {
		out[i] = procfs.PageDown(a)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// joinPages makes runs of pages, at most gap bytes apart, that lie in one mapping. Pages are in
// order, and each lies in a mapping.
func joinPages(maps []procfs.Map, pages []uint64, gap uint64) []textRun {
	var out []textRun
	var in procfs.Map
	for _, p := range pages {
		if n := len(out); n > 0 && in.Contains(p) && p-out[n-1].End <= gap {
			out[n-1].End = p + procfs.PageSize
			continue
		}
		in, _ = procfs.FindMap(maps, p)
		out = append(out, textRun{Range: interval.Range{Start: p, End: p + procfs.PageSize}, off: p - in.Start + in.Offset})
	}
	return out
}

// fewRuns makes at most textRuns runs of the pages, if the number of mappings permits.
func fewRuns(maps []procfs.Map, pages []uint64) []textRun {
	runs := joinPages(maps, pages, textGap)
	for gap := uint64(2 * textGap); len(runs) > textRuns && gap < 1<<30; gap *= 2 {
		runs = joinPages(maps, pages, gap)
	}
	return runs
}

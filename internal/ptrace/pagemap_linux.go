package ptrace

import (
	"os"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
const (
	pageGuard   = 1 << 58 // MADV_GUARD_INSTALL, with pageSwapped; Linux 6.13 and 6.14 do not tell
	pageSwapped = 1 << 62
	pagePresent = 1 << 63
)

// Present gives the pages from lo to hi that hold something, neighbours as one range. Where
// the kernel does not tell, all are said to.
func (p *Process) Present(lo, hi uint64) []interval.Range {
	all := []interval.Range{{Start: lo, End: hi}}
	f, err := p.OpenAt(p.FileName("pagemap"), 0)
	if err != nil {
		return all
	}
	defer f.Close()
	b := make([]byte, (hi-lo)/procfs.PageSize*8)
	if n, err := f.ReadAt(b, int64(lo/procfs.PageSize*8)); err != nil || n != len(b) {
		return all
	}
	var out []interval.Range
	for at := lo; at < hi; at += procfs.PageSize {
		if e := le.Uint64(b[(at-lo)/procfs.PageSize*8:]); e&(pagePresent|pageSwapped) == 0 || e&pageGuard != 0 {
			continue
		}
		if n := len(out); n > 0 && out[n-1].End == at {
			out[n-1].End += procfs.PageSize
			continue
		}
		out = append(out, interval.Range{Start: at, End: at + procfs.PageSize})
	}
	return out
}

// pageOfFile is set for pages that are the file's, or shared (Documentation/admin-guide/mm/pagemap.rst).
const pageOfFile = 1 << 61

// OwnPages lists the pages of a private mapping of a file that are not the file's any more, n at most.
func OwnPages(pages *os.File, m procfs.Map, n uint64) (out []uint64, err error) {
	buf := make([]byte, min(64<<10, m.Size()/procfs.PageSize*8))
	for at := m.Start; at < m.End; {
		b := buf[:min(uint64(len(buf)), (m.End-at)/procfs.PageSize*8)]
		if _, err := pages.ReadAt(b, int64(at/procfs.PageSize*8)); err != nil {
			return nil, err
		}
		for ; len(b) > 0; b, at = b[8:], at+procfs.PageSize {
			e := le.Uint64(b)
			if e&(pagePresent|pageSwapped) == 0 || e&pageOfFile != 0 {
				continue
			}
			if uint64(len(out)) == n {
				return out, nil
			}
			out = append(out, at)
		}
	}
	return out, nil
}

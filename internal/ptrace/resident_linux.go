package ptrace

import (
	"encoding/binary"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

// Resident is memory that a process has, part of one mapping.
type Resident struct {
	interval.Range
	Shared bool
}

// Residents finds the memory that a process has. Limit and Asks are lowered by what was found and asked for.
type Residents struct {
	Process *Process
	Limit   uint64 // bytes of memory
	Asks    uint64 // pages that may still be asked for
	NoScan  bool   // the kernel is older than Linux 6.7
	Found   []Resident
}

// Find lists the pages of mappings that are in memory or in swap; all is false if that is more than the
// limits. Of shared memory only what this process has used is there, and not what is in swap.
func (r *Residents) Find(maps []procfs.Map) (all bool, err error) {
	f, err := r.Process.OpenAt(r.Process.FileName("pagemap"), 0)
	if err != nil {
		return false, r.Process.Gone(err)
	}
	defer f.Close()
	for _, m := range maps {
		if all, err := r.mapping(f, m); !all || err != nil {
			return false, err
		}
	}
	return true, nil
}

// mapping lists the pages of one mapping.
func (r *Residents) mapping(f *os.File, m procfs.Map) (all bool, err error) {
	first := len(r.Found)
	take := func(lo, hi uint64) bool {
		if hi-lo > r.Limit {
			return false
		}
		r.Limit -= hi - lo
		if n := len(r.Found); n > first && r.Found[n-1].End == lo {
			r.Found[n-1].End = hi
		} else {
			r.Found = append(r.Found, Resident{interval.Range{Start: lo, End: hi}, m.Perm&procfs.PermShared != 0})
		}
		return true
	}
	at := m.Start
	for at < m.End && !r.NoScan {
		got, next, err := scanPages(f, at, m.End)
		if err != nil || next <= at {
			r.NoScan = true
			break
		}
		for _, g := range got {
			if !take(g.Start, g.End) {
				return false, nil
			}
		}
		at = next
	}
	return r.ask(f, at, m.End, take)
}

// ask reads the entries of all pages from lo to hi.
func (r *Residents) ask(f *os.File, lo, hi uint64, take func(lo, hi uint64) bool) (all bool, err error) {
	buf := make([]byte, min(64<<10, (hi-lo)/procfs.PageSize*8))
	for lo < hi {
		b := buf[:min(uint64(len(buf)), (hi-lo)/procfs.PageSize*8)]
		n := uint64(len(b) / 8)
		if n > r.Asks {
			return false, nil
		}
		r.Asks -= n
		if _, err := f.ReadAt(b, int64(lo/procfs.PageSize*8)); err != nil {
			return false, r.Process.Gone(err)
		}
		for ; len(b) > 0; b, lo = b[8:], lo+procfs.PageSize {
			if binary.LittleEndian.Uint64(b)&(pagePresent|pageSwapped) != 0 && !take(lo, lo+procfs.PageSize) {
				return false, nil
			}
		}
	}
	return true, nil
}

// pageRegion is struct page_region, and pageScan struct pm_scan_arg (linux/fs.h).
type pageRegion struct{ Start, End, Categories uint64 }

type pageScan struct {
	size, flags, start, end, walkEnd   uint64
	vec                                *pageRegion
	vecLen, maxPages                   uint64
	inverted, mask, anyOf, returnsMask uint64
}

// The ioctl PAGEMAP_SCAN, and its categories (linux/fs.h).
const (
	pagemapScan   = 3<<30 | uint(unsafe.Sizeof(pageScan{}))<<16 | 'f'<<8 | 16
	pageIsPresent = 1 << 3
	pageIsSwapped = 1 << 4
)

// scanPages asks for the pages from lo to hi at once. What was found reaches up to next.
func scanPages(f *os.File, lo, hi uint64) (got []pageRegion, next uint64, err error) {
	got = make([]pageRegion, 512)
	arg := pageScan{
		size: uint64(unsafe.Sizeof(pageScan{})), start: lo, end: hi, vec: &got[0], vecLen: uint64(len(got)),
		anyOf: pageIsPresent | pageIsSwapped, returnsMask: pageIsPresent | pageIsSwapped,
	}
	n, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(pagemapScan), uintptr(unsafe.Pointer(&arg)))
	runtime.KeepAlive(got)
	if e != 0 {
		return nil, lo, e
	}
	return got[:n], arg.walkEnd, nil
}

package ptrace

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// backing is a mapping of the process that is a private copy of a memory file. When a page of it is
// written the kernel makes two: one of the file, and the copy. Where the tracer has made the file's
// page before, it is the tracer's cgroup that pays for that one, and the process pays half.
type backing struct {
	lo, hi uint64
	file   *os.File
	there  []bool // by page
}

// AddBacking notes a mapping of the tracer's; the file is the Process's from then on.
func (p *Process) AddBacking(addr, size uint64, file *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backings = append(p.backings, backing{addr, addr + procfs.PageUp(size), file, make([]bool, procfs.PageUp(size)/procfs.PageSize)})
}

// MakeBacking makes the pages of the files below [addr, addr+size).
func (p *Process) MakeBacking(addr, size uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.backings {
		b := &p.backings[i]
		lo, hi := max(addr, b.lo), min(addr+size, b.hi)
		if lo >= hi {
			continue
		}
		first, end := (lo-b.lo)/procfs.PageSize, (hi-b.lo+procfs.PageSize-1)/procfs.PageSize
		if err := b.make(first, end); err != nil {
			return fmt.Errorf("process %d: memory file below 0x%x: %w", p.pid, lo, err)
		}
	}
	return nil
}

// make allocates those of the pages [first, end) that are not there.
func (b *backing) make(first, end uint64) error {
	for first < end {
		if b.there[first] {
			first++
			continue
		}
		n := first
		for n < end && !b.there[n] {
			n++
		}
		if err := unix.Fallocate(int(b.file.Fd()), 0, int64(first*procfs.PageSize), int64((n-first)*procfs.PageSize)); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		for ; first < n; first++ {
			b.there[first] = true
		}
	}
	return nil
}

// WithoutBacking picks those pages, by number, whose file has none yet: nothing has been written there.
func (p *Process) WithoutBacking(pages map[uint64]bool) map[uint64]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at := range pages {
		for i := range p.backings {
			b := &p.backings[i]
			if a := at * procfs.PageSize; b.lo <= a && a < b.hi && b.there[(a-b.lo)/procfs.PageSize] {
				delete(pages, at)
			}
		}
	}
	return pages
}

// unbacked forgets the mappings in [addr, addr+size), which are gone. Their files are closed by closeGone.
func (p *Process) unbacked(addr, size uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backings = slices.DeleteFunc(p.backings, func(b backing) bool {
		gone := addr <= b.lo && b.hi <= addr+size
		if gone {
			p.filesGone = append(p.filesGone, b.file)
		}
		return gone
	})
}

// closeGone closes files of mappings that are gone. The kernel frees their pages, for which no program is to stand.
func (p *Process) closeGone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.filesGone {
		f.Close() // nothing was written through it
	}
	p.filesGone = nil
}

// unback forgets all mappings of the tracer's. Precondition: mu is held.
func (p *Process) unback() {
	for _, b := range p.backings {
		b.file.Close() // nothing was written through it
	}
	p.backings = nil
}

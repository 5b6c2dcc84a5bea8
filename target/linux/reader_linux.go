package linux

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// reader reads the pages of an instance's rings, one for each CPU, and puts their records
// in the order of their times.
type reader struct {
	dir  string
	cpus []cpuRing
	page []byte
	wait []rawRecord // read, and not handed over yet
}

// cpuRing is the ring of one CPU.
type cpuRing struct {
	cpu int
	fd  int
}

// rawRecord is a record as the kernel wrote it; its data is its own.
type rawRecord struct {
	nanos uint64
	cpu   int
	data  []byte
}

const (
	// pagesAtOnce bounds what is read of one CPU before the others get their turn.
	pagesAtOnce = 128
	// margin, in nanoseconds, is how far behind the present records are handed over: an
	// interrupt may keep a record with an earlier time from being finished.
	margin = 1_000_000
)

// openReader opens the rings of an instance.
func openReader(dir string) (*reader, error) {
	r := &reader{dir: dir, page: make([]byte, pageSize(dir))}
	rings, err := filepath.Glob(filepath.Join(dir, "per_cpu", "cpu*"))
	if err != nil {
		return nil, err
	}
	for _, ring := range rings {
		cpu, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(ring), "cpu"))
		if err != nil {
			continue
		}
		fd, err := unix.Open(filepath.Join(ring, "trace_pipe_raw"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("ring of CPU %d: %w", cpu, err), r.close())
		}
		r.cpus = append(r.cpus, cpuRing{cpu, fd})
	}
	if len(r.cpus) == 0 {
		return nil, fmt.Errorf("instance %s has no rings", dir)
	}
	return r, nil
}

var pageData = regexp.MustCompile(`field: char data;\s+offset:(\d+);\s+size:(\d+);`)

// pageSize is the size of a ring's page, which newer kernels let one choose.
func pageSize(dir string) int {
	text, err := read(dir, "../../events/header_page")
	m := pageData.FindStringSubmatch(text)
	if err != nil || m == nil {
		return os.Getpagesize()
	}
	off, ok := number(m[1])
	size, ok2 := number(m[2])
	if !ok || !ok2 || off != pageHeader {
		return os.Getpagesize()
	}
	return off + size
}

// poll hands over records in the order of their times; all of them for the last time. It
// gives the errors of pages that are not understood, whose rest is skipped.
func (r *reader) poll(last bool, f func(*rawRecord)) (n int, err error) {
	before := monotonic() - margin
	var errs []error
	for i := range r.cpus {
		end, err := r.drain(&r.cpus[i], last)
		before = min(before, end)
		errs = append(errs, err)
	}
	slices.SortStableFunc(r.wait, func(a, b rawRecord) int { return cmp.Compare(a.nanos, b.nanos) })
	for n < len(r.wait) && (last || r.wait[n].nanos < before) {
		f(&r.wait[n])
		n++
	}
	r.wait = slices.Delete(r.wait, 0, n)
	return n, errors.Join(errs...)
}

// drain reads what a CPU has. Where it has more than one turn's share, end is the time up to
// which it was read.
func (r *reader) drain(c *cpuRing, last bool) (end uint64, err error) {
	const all = 1<<64 - 1
	var errs []error
	for k := 0; last || k < pagesAtOnce; k++ {
		n, err := unix.Read(c.fd, r.page)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN || err == nil && n == 0:
			return all, errors.Join(errs...)
		case err != nil:
			return all, errors.Join(append(errs, fmt.Errorf("ring of CPU %d: %w", c.cpu, err))...)
		}
		held := slices.Clone(r.page[:n])
		errs = append(errs, walkPage(held, func(nanos uint64, data []byte) {
			r.wait = append(r.wait, rawRecord{nanos, c.cpu, data})
			end = nanos
		}))
	}
	return end, errors.Join(errs...)
}

// monotonic is the time of the instance's clock, in nanoseconds.
func monotonic() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano())
}

// lost counts the records that the rings had no room for.
func (r *reader) lost() (n uint64, err error) {
	for _, c := range r.cpus {
		text, err := read(r.dir, "per_cpu", fmt.Sprintf("cpu%d", c.cpu), "stats")
		if err != nil {
			return n, err
		}
		n += parseLost(text)
	}
	return n, nil
}

// close closes the rings; the instance can be removed only then.
func (r *reader) close() error {
	var errs []error
	for _, c := range r.cpus {
		errs = append(errs, unix.Close(c.fd))
	}
	r.cpus = nil
	return errors.Join(errs...)
}

package ring

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// memfdName shows up as /memfd:kprobes-self:ring in the maps of the process that has made the
// ring for itself. It must differ from the name of a ring that a tracer makes in another process:
// that is a tracer's to take out.
const memfdName = "kprobes-self:ring"

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Create makes a ring: a sealed memfd, mapped here, with the pages of all data and
// control pages present. Counter tables get their pages by PrepareEvents.
//
// The memory is 2 * CPUs * (DataSize + Slack) at once. Errors are the kernel's
// (unix.ENOMEM, unix.EMFILE, …) or unix.EINVAL for a Config out of bounds.
func Create(cfg Config) (*Ring, error) {
	if cfg.CPUs == 0 {
		n, err := possibleCPUs()
		if err != nil {
			return nil, err
		}
		cfg.CPUs = n
	}
	l, err := NewLayout(cfg)
	if err != nil {
		return nil, err
	}
	fd, err := newMemfd()
	if err != nil {
		return nil, err
	}
	r, err := create(fd, l, cfg.Sparse)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("ring: %w", err)
	}
	return r, nil
}

// newMemfd asks for a file that can never be executed (kernel 6.3 and later; before,
// the flag is unknown).
func newMemfd() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(memfdName, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(memfdName, flags)
	}
	if err != nil {
		return -1, fmt.Errorf("ring: memfd_create: %w", err)
	}
	return fd, nil
}

func create(fd int, l Layout, later bool) (*Ring, error) {
	if err := unix.Ftruncate(fd, int64(l.Size())); err != nil {
		return nil, fmt.Errorf("memfd of %d bytes: %w", l.Size(), err)
	}
	r, err := mapRing(fd, l)
	if err != nil {
		return nil, err
	}
	if later {
		r.makeSparse()
	}
	r.writeHeader()
	if err := r.finish(); err != nil {
		return nil, errors.Join(err, unix.Munmap(r.mem))
	}
	return r, nil
}

// finish seals the file and brings its pages in; of a sparse ring the control pages.
func (r *Ring) finish() error {
	if _, err := unix.FcntlInt(uintptr(r.fd), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seals: %w", err)
	}
	return r.prepareShards()
}

func mapRing(fd int, l Layout) (*Ring, error) {
	mem, err := unix.Mmap(fd, 0, int(l.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", l.Size(), err)
	}
	return &Ring{Layout: l, mem: mem, fd: fd}, nil
}

// Open joins a ring that exists already: one found in a target, or inherited. It
// checks the seals, the size and the header before anything is mapped for good;
// whatever does not hold answers to ErrNotRing. The descriptor stays the caller's: the
// ring works on a duplicate.
func Open(fd int) (*Ring, error) {
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("ring: descriptor %d is no memfd: %w", fd, ErrNotRing)
	}
	if err != nil {
		return nil, fmt.Errorf("ring: seals of descriptor %d: %w", fd, err)
	}
	if have&seals != seals {
		return nil, fmt.Errorf("ring: seals %#x of descriptor %d: its size could change (want %#x): %w", have, fd, seals, ErrNotRing)
	}
	l, err := readLayout(fd)
	if err != nil {
		return nil, fmt.Errorf("ring: descriptor %d: %w", fd, err)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("ring: dup of descriptor %d: %w", fd, err)
	}
	r, err := mapRing(dup, l)
	if err != nil {
		unix.Close(dup)
		return nil, fmt.Errorf("ring: %w", err)
	}
	return r, nil
}

// readLayout takes the header and the size of the file and believes neither alone.
func readLayout(fd int) (Layout, error) {
	hdr := make([]byte, headerSize)
	if n, err := unix.Pread(fd, hdr, 0); err != nil || n != len(hdr) {
		return Layout{}, errors.Join(fmt.Errorf("header: %d of %d bytes: %w", max(n, 0), len(hdr), ErrNotRing), err)
	}
	l, err := parseHeader(hdr)
	if err != nil {
		return Layout{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Layout{}, fmt.Errorf("size: %w", err)
	}
	if st.Size < 0 || uint64(st.Size) != l.Size() {
		return Layout{}, fmt.Errorf("size %d, but the header says %d: %w", st.Size, l.Size(), ErrNotRing)
	}
	return l, nil
}

// FD is the ring's memfd, to be mapped into a target. It stays the ring's. A ring of On has
// none: -1.
func (r *Ring) FD() int { return r.fd }

// Close unmaps the ring and closes its descriptor. The ring lives on in whatever else
// has it mapped. No reader of it may be in use. Memory that was given to On stays mapped.
func (r *Ring) Close() error {
	if r.mem == nil {
		return nil
	}
	mem := r.mem
	r.mem = nil
	if r.fd < 0 {
		return nil
	}
	if err := errors.Join(unix.Munmap(mem), unix.Close(r.fd)); err != nil {
		return fmt.Errorf("ring: close: %w", err)
	}
	return nil
}

// prepareShards faults in the control page, the data and the slack of every shard.
func (r *Ring) prepareShards() error {
	for i := range r.Shards() {
		off := r.ShardOff(i)
		if err := r.populate(off, PageSize); err != nil {
			return err
		}
		if r.sparse != nil {
			continue
		}
		if err := r.populate(off+r.DataOff(), r.Data+Slack); err != nil {
			return err
		}
	}
	return nil
}

// PrepareEvents faults in the counters of events 0 to n-1 of all shards, so that no
// probe hit takes the fault. All pages of a ring of On are there. Errors: unix.EINVAL for n
// out of bounds, unix.ENOMEM.
func (r *Ring) PrepareEvents(n int) error {
	if n < 0 || n > r.Events {
		return fmt.Errorf("ring: counters of %d events: the table has %d: %w", n, r.Events, unix.EINVAL)
	}
	if r.fd < 0 {
		return nil
	}
	size := (uint64(n)*CounterSize + PageSize - 1) &^ uint64(PageSize-1)
	for i := 0; i < r.Shards() && n > 0; i++ {
		if err := r.populate(r.ShardOff(i)+ShCounters, size); err != nil {
			return err
		}
	}
	return nil
}

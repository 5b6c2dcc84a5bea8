package qemu

import (
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// How long the lock is waited for: heldFor where nothing is known of who holds it, tidyFor where that
// is the guardian of a tracer that was killed, which tidies up and goes.
const (
	heldFor = 2 * time.Second
	tidyFor = time.Minute
)

// openMemory maps the file that backs the RAM, and takes the lock on it.
func (m *Machine) openMemory() error {
	flag, prot := os.O_RDWR, unix.PROT_READ|unix.PROT_WRITE
	if m.opt.Unlocked {
		flag, prot = os.O_RDONLY, unix.PROT_READ
	}
	f, err := os.OpenFile(m.spec.Memory, flag, 0)
	if err != nil {
		return withFlags(fmt.Errorf("memory of the guest: %w", err))
	}
	m.file = f
	if !m.opt.Unlocked {
		if err := lock(f, heldFor, tidyFor); err != nil {
			return err
		}
	}
	m.ram, err = mapFile(f, prot)
	return err
}

// lock takes the exclusive lock on a file within wait, or within takeover where a guardian has it, or fails
// with ErrHeld.
func lock(f *os.File, wait, takeover time.Duration) error {
	nobody := false
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("lock of %s: %w", f.Name(), err)
		case time.Since(start) < wait:
			continue
		}
		has, took := holder(f)
		who := ""
		switch {
		case has != took && wait < takeover:
			wait = takeover
			continue
		case has == 0 && !nobody:
			nobody, wait = true, wait+heldFor // its process may be ending
			continue
		case has != took:
			who = fmt.Sprintf(", held by process %d, the guardian of one that has ended", has)
		case has > 0:
			who = fmt.Sprintf(", held by process %d", has)
		}
		return fmt.Errorf("memory of the guest, %s%s: %w", f.Name(), who, ErrHeld)
	}
}

// mapFile maps a whole file, shared.
func mapFile(f *os.File, prot int) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() < unixPage || st.Size() != int64(int(st.Size())) {
		return nil, errno.Errorf(unix.EINVAL, "%s: not a file that can be a machine's memory: %v, %d bytes", f.Name(), st.Mode(), st.Size())
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%s: mmap of %d bytes: %w", f.Name(), st.Size(), err)
	}
	return b, nil
}

// unixPage is the least memory that can be mapped, in bytes.
const unixPage = 4096

// checkSize tells when the file has become shorter than what is mapped: reading on would end
// this process.
func (m *Machine) checkSize() error {
	st, err := m.file.Stat()
	if err != nil {
		return err
	}
	if st.Size() < int64(len(m.ram)) {
		return errno.Errorf(unix.EIO, "memory of the guest: %s was truncated from %d to %d bytes", m.file.Name(), len(m.ram), st.Size())
	}
	return nil
}

// largestPlain is up to where RAM lies in one piece on every pc and q35 machine (QEMU 7.2,
// pc_q35_init: below 4 GB there are 2 GB at least).
const largestPlain = 2 << 30

// assume lays out the memory where nobody can be asked: RAM as the file has it, without the
// places for legacy devices and firmware.
func (m *Machine) assume() error {
	size := uint64(len(m.ram))
	if size <= 1<<20 || size > largestPlain {
		return fmt.Errorf("memory of the guest: %d bytes, and its layout can not be asked for: %w", size, ErrHeld)
	}
	m.pieces = []region{{start: 0, end: 0xa0000}, {start: 1 << 20, end: size, off: 1 << 20}}
	m.setRanges()
	close(m.events)
	if m.spec.Ring == "" {
		return nil
	}
	return m.openRing()
}

// openRing maps the file of the ivshmem device.
func (m *Machine) openRing() error {
	flag, prot := os.O_RDWR, unix.PROT_READ|unix.PROT_WRITE
	if m.opt.Unlocked {
		flag, prot = os.O_RDONLY, unix.PROT_READ
	}
	f, err := os.OpenFile(m.spec.Ring, flag, 0)
	if err != nil {
		return withFlags(fmt.Errorf("memory of the ivshmem device: %w", err))
	}
	defer f.Close()
	m.ring, err = mapFile(f, prot)
	return err
}

// mapRing maps the ivshmem device's memory, if the spec names one, and learns where the
// guest has it.
func (m *Machine) mapRing() error {
	if m.spec.Ring == "" {
		return nil
	}
	if err := m.openRing(); err != nil {
		return err
	}
	backend, err := m.ringBackend()
	if err != nil {
		return err
	}
	regions, err := m.regions()
	if err != nil {
		return err
	}
	pieces, err := backed(regions, backend, uint64(len(m.ring)))
	if err != nil {
		return err
	}
	if len(pieces) != 1 || pieces[0].off != 0 || pieces[0].end-pieces[0].start != uint64(len(m.ring)) {
		return errno.Errorf(unix.EAGAIN, "ivshmem device: its memory %s is not mapped in the guest: the firmware has given BAR 2 no address yet, or the guest has disabled the device (%v)",
			m.spec.Ring, pieces)
	}
	m.ringPA = pieces[0].start
	return nil
}

// ringBackend finds the memory backend that the ring's file belongs to.
func (m *Machine) ringBackend() (string, error) {
	f, err := os.Open(m.spec.Ring)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var backends []struct {
		ID    string `json:"id"`
		Size  uint64 `json:"size"`
		Share bool   `json:"share"`
	}
	if err := m.mon.run("query-memdev", nil, &backends); err != nil {
		return "", err
	}
	for _, b := range backends {
		if b.ID == "" || !b.Share || b.Size != uint64(len(m.ring)) {
			continue
		}
		var p string
		object := "/objects/" + b.ID
		if m.mon.property(object, "mem-path", &p) == nil && p != "" && m.sameFile(object, f, m.spec.Ring) == nil {
			return b.ID, nil
		}
	}
	return "", errno.Errorf(unix.EINVAL, "ivshmem device: no shared memory backend of QEMU has the file %s with %d bytes; QEMU must be started with\n%s",
		m.spec.Ring, len(m.ring), Flags())
}

func baseName(object string) string { return path.Base(object) }

// unmap gives back the memory and the lock.
func (m *Machine) unmap() {
	m.pieces, m.ranges = nil, nil
	if m.ram != nil {
		_ = unix.Munmap(m.ram)
	}
	if m.ring != nil {
		_ = unix.Munmap(m.ring)
	}
	m.ram, m.ring, m.ringPA = nil, nil, 0
	if m.file != nil {
		_ = m.file.Close()
	}
}

package process

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/ring"
)

// makeRing makes the ring on a memory file of the process and maps it there. The pages of records
// come later, from the tracer (populate). Precondition: the world is stopped.
func (t *Target) makeRing(s *ptrace.Stopped) error {
	local, fd, err := t.openMemfd(s, ringName)
	if err != nil {
		return err
	}
	dup, err := unix.FcntlInt(local.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err = errors.Join(err, local.Close()); err == nil {
		t.ring, err = ring.CreateOn(dup, t.mem.ring)
	}
	return errors.Join(err, t.mapRing(s, fd))
}

// mapRing maps the ring, if it could be made, and closes the process's descriptor.
func (t *Target) mapRing(s *ptrace.Stopped, fd int) (err error) {
	defer func() { err = errors.Join(err, s.CloseFD(fd)) }()
	if t.ring == nil {
		return nil
	}
	addr, err := s.Mmap(0, t.ring.Size(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, fd, 0)
	if err != nil {
		return err
	}
	t.writer.Ring, t.writer.Layout = addr, t.ring.Layout
	return t.findRing(s)
}

// populate brings in the pages of the shards that will be written, and enters them into the process's
// page tables, so that the first records do not fault. They are read from here while the process runs: no thread
// of its has to do anything, and the process is not the first to touch them: its memory cgroup would pay.
func (t *Target) populate() error {
	l := t.writer.Layout
	shards, size := slices.Clone(t.mem.cpus), l.Data
	if !t.writer.HasRseq {
		size = 8 * l.LockedUnits()
		for i, cpu := range shards {
			shards[i] = l.Locked(cpu)
		}
	}
	for _, i := range shards {
		if err := t.ring.PrepareShard(i); err != nil {
			return err
		}
	}
	piece := make([]byte, min(size, warmPiece))
	for _, i := range shards {
		for at := uint64(0); at < size; at += warmPiece {
			if err := t.p.ReadMem(t.writer.Ring+l.ShardOff(i)+l.DataOff()+at, piece[:min(size-at, warmPiece)]); err != nil {
				return asGone(err)
			}
		}
	}
	return nil
}

// warmPiece is how much of the ring is read at once.
const warmPiece = 1 << 20

// findRing notes which file the ring is, as mappings show it.
func (t *Target) findRing(s *ptrace.Stopped) error {
	maps, err := s.Process().MapsIn(t.writer.Ring, procfs.PageSize)
	for _, m := range maps {
		if m.Start == t.writer.Ring {
			t.ringID = m.FileID
		}
	}
	return err
}

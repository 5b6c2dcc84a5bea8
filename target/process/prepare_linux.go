package process

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// Prepare maps the ring and the control block into the process and learns what generated code
// needs to know of it. The process is stopped for it once.
func (t *Target) Prepare() error {
	if t.control != nil {
		return nil
	}
	if err := t.proc.Lock(); err != nil {
		return err
	}
	if err := t.undoLeftovers(); err != nil {
		return err
	}
	if err := t.learnSharing(); err != nil {
		return err
	}
	t.learnMasks()
	if err := t.fit(); err != nil {
		return err
	}
	t.planRooms()
	t.planTables()
	before, err := t.p.Statuses()
	if err != nil {
		return err
	}
	t.before = before
	t.p.NoteRunning(before)
	t.askEarly((*ptrace.Thread).AskAhead)
	defer t.askEarly(nil)
	err = t.stopped(func(s *ptrace.Stopped) error {
		err := t.prepare(s)
		if err != nil {
			err = errors.Join(err, t.unprepare(s))
		}
		return err
	})
	if err != nil {
		return err
	}
	return t.populate()
}

// askEarly says what stops ask of threads that sleep (StopOptions); nil: nothing.
func (t *Target) askEarly(ask func(*ptrace.Thread)) { t.early = ask }

// askRseq asks of a thread what a stop needs that only looks whose block the thread has.
func (t *Target) askRseq(th *ptrace.Thread) {
	if t.writer.HasRseq {
		_, _ = th.Rseq()
	}
}

// alone gives the process up, with an ErrOwn, if its own engine has come meanwhile that does not see
// our lock. That engine maps its memory first and then looks for our control block; we have mapped the control block
// and look for that memory. So one of the two sees the other, or both do. Precondition: the world is
// stopped.
func (t *Target) alone(s *ptrace.Stopped) error {
	maps, err := s.FileMaps()
	if err != nil {
		return err
	}
	own := ownEngine(t.p, maps)
	if own == nil {
		return nil
	}
	err = t.unmapOwn(s, maps)
	t.control = nil
	t.proc.Unlock()
	return errors.Join(own, err)
}

// prepare is Prepare's work in one stop. Precondition: the world is stopped.
func (t *Target) prepare(s *ptrace.Stopped) error {
	if err := t.learnLocks(s); err != nil {
		return err
	}
	if err := t.makeRing(s); err != nil {
		return err
	}
	if err := t.mapControlBlock(s); err != nil {
		return err
	}
	if err := t.alone(s); err != nil {
		return err
	}
	if err := t.learn(s); err != nil {
		return err
	}
	if err := t.mapRooms(s); err != nil {
		return err
	}
	return t.reserveTables()
}

// unprepare takes out what a prepare that failed has brought in: the next tracer is to find nothing.
// Precondition: the world is stopped.
func (t *Target) unprepare(s *ptrace.Stopped) error {
	if t.ring != nil {
		t.ring.Close() // nobody has read it
	}
	t.ring, t.control, t.faults = nil, nil, nil
	t.setCode(nil)
	maps, err := t.p.Maps()
	if err == nil {
		maps, err = leftMaps(t.p, maps)
	}
	if err != nil {
		return ignoreEnded(err)
	}
	return ignoreEnded(errors.Join(closeLeft(s), unmap(s, false, maps)))
}

// undoLeftovers takes out what a tracer has left that is gone: nobody else holds the
// process, for we do.
func (t *Target) undoLeftovers() error {
	l, err := findLeftover(t.p)
	if err != nil || l == nil {
		return err
	}
	if !t.begun.Load() {
		return errno.Errorf(unix.EBUSY, "process %d: mappings of ours are in a program that has not run yet", t.p.PID())
	}
	u, err := l.Undo()
	if err == nil && len(u.Foreign) > 0 {
		err = fmt.Errorf("0x%x: %w", u.Foreign, ErrForeign)
	}
	if err != nil {
		return fmt.Errorf("process %d: what %s has left can not be taken out: %w", t.p.PID(), l.tracer(), err)
	}
	return nil
}

// memfd makes a memory file in the process and opens it here. The process's own
// descriptor is given to use, and closed after.
func (t *Target) memfd(s *ptrace.Stopped, name string, use func(local *os.File, fd int) error) (err error) {
	local, fd, err := t.openMemfd(s, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.CloseFD(fd)) }()
	return use(local, fd)
}

// openMemfd makes a memory file in the process and opens it here.
func (t *Target) openMemfd(s *ptrace.Stopped, name string) (local *os.File, fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = s.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL) // never to be executed as a file: what vm.memfd_noexec may ask for
	if errors.Is(err, unix.EINVAL) {
		fd, err = s.MemfdCreate(name, flags) // before Linux 6.3
	}
	if err != nil {
		return nil, 0, err
	}
	path := fmt.Sprintf("/proc/%d/%s", t.p.PID(), t.p.FileName(fmt.Sprintf("fd/%d", fd)))
	link, err := os.Readlink(path)
	if err == nil && !strings.HasPrefix(link, "/memfd:"+name) {
		err = fmt.Errorf("descriptor %d of process %d is %q, not the memory file just made", fd, t.p.PID(), link)
	}
	if err == nil {
		local, err = os.OpenFile(path, os.O_RDWR|tracerFlag, 0)
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("memory file of process %d: %w", t.p.PID(), err), s.CloseFD(fd))
	}
	return local, fd, nil
}

func (t *Target) mapControlBlock(s *ptrace.Stopped) error {
	size := controlSize + t.roomForTables()
	addr, err := t.mapPrivate(s, controlName, 0, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	t.control = controlBlockAt(t.p, addr)
	t.control.end = addr + size
	t.control.more = t.moreHeap
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return err
	}
	since, err := selfStart()
	if err != nil {
		return err
	}
	return t.control.init(binary.LittleEndian.Uint64(b[:]), uint64(os.Getpid()), since, t.writer.Ring, t.ring.Size())
}

// selfStart is the tracer's own start time, in clock ticks after boot.
func selfStart() (uint64, error) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	st, err := procfs.ParseStat(string(b))
	if err != nil {
		return 0, err
	}
	return st.Start, nil
}

// mapPrivate maps a fresh memory file privately, so that what is written is the
// process's alone and the mapping keeps its name.
func (t *Target) mapPrivate(s *ptrace.Stopped, name string, at, size uint64, prot int) (addr uint64, err error) {
	flags := 0
	if at != 0 {
		flags = unix.MAP_FIXED_NOREPLACE
	}
	return t.mapFile(s, name, at, size, prot, flags)
}

// mapLow is mapPrivate in the first 2 GB.
func (t *Target) mapLow(s *ptrace.Stopped, name string, size uint64, prot int) (addr uint64, err error) {
	return t.mapFile(s, name, 0, size, prot, mapLow)
}

func (t *Target) mapFile(s *ptrace.Stopped, name string, at, size uint64, prot, flags int) (addr uint64, err error) {
	err = t.memfd(s, name, func(local *os.File, fd int) error {
		if addr, err = t.mapSealed(s, local, fd, at, size, prot, flags); err != nil {
			return errors.Join(err, local.Close())
		}
		t.p.AddBacking(addr, size, local)
		return nil
	})
	return addr, err
}

// mapSealed maps a memory file privately, once nobody can change it any more.
func (t *Target) mapSealed(s *ptrace.Stopped, local *os.File, fd int, at, size uint64, prot, flags int) (uint64, error) {
	if err := local.Truncate(int64(size)); err != nil {
		return 0, err
	}
	if err := seal(local); err != nil {
		return 0, err
	}
	return s.Mmap(at, size, prot, flags|unix.MAP_PRIVATE|unix.MAP_NORESERVE, fd, 0)
}

// seal lets nobody change a memory file any more.
func seal(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	return err
}

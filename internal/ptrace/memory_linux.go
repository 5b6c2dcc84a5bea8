package ptrace

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// Mmap lets the target map memory (mmap(2)) and checks with /proc/PID/maps that it is
// there as wanted. Addresses and sizes are in bytes, fd is the target's. In a process that locks
// all its memory the new one is unlocked before it may be accessed: the kernel would bring in all
// its pages at once.
func (s *Stopped) Mmap(addr, size uint64, prot, flags int, fd int, offset uint64) (uint64, error) {
	if !s.p.LocksAll() {
		return s.mmap(addr, size, prot, flags, fd, offset)
	}
	at, err := s.mmap(addr, size, unix.PROT_NONE, flags, fd, offset)
	if err != nil {
		return 0, err
	}
	if _, err = s.Call(unix.SYS_MUNLOCK, at, size); err != nil {
		return 0, errors.Join(fmt.Errorf("munlock of %#x bytes at %#x in the target: %w", size, at, err), s.Munmap(at, size))
	}
	return at, s.Mprotect(at, size, prot)
}

func (s *Stopped) mmap(addr, size uint64, prot, flags int, fd int, offset uint64) (uint64, error) {
	at, err := s.Call(unix.SYS_MMAP, addr, size, uint64(prot), uint64(flags), uint64(int64(fd)), offset)
	if err != nil {
		return 0, fmt.Errorf("mmap of %#x bytes at %#x in the target: %w", size, addr, err)
	}
	return at, s.checkMapped("mmap", at, size, func(m procfs.Map) bool { return m.Perm&^procfs.PermShared == permOf(prot) })
}

// Munmap lets the target unmap memory and checks that it is gone.
func (s *Stopped) Munmap(addr, size uint64) error {
	return s.MunmapAll([]procfs.Map{{Start: addr, End: addr + size}})
}

// MunmapAll is Munmap for several mappings, one after the other.
func (s *Stopped) MunmapAll(maps []procfs.Map) error {
	if len(maps) == 0 {
		return nil
	}
	calls := make([]Syscall, len(maps))
	for i, m := range maps {
		calls[i] = Syscall{Nr: unix.SYS_MUNMAP, Args: [6]uint64{m.Start, m.Size()}}
	}
	if err := s.CallAll(calls); err != nil {
		return err
	}
	for i, m := range maps {
		if err := s.unmapped(m.Start, m.Size(), calls[i].Err); err != nil {
			return err
		}
	}
	return nil
}

// unmapped checks that memory is gone, which the target was made to unmap with a result.
func (s *Stopped) unmapped(addr, size uint64, err error) error {
	if err != nil {
		return fmt.Errorf("munmap of %#x bytes at %#x in the target: %w", size, addr, err)
	}
	s.p.unbacked(addr, procfs.PageUp(size))
	maps, err := s.p.MapsIn(addr, procfs.PageUp(size))
	if err == nil && procfs.Overlaps(maps, addr, procfs.PageUp(size)) {
		err = fmt.Errorf("munmap of %#x bytes at %#x in the target: %w: it is still mapped", size, addr, ErrFault)
	}
	return err
}

// Mprotect lets the target change what memory permits, and checks it.
func (s *Stopped) Mprotect(addr, size uint64, prot int) error {
	if _, err := s.Call(unix.SYS_MPROTECT, addr, size, uint64(prot)); err != nil {
		return fmt.Errorf("mprotect of %#x bytes at %#x in the target: %w", size, addr, err)
	}
	return s.checkMapped("mprotect", addr, size, func(m procfs.Map) bool { return m.Perm&^procfs.PermShared == permOf(prot) })
}

// checkMapped does not believe the result of a call that the target made.
func (s *Stopped) checkMapped(what string, addr, size uint64, ok func(procfs.Map) bool) error {
	maps, err := s.p.MapsIn(addr, procfs.PageUp(size))
	if err == nil && (addr%procfs.PageSize != 0 || !procfs.Covered(maps, addr, procfs.PageUp(size), ok)) {
		if gone := s.p.CheckImage(); gone != nil {
			return fmt.Errorf("%s in the target: %w", what, gone)
		}
		err = fmt.Errorf("%s of %#x bytes at %#x in the target: %w: the kernel's maps show something else", what, size, addr, ErrFault)
	}
	return err
}

// Replace puts anonymous memory with some contents, whole pages, in the place of what is mapped at
// an address, at once.
func (s *Stopped) Replace(addr uint64, contents []byte, prot int) error {
	size := uint64(len(contents))
	at, err := s.Mmap(0, size, prot, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
	if err != nil {
		return err
	}
	if err = s.p.WriteMem(at, contents); err == nil {
		_, err = s.Call(unix.SYS_MREMAP, at, size, size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, addr)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("memory for the handlers that stay at 0x%x: %w", addr, err), s.Munmap(at, size))
	}
	return s.checkMapped("mremap", addr, size, func(m procfs.Map) bool { return m.Perm&^procfs.PermShared == permOf(prot) && m.Path == "" })
}

func permOf(prot int) (p procfs.Perm) {
	for _, b := range []struct {
		prot int
		perm procfs.Perm
	}{{unix.PROT_READ, procfs.PermRead}, {unix.PROT_WRITE, procfs.PermWrite}, {unix.PROT_EXEC, procfs.PermExec}} {
		if prot&b.prot != 0 {
			p |= b.perm
		}
	}
	return p
}

// MemfdCreate lets the target make a memory file (memfd_create(2)) and gives its descriptor
// there. OpenFD opens it here; CloseFD closes it there, once it is mapped.
func (s *Stopped) MemfdCreate(name string, flags int) (fd int, err error) {
	call := Syscall{Nr: unix.SYS_MEMFD_CREATE, Data: append([]byte(name), 0)}
	call.Args[1] = uint64(flags)
	calls := []Syscall{call}
	if err = s.CallAll(calls); err == nil {
		err = calls[0].Err
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create in the target: %w", err)
	}
	return int(calls[0].Result), nil
}

// CloseFD lets the target close one of its descriptors.
func (s *Stopped) CloseFD(fd int) error {
	if _, err := s.Call(unix.SYS_CLOSE, uint64(fd)); err != nil {
		return fmt.Errorf("close of descriptor %d in the target: %w", fd, err)
	}
	return nil
}

// OpenFD opens what a descriptor of the target refers to, for reading and writing.
func (p *Process) OpenFD(fd int) (*os.File, error) {
	f, err := p.OpenAt(p.FileName(fmt.Sprintf("fd/%d", fd)), unix.O_RDWR|unix.O_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("process %d: descriptor %d: %w", p.pid, fd, err)
	}
	return f, nil
}

package process

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// A program that asks for a disposition while our handlers stand is told of the resident ones, and may put it
// back, or call it, whenever it likes: a crash handler calls the one that stood before it. So where
// the program has put another handler in the place of a resident one, these stay when we leave: their
// code and the header of the control block, a few pages at the addresses where they were, without a name, and
// with tables that are empty, so that faults are passed on to what stood before us. Nobody takes
// them out again. A tracer that is killed on the way leaves what the next one needs to go on, and
// perhaps a page that nobody uses.

// stay makes the code of the handlers that a control block tells of anonymous memory; false: there are none
// any more, or the process is not allowed to, or has no memory for it. Precondition: the world is stopped.
func stay(s *ptrace.Stopped, control uint64) (bool, error) {
	entry, err := controlBlockAt(s.Process(), control).get(hdrResident)
	if err != nil || entry == 0 {
		return false, err
	}
	maps, err := s.Process().MapsIn(entry, 1) // after a tracer that was killed here it is anonymous already
	if err != nil {
		return false, err
	}
	for _, m := range maps {
		if entry < m.Start || entry >= m.End {
			continue
		}
		lo, hi := max(m.Start, (entry-stayBefore)&^(procfs.PageSize-1)), min(m.End, procfs.PageUp(entry+stayBehind))
		code := make([]byte, hi-lo)
		if err := s.Process().ReadMem(lo, code); err != nil {
			return false, err
		}
		// The number of sites, and the tables: nothing leads to a detour any more, for these go.
		if err := s.Process().WriteMem(control+hdrSites, make([]byte, hdrWait-hdrSites)); err != nil {
			return false, err
		}
		// What the process is not allowed, or has no memory for, does not keep us there.
		return s.Replace(lo, code, unix.PROT_READ|unix.PROT_EXEC) == nil, s.Process().CheckImage()
	}
	return false, nil
}

// More than the code of the handlers has before that of faults, and from there on, in bytes.
const stayBefore, stayBehind = 64, 2048

// keepResident leaves of a control block, which is mapped in m, what the handlers read. Precondition: the world
// is stopped, and nothing else of the tracer's is left.
func keepResident(s *ptrace.Stopped, m procfs.Map) error {
	header := make([]byte, procfs.PageSize)
	if err := s.Process().ReadMem(m.Start, header); err != nil {
		return err
	}
	if m.Size() > procfs.PageSize {
		if err := s.Munmap(m.Start+procfs.PageSize, m.Size()-procfs.PageSize); err != nil {
			return err
		}
	}
	binary.LittleEndian.PutUint64(header[hdrMagic:], 0)
	return s.Replace(m.Start, header, unix.PROT_READ|unix.PROT_WRITE)
}

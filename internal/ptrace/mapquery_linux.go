package ptrace

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// mapQuery is struct procmap_query (linux/fs.h, Linux 6.11): the mapping at an address or the next
// one, without the text of thousands of others.
type mapQuery struct {
	size, flags, addr                         uint64
	start, end, perm, pageSize, offset, inode uint64
	major, minor, nameSize, buildIDSize       uint32
	nameAddr, buildIDAddr                     uint64
}

const (
	procmapQuery   = 0xc0686611 // _IOWR('f', 17, struct procmap_query)
	coveringOrNext = 0x10       // PROCMAP_QUERY_COVERING_OR_NEXT_VMA
	fileBacked     = 0x20       // PROCMAP_QUERY_FILE_BACKED_VMA
)

// MapsIn gives the mappings that have a byte in [addr, addr+size), by the kernel's query where it has
// one, else all there are.
func (p *Process) MapsIn(addr, size uint64) ([]procfs.Map, error) {
	f, err := p.OpenAt(p.FileName("maps"), unix.O_RDONLY)
	if err != nil {
		return nil, p.Gone(err)
	}
	defer f.Close()
	var out []procfs.Map
	for at := addr; at < addr+size; {
		m, err := queryMap(int(f.Fd()), at, coveringOrNext, true)
		switch {
		case errors.Is(err, unix.ENOENT):
			return out, nil
		case err != nil:
			return p.Maps()
		}
		if m.Start >= addr+size {
			break
		}
		out, at = append(out, m), m.End
	}
	return out, nil
}

// queryMap asks for the mapping at an address, or by flags for the next one of a kind.
func queryMap(fd int, at, flags uint64, named bool) (m procfs.Map, err error) {
	q := mapQuery{flags: flags, addr: at}
	q.size = uint64(unsafe.Sizeof(q))
	var name []byte
	if named {
		var pin runtime.Pinner
		defer pin.Unpin()
		name = make([]byte, unix.PathMax)
		pin.Pin(&name[0])
		q.nameAddr, q.nameSize = uint64(uintptr(unsafe.Pointer(&name[0]))), uint32(len(name))
	}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), procmapQuery, uintptr(unsafe.Pointer(&q))); e != 0 {
		return m, e
	}
	m = procfs.Map{Start: q.start, End: q.end, Perm: procfs.Perm(q.perm & 0xf), Offset: q.offset}
	m.Dev, m.Inode = uint64(q.major)<<32|uint64(q.minor), q.inode
	if !named {
		return m, nil
	}
	text, _, _ := strings.Cut(string(name[:q.nameSize]), "\x00")
	m.SetPath(text)
	return m, nil
}

// queries opens what the kernel is asked of mappings by; nil if it can not be asked (before Linux 6.11).
func (s *Stopped) queries() *os.File {
	if s.asked {
		return s.query
	}
	s.asked = true
	f, err := s.p.OpenAt(s.p.FileName("maps"), unix.O_RDONLY)
	if err != nil {
		return nil
	}
	if _, err := queryMap(int(f.Fd()), 0, coveringOrNext, false); err != nil {
		f.Close()
		return nil
	}
	s.query = f
	return f
}

// mapAt gives the mapping that an address lies in, without its name: where there are thousands of threads
// the list of all takes a while. The error is why that is not known.
func (s *Stopped) mapAt(addr uint64) (m procfs.Map, ok bool, err error) {
	if f := s.queries(); f != nil && s.maps == nil {
		m, err := queryMap(int(f.Fd()), addr, 0, false)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return m, err == nil, nil
		}
	}
	maps, err := s.Maps()
	if err != nil {
		return m, false, err
	}
	m, ok = procfs.FindMap(maps, addr)
	return m, ok, nil
}

// FileMaps gives the mappings of files, ours among them; and perhaps others.
func (s *Stopped) FileMaps() ([]procfs.Map, error) {
	f := s.queries()
	if f == nil || s.maps != nil {
		return s.Maps()
	}
	if s.files != nil {
		return s.files, nil
	}
	var out []procfs.Map
	for at := uint64(0); ; {
		m, err := queryMap(int(f.Fd()), at, coveringOrNext|fileBacked, true)
		if errors.Is(err, unix.ENOENT) && len(out) > 0 {
			break
		}
		if err != nil { // a path longer than the kernel answers with, say, or the process has ended
			return s.Maps()
		}
		out, at = append(out, m), m.End
	}
	s.files = out
	return out, nil
}

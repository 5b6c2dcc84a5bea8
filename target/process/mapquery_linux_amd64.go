package process

import (
	"errors"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
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
)

// mapsIn gives the mappings that have a byte in [addr, addr+size), by the kernel's query where it has
// one, else all there are.
func (p *Proc) mapsIn(addr, size uint64) ([]Map, error) {
	f, err := p.openAt(p.own("maps"), unix.O_RDONLY)
	if err != nil {
		return nil, p.gone(err)
	}
	defer f.Close()
	var out []Map
	for at := addr; at < addr+size; {
		m, err := queryMap(int(f.Fd()), at)
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

// queryMap asks for the mapping at an address, or the next one.
func queryMap(fd int, at uint64) (m Map, err error) {
	name := make([]byte, unix.PathMax)
	q := mapQuery{flags: coveringOrNext, addr: at, nameSize: uint32(len(name))}
	q.size = uint64(unsafe.Sizeof(q))
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&name[0])
	q.nameAddr = uint64(uintptr(unsafe.Pointer(&name[0])))
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), procmapQuery, uintptr(unsafe.Pointer(&q))); e != 0 {
		return m, e
	}
	m = Map{Start: q.start, End: q.end, Perm: Perm(q.perm & 0xf), Offset: q.offset}
	m.Dev, m.Inode = uint64(q.major)<<32|uint64(q.minor), q.inode
	text, _, _ := strings.Cut(string(name[:q.nameSize]), "\x00")
	m.setPath(text)
	return m, nil
}

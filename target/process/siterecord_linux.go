package process

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"kprobes.dev/kprobes/internal/target"
)

// siteRecord is an entry of the site table.
//
//	0  address     8  length of the patch     16 original bytes     32 patch     48 detour
//	56 up to two points: offset from the address, probes, return probes, a byte each
//	16 to 55 of a probe whose object is gone: the beginning of its place, up to a NUL; the patch is empty
//	62 of a breakpoint: why it is no jump (target.Reason); 0: not told
type siteRecord struct {
	addr   uint64
	orig   []byte
	patch  []byte
	detour uint64
	points []target.Point
	reason target.Reason
	name   string // of one that is gone
}

func (s *siteRecord) append(to []byte) []byte {
	to = append(to, make([]byte, siteSize)...)
	b := to[len(to)-siteSize:]
	binary.LittleEndian.PutUint64(b, s.addr)
	binary.LittleEndian.PutUint64(b[8:], uint64(len(s.patch)))
	copy(b[16:32], s.orig)
	copy(b[32:48], s.patch)
	binary.LittleEndian.PutUint64(b[48:], s.detour)
	b[reasonOff] = byte(s.reason)
	if s.reason == target.ReasonGone {
		copy(b[nameOff:nameOff+nameSize], s.name)
	}
	for i, p := range s.points[:min(len(s.points), maxPoints)] {
		at := b[pointOff+i*pointSize:]
		at[0], at[1], at[2] = byte(p.Addr-s.addr), byte(min(p.Probes, 255)), byte(min(p.Returns, 255))
	}
	return to
}

// errControlBlock says that what stands in a process is not a control block of a tracer's.
var errControlBlock = errors.New("kprobes: the memory left in the process is not understood")

func decodeSite(b []byte) (siteRecord, error) {
	n := binary.LittleEndian.Uint64(b[8:])
	if n > 16 {
		return siteRecord{}, fmt.Errorf("site of %d bytes: %w", n, errControlBlock)
	}
	s := siteRecord{
		addr:   binary.LittleEndian.Uint64(b),
		orig:   b[16 : 16+n : 16+n],
		patch:  b[32 : 32+n : 32+n],
		detour: binary.LittleEndian.Uint64(b[48:]),
		reason: target.Reason(b[reasonOff]),
	}
	if s.reason == target.ReasonGone && n == 0 {
		name, _, _ := bytes.Cut(b[nameOff:nameOff+nameSize], []byte{0})
		s.name, s.detour = string(name), 0
	}
	for i := range maxPoints {
		at := b[pointOff+i*pointSize:]
		if at[1]|at[2] != 0 {
			s.points = append(s.points, target.Point{Addr: s.addr + uint64(at[0]), Probes: int(at[1]), Returns: int(at[2])})
		}
	}
	return s, nil
}

// Points in an entry.
const (
	pointOff  = 56
	pointSize = 3
	maxPoints = 2
	reasonOff = 62
	nameOff   = 16
	nameSize  = pointOff - nameOff
)

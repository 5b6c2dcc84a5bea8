package watchpoint

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// perfRing is the ring of perf events on one CPU (perf_event_open(2), MMAP layout): a page with the positions up to which
// the kernel has written and we have read, then the data. Positions are bytes, and only grow. When there is no room the kernel
// drops what it would write, and counts it in the event (PERF_FORMAT_LOST).
//
//	record: u32 type, u16 misc, u16 size with this header; then the size less 8 bytes, which may go on at the start
type perfRing struct {
	fd, cpu int
	mem     []byte
	record  []byte // one that goes on at the start, in one piece
}

// Sizes of the data of all rings together, and of one.
const (
	perfRingsSize   = 16 << 20
	minPerfRing     = 128 << 10
	maxPerfRing     = 4 << 20
	perfHeader      = 8
	perfSample      = 9    // PERF_RECORD_SAMPLE
	perfDummy       = 9    // PERF_COUNT_SW_DUMMY: an event that counts nothing
	offPerfDataHead = 1024 // struct perf_event_mmap_page
	offPerfDataTail = 1032
)

// newPerfRing makes the ring of a CPU, one of so many.
func newPerfRing(cpu, of int) (*perfRing, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: perfDummy, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Bits: unix.PerfBitUseClockID | unix.PerfBitExcludeKernel, Clockid: unix.CLOCK_MONOTONIC,
	}
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("ring of watchpoints on CPU %d: perf_event_open: %w", cpu, err)
	}
	size := min(max(1<<(bits.Len(uint(perfRingsSize/of))-1), minPerfRing), maxPerfRing)
	mem, err := unix.Mmap(fd, 0, os.Getpagesize()+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("ring of watchpoints on CPU %d: %w", cpu, err)
	}
	return &perfRing{fd: fd, cpu: cpu, mem: mem}, nil
}

func (r *perfRing) close() {
	_ = unix.Munmap(r.mem)
	_ = unix.Close(r.fd)
}

// poll reads the samples that were there when it began, without their headers, until f says false: that one stays.
func (r *perfRing) poll(f func([]byte) bool) {
	head := atomic.LoadUint64((*uint64)(unsafe.Pointer(&r.mem[offPerfDataHead])))
	tail := (*uint64)(unsafe.Pointer(&r.mem[offPerfDataTail]))
	data := r.mem[os.Getpagesize():]
	for pos := *tail; pos+perfHeader <= head; {
		at := pos % uint64(len(data))
		kind, size := binary.NativeEndian.Uint32(data[at:]), uint64(binary.NativeEndian.Uint16(data[at+6:]))
		if size < perfHeader || pos+size > head {
			return
		}
		if kind == perfSample && !f(r.piece(data, at, size)[perfHeader:]) {
			return
		}
		pos += size
		atomic.StoreUint64(tail, pos)
	}
}

// piece gives the bytes of a record in one piece.
func (r *perfRing) piece(data []byte, at, size uint64) []byte {
	if at+size <= uint64(len(data)) {
		return data[at : at+size]
	}
	r.record = append(append(r.record[:0], data[at:]...), data[:at+size-uint64(len(data))]...)
	return r.record
}

//go:build linux && amd64

package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// state is what BenchTraced knows of its thread and of the buffers; the assembly takes the
// fields' offsets from go_asm.h.
type state struct {
	area    uintptr // the thread's rseq area
	stride  uint64  // bytes from one CPU's buffer to the next
	buffers uintptr // CPU 0's
	mask    uint64  // bytes of a buffer's data - 1
	thread  uint64  // thread id << 32
}

// Constants of rseq(2): linux/rseq.h; the signature is the one that glibc uses on x86.
const (
	rseqSize       = 32
	rseqCPU        = 4 // offset of cpu_id
	rseqUnregister = 1
	rseqSignature  = 0x53053053
)

// buffers are the tracepoint's buffers of all CPUs: a head (u64), a cache line apart the
// data, as struct tracepoint_buffer of src/tracepoint.h.
type buffers struct {
	mem    []byte
	stride uint64
	size   uint64
	gauge  *Gauge // nil: not asked for yet
}

const bufferHeader = 64

// newBuffers maps buffers of size bytes, a power of two, for each CPU and touches them.
func newBuffers(size uint64) (*buffers, error) {
	if size < 4096 || size > 1<<28 || size&(size-1) != 0 {
		return nil, fmt.Errorf("buffer size %d: not a power of two from 4096 to %d", size, 1<<28)
	}
	b := &buffers{stride: bufferHeader + size + 4096, size: size}
	cpus, err := possibleCPUs()
	if err != nil {
		return nil, err
	}
	b.mem, err = unix.Mmap(-1, 0, cpus*int(b.stride), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("tracepoint buffers: %w", err)
	}
	return b, nil
}

// records counts the records written so far by the heads of the buffers.
func (b *buffers) records() uint64 {
	var sum uint64
	for off := uint64(0); off < uint64(len(b.mem)); off += b.stride {
		sum += binary.NativeEndian.Uint64(b.mem[off:])
	}
	return sum / 48
}

// possibleCPUs is one more than the highest number that a CPU may have.
func possibleCPUs() (int, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/possible")
	if err != nil {
		return 0, err
	}
	return lastCPU(string(text))
}

// enter registers an rseq area for the calling thread and returns the state for
// BenchTraced; leave undoes it. The Go runtime registers no area itself, so a
// thread has one only in between. A C library linked in has registered its own for each
// thread: then the area is a plain page that holds the number of the one CPU.
//
// Preconditions: the goroutine is locked to its thread, and that is bound to cpu.
func (b *buffers) enter(cpu int) (st *state, leave func(), err error) {
	area, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("rseq area: %w", err)
	}
	addr := uintptr(unsafe.Pointer(&area[0]))
	err = rseq(addr, 0)
	registered := err == nil
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EBUSY) { // registered elsewhere
		binary.NativeEndian.PutUint32(area[rseqCPU:], uint32(cpu))
		err = nil
	}
	if err != nil {
		_ = unix.Munmap(area)
		return nil, nil, err
	}
	st = &state{
		area: addr, stride: b.stride, buffers: uintptr(unsafe.Pointer(&b.mem[0])), mask: b.size - 1,
		thread: uint64(unix.Gettid()) << 32,
	}
	return st, func() {
		if !registered || rseq(addr, rseqUnregister) == nil {
			_ = unix.Munmap(area)
		}
	}, nil
}

// rseq registers the calling thread's area, or takes it back.
func rseq(addr uintptr, flags uintptr) error {
	_, _, e := unix.Syscall6(unix.SYS_RSEQ, addr, rseqSize, flags, rseqSignature, 0, 0)
	if e != 0 {
		return fmt.Errorf("rseq area of this thread: %w (Linux 4.18 with CONFIG_RSEQ is needed)", e)
	}
	return nil
}

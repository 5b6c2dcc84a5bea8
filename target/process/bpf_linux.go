package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bpfCode is a BPF program in the making (Linux, Documentation/bpf/standardization).
type bpfCode struct{ b []byte }

// Registers: bpfResult holds what a helper returns and 1 to 5 its arguments, which it
// destroys; bpfContext survives it, bpfFrame is the end of the 512 bytes of stack.
const (
	bpfResult  = 0
	bpfContext = 6
	bpfFrame   = 10
	bpfStack   = 512
)

// Operation codes.
const (
	bpfMov64  = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_X
	bpfMov32  = unix.BPF_ALU | unix.BPF_MOV | unix.BPF_X
	bpfSet64  = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K
	bpfAdd64  = unix.BPF_ALU64 | unix.BPF_ADD | unix.BPF_X
	bpfAddImm = unix.BPF_ALU64 | unix.BPF_ADD | unix.BPF_K
	bpfAndImm = unix.BPF_ALU64 | unix.BPF_AND | unix.BPF_K
	bpfOr64   = unix.BPF_ALU64 | unix.BPF_OR | unix.BPF_X
	bpfXor64  = unix.BPF_ALU64 | unix.BPF_XOR | unix.BPF_X
	bpfLshImm = unix.BPF_ALU64 | unix.BPF_LSH | unix.BPF_K
	bpfLoad64 = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_DW
	bpfLoad32 = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_W
	bpfStore  = unix.BPF_STX | unix.BPF_MEM | unix.BPF_DW
	bpfZero   = unix.BPF_ST | unix.BPF_MEM | unix.BPF_DW
	bpfAtomic = unix.BPF_STX | unix.BPF_ATOMIC | unix.BPF_DW
	bpfConst  = unix.BPF_LD | unix.BPF_IMM | unix.BPF_DW
	bpfCall   = unix.BPF_JMP | unix.BPF_CALL
	bpfExit   = unix.BPF_JMP | unix.BPF_EXIT
	bpfIf0    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	bpfIfNot0 = unix.BPF_JMP | unix.BPF_JNE | unix.BPF_K
)

// Helpers of the kernel (enum bpf_func_id).
const (
	bpfNanos   = 5   // CLOCK_MONOTONIC
	bpfCPU     = 8   // number of the CPU
	bpfIDs     = 120 // the thread's ids in a pid namespace (Linux 5.7)
	bpfOutput  = 130 // copy to a ring buffer (Linux 5.8)
	bpfComm    = 16  // name of the thread
	bpfUserMem = 148 // read user memory, which may sleep (Linux 5.10, in uprobes 6.0)
)

func (c *bpfCode) op(op, dst, src uint8, off int, imm int32) {
	c.b = append(c.b, op, src<<4|dst)
	c.b = binary.LittleEndian.AppendUint16(c.b, uint16(off))
	c.b = binary.LittleEndian.AppendUint32(c.b, uint32(imm))
}

// constant loads 64 bits; source says what they are: 0 a number, or BPF_PSEUDO_MAP_FD,
// BPF_PSEUDO_MAP_VALUE.
func (c *bpfCode) constant(dst, source uint8, v uint64) {
	c.op(bpfConst, dst, source, 0, int32(v))
	c.op(0, 0, 0, 0, int32(v>>32))
}

func (c *bpfCode) call(helper int32) { c.op(bpfCall, 0, 0, 0, helper) }

// jump leaves room for a conditional jump on the result; land makes it lead to here.
func (c *bpfCode) jump(op uint8) (at int) {
	c.op(op, bpfResult, 0, 0, 0)
	return len(c.b)
}

func (c *bpfCode) land(at int) {
	binary.LittleEndian.PutUint16(c.b[at-6:], uint16((len(c.b)-at)/8))
}

// bpf makes the system call; attr is a variant of union bpf_attr (linux/bpf.h).
func bpf[T any](cmd int, attr *T) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(cmd), uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

// newMap makes a map.
func newMap(kind, key, value, entries uint32) (int, error) {
	attr := struct{ kind, key, value, entries, flags, pad uint32 }{kind: kind, key: key, value: value, entries: entries}
	fd, err := bpf(unix.BPF_MAP_CREATE, &attr)
	if err != nil {
		return -1, fmt.Errorf("bpf map: %w", err)
	}
	return fd, nil
}

// loading is union bpf_attr of BPF_PROG_LOAD.
type loading struct {
	kind, count       uint32
	code, license     uint64
	logLevel, logSize uint32
	log               uint64
	_, flags          uint32
	name              [16]byte
	_, _              uint32
}

// load loads a program for a uprobe. What the kernel's verifier says of one that it
// refuses is in the error.
func (c *bpfCode) load() (int, error) {
	license, log := []byte("Apache-2.0\x00"), make([]byte, 1<<16)
	attr := loading{
		kind: unix.BPF_PROG_TYPE_KPROBE, count: uint32(len(c.b) / 8), flags: unix.BPF_F_SLEEPABLE,
		code: address(c.b), license: address(license),
	}
	copy(attr.name[:], "kprobes")
	fd, err := attr.load()
	if err != nil { // once more for the reason: a log that is too small would be an error too
		attr.logLevel, attr.logSize, attr.log = 1, uint32(len(log)), address(log)
		if again, no := attr.load(); no == nil {
			fd, err = again, nil
		}
	}
	runtime.KeepAlive(c.b)
	runtime.KeepAlive(license)
	if err != nil {
		return -1, fmt.Errorf("bpf program: %w: %.300q", err, unix.ByteSliceToString(log))
	}
	return fd, nil
}

func (a *loading) load() (fd int, err error) {
	undisturbed(func() {
		for range loadTries {
			if fd, err = bpf(unix.BPF_PROG_LOAD, a); !errors.Is(err, unix.EAGAIN) {
				return
			}
		}
	})
	return fd, err
}

// The verifier gives up with EAGAIN when a signal is pending (Linux, kernel/bpf/verifier.c,
// do_check). What can be blocked is; for the rest (a stop, the freezer) it is tried again.
const loadTries = 100

// undisturbed runs f, which is short, in a thread that takes no signal meanwhile but those of faults: package codescan
// relies on that.
//
//go:noinline
func undisturbed(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all, old := ^uint64(1<<(unix.SIGSEGV-1)|1<<(unix.SIGBUS-1)), uint64(0)
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	f()
	if e == 0 {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
	}
}

// address is where a slice's bytes are, for the kernel. The caller keeps it alive.
func address(b []byte) uint64 {
	p := unsafe.SliceData(b)
	escaped.Store(p)
	return uint64(uintptr(unsafe.Pointer(p)))
}

// escaped makes every buffer whose address is taken as a number live on the heap: a
// goroutine's stack may move before the kernel uses the number.
var escaped atomic.Pointer[byte]

// lookup reads the only value of an array map.
func lookup(fd int, value []byte) error {
	key := make([]byte, 4)
	attr := struct {
		fd         uint64
		key, value uint64
		flags      uint64
	}{fd: uint64(fd), key: address(key), value: address(value)}
	_, err := bpf(unix.BPF_MAP_LOOKUP_ELEM, &attr)
	runtime.KeepAlive(key)
	runtime.KeepAlive(value)
	return err
}

// kernelRing is a BPF ring buffer (Documentation/bpf/ringbuf.rst): a page with the
// position up to which we have read; a page with the position written, then the data,
// mapped twice in a row so that no record is in two pieces. Positions are bytes.
//
//	record: u32 length (bit 31: being written, bit 30: discarded), u32, data; 8-byte units
type kernelRing struct {
	fd       int
	consumer []byte
	producer []byte
}

const kernelRingSize = 8 << 20

func newKernelRing() (*kernelRing, error) {
	fd, err := newMap(unix.BPF_MAP_TYPE_RINGBUF, 0, 0, kernelRingSize)
	if err != nil {
		return nil, err
	}
	r := &kernelRing{fd: fd}
	page := os.Getpagesize()
	if r.consumer, err = unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		r.producer, err = unix.Mmap(fd, int64(page), page+2*kernelRingSize, unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		r.close()
		return nil, fmt.Errorf("bpf ring: %w", err)
	}
	return r, nil
}

func (r *kernelRing) close() {
	for _, m := range [][]byte{r.consumer, r.producer} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
	_ = unix.Close(r.fd)
}

// poll reads the records that were there when it began, up to one being written.
func (r *kernelRing) poll(f func([]byte)) {
	tail := (*uint64)(unsafe.Pointer(&r.consumer[0]))
	data := r.producer[os.Getpagesize():]
	pos, end := *tail, atomic.LoadUint64((*uint64)(unsafe.Pointer(&r.producer[0])))
	for pos < end {
		at := pos % kernelRingSize
		n := atomic.LoadUint32((*uint32)(unsafe.Pointer(&data[at])))
		if n&unix.BPF_RINGBUF_BUSY_BIT != 0 {
			return
		}
		size := uint64(n &^ unix.BPF_RINGBUF_DISCARD_BIT)
		if n&unix.BPF_RINGBUF_DISCARD_BIT == 0 && size <= bpfStack {
			f(data[at+unix.BPF_RINGBUF_HDR_SZ:][:size])
		}
		pos += unix.BPF_RINGBUF_HDR_SZ + (size+7)&^7
		atomic.StoreUint64(tail, pos)
	}
}

package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

// Where neither a jump nor a breakpoint of the engine's may stand, the kernel can hold the probe:
// its breakpoint is answered before any signal. The probe is a perf event of the uprobe
// PMU, which ends with its descriptor, so nothing is left when the tracer dies.
//
// The event's own samples would miss threads: a perf event counts in the thread it is
// opened for, and one of this PMU can not be inherited: the kernel reads the path anew from
// the memory of the thread that makes another, and its clone fails with EFAULT (Linux
// 6.18). But a BPF program on the event runs in every thread of the address space. It
// writes the record that the ring would have, one word before it:
//
//	-8         CPU
//	0          size in units, event, thread id    as in package ring
//	8          CLOCK_MONOTONIC
//	[16        0]                                 Go programs: the goroutine is not known
//	Args       arguments
//
// Limits: the children that the process forks are not probed (the kernel takes the
// breakpoint out of them at their first hit); the probe ends with the process's first
// thread, whose memory the kernel compares.

// uprobePMU is where the kernel tells the number of the PMU (Linux 4.17).
const uprobePMU = "/sys/bus/event_source/devices/uprobe/type"

// uprobe is a probe that the kernel holds.
type uprobe struct {
	mu       sync.Mutex
	event    int // descriptors
	counters int // a map of one value: hits, lost
	final    [2]uint64
	closed   bool
}

// Offsets in the value of the counters.
const (
	uprobeHits = 0
	uprobeLost = 8
)

// Uprobe arms a probe that the kernel holds. It needs CAP_PERFMON and CAP_BPF (root), and
// Linux 6.0. An instruction that the kernel would not run as it is is refused (EOPNOTSUPP).
func (t *Target) Uprobe(u *target.Uprobe) (target.ExternalProbe, error) {
	if err := t.kernelRuns(u.Addr); err != nil {
		return nil, err
	}
	if err := t.shareText(u.Addr); err != nil {
		return nil, err
	}
	if t.kernel.Load() == nil {
		r, err := newKernelRing()
		if err != nil {
			return nil, err
		}
		t.kernel.Store(r)
	}
	counters, err := newMap(unix.BPF_MAP_TYPE_ARRAY, 4, 16, 1)
	if err != nil {
		return nil, err
	}
	event, err := t.openUprobe(u, counters)
	if err != nil {
		return nil, errors.Join(err, unix.Close(counters))
	}
	return &uprobe{event: event, counters: counters}, nil
}

// kernelRuns says why the kernel must not step or emulate the instruction at an address. The
// file tells what stands there: in memory there may be a breakpoint.
func (t *Target) kernelRuns(addr uint64) error {
	m := t.Space().ModuleAt(addr)
	if m == nil {
		return errno.Errorf(unix.EFAULT, "address 0x%x is in no file that is mapped", addr)
	}
	code := make([]byte, native.MaxInst)
	for m.Image.ReadAt(m.Linktime(addr), code) != nil && len(code) > 1 { // near the end of the text
		code = code[:len(code)-1]
	}
	if err := native.KernelRuns(code); err != nil {
		return fmt.Errorf("uprobe at 0x%x: %w", addr, err)
	}
	return nil
}

// openUprobe loads the program, makes the event and joins the two.
func (t *Target) openUprobe(u *target.Uprobe, counters int) (int, error) {
	code, err := t.uprobeCode(u, counters)
	if err != nil {
		return -1, err
	}
	prog, err := code.load()
	if err != nil {
		return -1, err
	}
	defer unix.Close(prog) // the event keeps it
	event, err := t.uprobeEvent(u.Addr)
	if err != nil {
		return -1, err
	}
	if err := unix.IoctlSetInt(event, unix.PERF_EVENT_IOC_SET_BPF, prog); err != nil {
		return -1, errors.Join(fmt.Errorf("uprobe at 0x%x: bpf program: %w", u.Addr, err), unix.Close(event))
	}
	return event, nil
}

// uprobeEvent makes the perf event on the file that is mapped at an address.
func (t *Target) uprobeEvent(addr uint64) (int, error) {
	maps, err := t.p.Maps()
	if err != nil {
		return -1, err
	}
	m, ok := procfs.FindMap(maps, addr)
	if !ok {
		return -1, errno.Errorf(unix.EFAULT, "address 0x%x is not mapped", addr)
	}
	return openUprobe(t.p, m, addr)
}

// openUprobe makes a perf event, disabled, at an address of a mapping.
func openUprobe(p *ptrace.Process, m procfs.Map, addr uint64) (int, error) {
	text, err := os.ReadFile(uprobePMU)
	if err != nil {
		return -1, fmt.Errorf("kernel has no uprobe PMU (CONFIG_UPROBE_EVENTS): %w", err)
	}
	kind, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", uprobePMU, err)
	}
	f, err := p.OpenMap(m)
	if err != nil {
		return -1, err
	}
	defer f.Close()
	// The kernel follows the link to the file itself, wherever that is mounted.
	path := fmt.Appendf(nil, "/proc/self/fd/%d\x00", f.Fd())
	attr := unix.PerfEventAttr{
		Type: uint32(kind), Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitDisabled,
		Ext1: address(path), Ext2: addr - m.Start + m.Offset,
	}
	fd, err := unix.PerfEventOpen(&attr, p.PID(), -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	runtime.KeepAlive(path)
	if err != nil {
		return -1, fmt.Errorf("uprobe on %s:0x%x of process %d: perf_event_open: %w", m.Path, attr.Ext2, p.PID(), err)
	}
	return fd, nil
}

// Tactic is uprobe.
func (u *uprobe) Tactic() arch.Tactic { return arch.TacticUprobe }

// Counts reads the counters.
func (u *uprobe) Counts() (hits, lost uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.readLocked()
	}
	return u.final[0], u.final[1]
}

func (u *uprobe) readLocked() {
	var v [16]byte
	if lookup(u.counters, v[:]) == nil {
		u.final = [2]uint64{binary.LittleEndian.Uint64(v[uprobeHits:]), binary.LittleEndian.Uint64(v[uprobeLost:])}
	}
}

// Close takes the probe out: the kernel waits until no thread is in it.
func (u *uprobe) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	err := unix.Close(u.event)
	u.readLocked()
	u.closed = true
	return errors.Join(err, unix.Close(u.counters))
}

// Uprobes reads the records that are there.
func (t *Target) Uprobes(f func(*target.UprobeRecord)) int {
	n := t.watched(f)
	k := t.kernel.Load()
	if k == nil {
		return n
	}
	k.poll(func(b []byte) {
		if len(b) < 8+ring.RecHeader {
			return
		}
		w0 := binary.LittleEndian.Uint64(b[8:])
		n++
		f(&target.UprobeRecord{
			Event: ring.EventOf(w0), TID: int(w0 >> 32), CPU: int(binary.LittleEndian.Uint64(b)),
			Nanos: binary.LittleEndian.Uint64(b[16:]), Bytes: b[8:],
		})
	})
	return n
}

// pidNamespace gives the device, as the kernel has it inside, and the inode of the
// process's pid namespace: records have the ids that threads have there.
func (t *Target) pidNamespace() (dev, ino uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", t.p.PID()), &st); err != nil {
		return 0, 0, fmt.Errorf("pid namespace of process %d: %w", t.p.PID(), err)
	}
	return uint64(unix.Major(st.Dev))<<20 | uint64(unix.Minor(st.Dev)), st.Ino, nil
}

// idsOff is where the program has the ids of the thread (struct bpf_pidns_info: u32 pid,
// u32 tgid), from the end of the stack.
const idsOff = -8

// uprobeCode makes the program of a probe.
func (t *Target) uprobeCode(u *target.Uprobe, counters int) (*bpfCode, error) {
	c := &bpfCode{}
	if u.Prog == nil {
		c.increment(counters, uprobeHits)
		c.leave()
		return c, nil
	}
	size := 8 + u.Args + u.Prog.Fixed
	if size > bpfStack+idsOff {
		return nil, fmt.Errorf("record of %d bytes: a uprobe's has at most %d: %w", size, bpfStack+idsOff, unix.E2BIG)
	}
	dev, ino, err := t.pidNamespace()
	if err != nil {
		return nil, err
	}
	c.op(bpfMov64, bpfContext, 1, 0, 0)
	for off := idsOff - size; off < idsOff; off += 8 {
		c.op(bpfZero, bpfFrame, 0, off, 0)
	}
	rec := idsOff - size + 8
	c.header(u, rec, dev, ino)
	for i := range u.Prog.Args {
		if err := c.arg(&u.Prog.Args[i], u.Addr, rec+u.Args+u.Prog.Args[i].Off); err != nil {
			return nil, err
		}
	}
	c.constant(1, unix.BPF_PSEUDO_MAP_FD, uint64(t.kernel.Load().fd))
	c.pointer(2, rec-8)
	c.op(bpfSet64, 3, 0, 0, int32(size))
	c.op(bpfSet64, 4, 0, 0, unix.BPF_RB_NO_WAKEUP)
	c.call(bpfOutput)
	written := c.jump(bpfIf0)
	c.increment(counters, uprobeLost)
	c.land(written)
	c.leave()
	return c, nil
}

// header stores the words before the arguments.
func (c *bpfCode) header(u *target.Uprobe, rec int, dev, ino uint64) {
	c.call(bpfCPU)
	c.op(bpfStore, bpfFrame, bpfResult, rec-8, 0)
	c.constant(1, 0, dev)
	c.constant(2, 0, ino)
	c.pointer(3, idsOff)
	c.op(bpfSet64, 4, 0, 0, -idsOff)
	c.call(bpfIDs)
	c.op(bpfLoad32, 1, bpfFrame, idsOff, 0)
	c.op(bpfLshImm, 1, 0, 0, 32)
	c.constant(2, 0, uint64(ring.Word0((u.Args+u.Prog.Fixed)/8, u.Event)))
	c.op(bpfOr64, 1, 2, 0, 0)
	c.op(bpfStore, bpfFrame, 1, rec, 0)
	c.call(bpfNanos)
	c.op(bpfStore, bpfFrame, bpfResult, rec+8, 0)
}

// pointer makes a register point into the stack.
func (c *bpfCode) pointer(reg uint8, off int) {
	c.op(bpfMov64, reg, bpfFrame, 0, 0)
	c.op(bpfAddImm, reg, 0, 0, int32(off))
}

// increment adds 1 to a counter.
func (c *bpfCode) increment(counters, off int) {
	c.constant(1, unix.BPF_PSEUDO_MAP_VALUE, uint64(off)<<32|uint64(counters))
	c.op(bpfSet64, 2, 0, 0, 1)
	c.op(bpfAtomic, 1, 2, 0, unix.BPF_ADD)
}

// leave ends the program: 0 says that perf itself has nothing to do.
func (c *bpfCode) leave() {
	c.op(bpfSet64, bpfResult, 0, 0, 0)
	c.op(bpfExit, 0, 0, 0, 0)
}

package guest

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// Where no jump can stand QEMU holds the probe: a breakpoint of its own, which the guest does
// not see. Each hit stops all vCPUs, and what the probe records is read from here.

// maxBreakRecords bounds the records of breakpoints and watchpoints that nobody has read yet.
const maxBreakRecords = 4096

// breaks are the records of breakpoints and watchpoints.
type breaks struct {
	mu      sync.Mutex
	records []target.UprobeRecord
	last    uint64 // time of the last one
	watched int    // watchpoints that are armed
}

// breakpoint is a probe that QEMU holds.
type breakpoint struct {
	t          *Target
	u          target.Uprobe
	b          *qemu.Breakpoint
	mu         sync.Mutex
	hits, lost uint64
}

// Uprobe sets a breakpoint of QEMU's. Hits cost milliseconds.
func (t *Target) Uprobe(u *target.Uprobe) (target.ExternalProbe, error) {
	if !t.k.InText(u.Addr) && t.Space().ModuleAt(u.Addr) == nil {
		return nil, errno.Errorf(unix.EINVAL, "0x%x is not code of the guest's kernel", u.Addr)
	}
	if !u.Asked {
		return nil, errno.Errorf(unix.EOPNOTSUPP, "a breakpoint of QEMU's stops all vCPUs for milliseconds at each hit, so it stands only where it is asked for: --tactic break")
	}
	h := &breakpoint{t: t, u: *u}
	b, err := t.m.Break(u.Addr, h.hit)
	h.b = b
	return h, t.asGone(err)
}

// Tactic is break.
func (h *breakpoint) Tactic() arch.Tactic { return arch.TacticBreak }

// Counts tells the runs that were only counted, and the records that found no room.
func (h *breakpoint) Counts() (hits, lost uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hits, h.lost
}

// Close removes the breakpoint.
func (h *breakpoint) Close() error { return h.b.Remove() }

// hit does the probe's work. The vCPUs are stopped.
func (h *breakpoint) hit(c *qemu.CPU, _ *qemu.Stop) qemu.Resume {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.u.Prog == nil:
		h.hits++
	case !h.t.keep(h.record(c)):
		h.lost++
	}
	return qemu.Continue
}

// record makes the record that generated code would have written.
func (h *breakpoint) record(c *qemu.CPU) target.UprobeRecord {
	return h.t.recordOf(c, h.u.Event, h.u.Args, h.u.Prog)
}

// recordOf makes the record of an event at a vCPU that stands.
func (t *Target) recordOf(c *qemu.CPU, ev, args int, prog *fetch.Program) target.UprobeRecord {
	v := halted{t: t, c: c}
	tid, comm := v.task()
	rec := make([]byte, args)
	binary.LittleEndian.PutUint32(rec[ring.RecHeader:], v.preempt())
	binary.LittleEndian.PutUint32(rec[ring.RecHeader+4:], uint32(c.Reg(fetch.RegFlags)))
	copy(rec[ring.RecHeader+8:], comm[:])
	rec = prog.Eval(&v, rec, ring.MaxRecord)
	binary.LittleEndian.PutUint32(rec, ring.Word0(len(rec)/8, ev))
	binary.LittleEndian.PutUint32(rec[4:], tid)
	return target.UprobeRecord{Event: ev, TID: int(tid), CPU: c.Index, Nanos: t.clock.coarse(), Bytes: rec}
}

// keep keeps a record until it is read; it says whether there was room.
func (t *Target) keep(r target.UprobeRecord) bool {
	t.breaks.mu.Lock()
	defer t.breaks.mu.Unlock()
	if len(t.breaks.records) >= maxBreakRecords {
		return false
	}
	r.Nanos = max(r.Nanos, t.breaks.last)
	t.breaks.last = r.Nanos
	t.breaks.records = append(t.breaks.records, r)
	return true
}

// Uprobes reads the records of breakpoints and watchpoints that are there.
func (t *Target) Uprobes(f func(*target.UprobeRecord)) int {
	t.breaks.mu.Lock()
	rs := t.breaks.records
	t.breaks.records = nil
	t.breaks.mu.Unlock()
	for i := range rs {
		f(&rs[i])
	}
	return len(rs)
}

// halted is a vCPU that stands at a breakpoint: what Eval reads from.
type halted struct {
	t *Target
	c *qemu.CPU
}

// Reg gives a register.
func (h *halted) Reg(r fetch.Reg) uint64 { return h.c.Reg(r) }

// stackSize is THREAD_SIZE of x86-64 (arch/x86/include/asm/page_64_types.h).
const stackSize = 16 << 10

// Stack gives a word of the kernel stack.
func (h *halted) Stack(n int) (uint64, bool) {
	at := h.c.SP() + 8*uint64(n)
	if at&^(stackSize-1) != h.c.SP()&^(stackSize-1) {
		return 0, false
	}
	var b [8]byte
	ok := h.Load(at, b[:], false)
	return le.Uint64(b[:]), ok
}

// Load reads memory as the vCPU sees it.
func (h *halted) Load(addr uint64, b []byte, user bool) bool {
	if user && addr >= h.t.arch.UserEnd {
		return false
	}
	if h.c.Root() == 0 {
		return h.t.k.Read(addr, b) == nil
	}
	return h.t.k.ReadAs(h.c.Root(), addr, b) == nil
}

// perCPU reads a per-CPU variable.
func (h *halted) perCPU(off int32, b []byte) bool {
	base := h.c.PerCPU()
	if base < h.t.arch.UserEnd {
		base = h.t.k.PerCPU(h.c.Index)
	}
	return h.t.k.Read(base+uint64(int64(off)), b) == nil
}

// task reads id and name of the task that runs.
func (h *halted) task() (tid uint32, comm [16]byte) {
	var p [8]byte
	if !h.perCPU(h.t.arch.Current, p[:]) {
		return 0, comm
	}
	var b [4]byte
	task := le.Uint64(p[:])
	if h.t.k.Read(task+uint64(h.t.arch.PID), b[:]) == nil {
		tid = le.Uint32(b[:])
	}
	_ = h.t.k.Read(task+uint64(h.t.arch.Comm), comm[:]) // a task without a name is one
	return tid, comm
}

// preempt reads the preemption count.
func (h *halted) preempt() uint32 {
	var b [8]byte
	n := 4
	if h.t.arch.WidePreempt {
		n = 8
	}
	if !h.perCPU(h.t.arch.Preempt, b[:n]) {
		return 0
	}
	return le.Uint32(b[:]) | le.Uint32(b[4:])
}

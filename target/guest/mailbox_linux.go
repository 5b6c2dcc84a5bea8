package guest

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/mailbox"
)

// mailSide serves the vCPUs that wait in the gate. Nobody can wake us: we look.
type mailSide struct {
	*mailbox.Box
	t     *Target
	looks sync.Mutex   // held by the worker that looks often
	last  atomic.Int64 // when the last post was seen, nanoseconds
}

var _ mailbox.Side = (*mailSide)(nil)

// How often is looked for posts, by the time since the last one.
const (
	spinFor  = time.Millisecond // all the time
	spins    = 200              // looks at once
	napFor   = time.Second      // at intervals of nap, then of rest
	nap      = 50 * time.Microsecond
	rest     = time.Millisecond
	restLong = 10 * time.Millisecond  // where there is no call
	napOther = 200 * time.Microsecond // of workers beside the first, at least
)

// Wait looks until the bell was rung. One worker looks often, the others now and then, in case
// that one's handler takes its time: a handover would take longer than most handlers do.
func (m *mailSide) Wait(bell *uint32, rung uint32) {
	first := m.looks.TryLock()
	if first {
		defer m.looks.Unlock()
	}
	for !m.Closed() {
		if m.t.ended.Load() != nil {
			m.Abandon()
			return
		}
		for range spins {
			if atomic.LoadUint32(bell) != rung {
				m.last.Store(time.Now().UnixNano())
				return
			}
		}
		if d := m.pause(); first && d == 0 {
			runtime.Gosched()
		} else {
			if !first {
				d = max(d, napOther)
			}
			ts := unix.NsecToTimespec(int64(d))
			_ = unix.Nanosleep(&ts, nil) // one that a signal ends is as good
		}
	}
}

// pause is the time until it should be looked again.
func (m *mailSide) pause() time.Duration {
	switch since := time.Duration(time.Now().UnixNano() - m.last.Load()); {
	case since < spinFor:
		return 0
	case since < napFor:
		return nap
	case m.Calls() == 0:
		return restLong
	}
	return rest
}

// Wake has nobody to wake: vCPUs look.
func (m *mailSide) Wake(*uint32, int) {}

// Post reads a post.
func (m *mailSide) Post(slot []byte) native.Post { return native.ReadKernelPost(slot) }

// Bind gives a point the kernel's memory and stacks.
func (m *mailSide) Bind(p *native.Point) {
	mem := m.t.memory()
	p.Mem = mem
	p.Callers = func(r *native.Regs, pcs []uint64) int { return mem.callers(r.SP, p.Ret, pcs) }
}

// Block is what the gate writes to for ActionLeave: a kernel has no red zone.
func (m *mailSide) Block(sp uint64, _ *native.Point) (addr uint64, size int) {
	return native.LeaveBlock(sp, true)
}

// CanLeave looks for stack and code where the thread would go on.
func (m *mailSide) CanLeave(now *native.Regs, p *native.Point) error {
	block, size := m.Block(now.SP, p)
	for _, at := range []uint64{block, block + uint64(size) - 1} {
		if _, _, acc, ok := m.t.k.Translate(at); !ok || !acc.Write {
			return fmt.Errorf("the new stack pointer 0x%x is no stack", now.SP)
		}
	}
	if _, _, acc, ok := m.t.k.Translate(now.IP); !ok || !acc.Exec {
		return fmt.Errorf("the new instruction pointer 0x%x is no code", now.IP)
	}
	lo, n := native.Around(now.IP)
	text := make([]byte, n)
	if err := m.t.k.Read(lo, text); err != nil {
		return fmt.Errorf("the new instruction pointer 0x%x is no code: %w", now.IP, err)
	}
	code := m.t.lay.code
	if native.JumpsOver(text, now.IP, func(to uint64) bool { return to-code.va < uint64(len(code.mem)) }) {
		return fmt.Errorf("the new instruction pointer 0x%x is inside the jump of another probe", now.IP)
	}
	return nil
}

// kernelMemory is the memory of the guest's kernel as a handler reads and writes it.
type kernelMemory struct {
	t *Target
	// The instances of return probes, and detours: no RAM if they are in a device's memory.
	own [2]part
}

var _ native.Memory = (*kernelMemory)(nil)

// memory is the kernel's. Precondition: Prepare has succeeded.
func (t *Target) memory() *kernelMemory { return &kernelMemory{t, [2]part{t.lay.data, t.lay.code}} }

// Read reads memory that the kernel's own page tables map. A program's memory is not seen.
func (m *kernelMemory) Read(addr uint64, buf []byte) error {
	for _, p := range m.own {
		if off, size := addr-p.va, uint64(len(p.mem)); off < size && uint64(len(buf)) <= size-off {
			copy(buf, p.mem[off:])
			return nil
		}
	}
	return m.t.k.Read(addr, buf)
}

// Write writes data: pages that the kernel itself may write to, and that hold no code. Nothing
// is written if a part of it may not be: EFAULT where there is nothing, EACCES where it is code
// or read-only. The guest may see the bytes in any order.
func (m *kernelMemory) Write(addr uint64, buf []byte) error {
	var parts [][]byte
	for at, n := addr, len(buf); n > 0; {
		pa, left, acc, ok := m.t.k.Translate(at)
		size := int(min(left, uint64(n)))
		b := m.t.m.Bytes(pa, size)
		switch {
		case !ok || b == nil:
			return errno.Errorf(unix.EFAULT, "write of %d bytes at 0x%x: the guest's kernel has no memory at 0x%x", len(buf), addr, at)
		case !acc.Write || acc.Exec:
			return errno.Errorf(unix.EACCES, "write of %d bytes at 0x%x: 0x%x is code of the guest's kernel, or read-only", len(buf), addr, at)
		}
		parts = append(parts, b)
		at, n = at+uint64(size), n-size
	}
	for _, b := range parts {
		buf = buf[copy(b, buf):]
	}
	return nil
}

// callers fills in the return addresses of the calls in progress, as far as they can be known:
// kernels with the ORC unwinder have no frame pointers. The first is the probed function's own,
// where it is known how far it is from the stack pointer (ret not negative); the others
// are words of the stack that follow a call instruction. One that an ended call has left is
// among them, and no stack but the one at hand is looked at.
func (m *kernelMemory) callers(sp uint64, ret int, pcs []uint64) int {
	var stack [stackSize]byte
	n := 0
	at := sp
	if ret >= 0 {
		at += uint64(ret)
	}
	if at%8 != 0 {
		return 0
	}
	words := m.stack(at, stack[:])
	for i := 0; i < len(words) && n < len(pcs); i += 8 {
		pc := le.Uint64(words[i:])
		if i == 0 && ret >= 0 || m.afterCall(pc) {
			pcs[n] = pc
			n++
		}
	}
	return n
}

// stack reads what is there of a kernel stack from an address up.
func (m *kernelMemory) stack(at uint64, buf []byte) []byte {
	buf = buf[:stackSize-at%stackSize]
	n := 0
	for n < len(buf) {
		size := min(len(buf)-n, int(pageSize-(at+uint64(n))%pageSize))
		if m.Read(at+uint64(n), buf[n:n+size]) != nil {
			break
		}
		n += size
	}
	return buf[:n]
}

// afterCall says whether an address is the kernel's code, behind a call instruction.
func (m *kernelMemory) afterCall(pc uint64) bool {
	if pc < imageBase+native.LongCall {
		return false
	}
	if _, _, acc, ok := m.t.k.Translate(pc); !ok || !acc.Exec {
		return false
	}
	var b [native.LongCall]byte
	return m.Read(pc-native.LongCall, b[:]) == nil && native.EndsInCall(b[:], pc, imageBase)
}

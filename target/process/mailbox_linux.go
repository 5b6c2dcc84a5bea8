package process

import (
	"fmt"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/mailbox"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
)

// maxWorkers bounds the handlers that run at once.
const maxWorkers = 8

// mailSide serves the threads of a process that wait in the gate.
type mailSide struct {
	*mailbox.Box
	*mailMem
	p    *ptrace.Process
	addr uint64         // in the process
	gate interval.Range // the gate's code
}

func newMailSide(p *ptrace.Process, mem *mailMem, addr uint64) *mailSide {
	m := &mailSide{mailMem: mem, p: p, addr: addr}
	m.Box = mailbox.New(mem.mem(), addr, m, maxWorkers, fmt.Sprint("process ", p.PID()))
	return m
}

var _ mailbox.Side = (*mailSide)(nil)

// Wait sleeps until the bell is rung.
func (m *mailSide) Wait(bell *uint32, rung uint32) { m.sleep(bell, rung) }

// Wake wakes waiters.
func (m *mailSide) Wake(word *uint32, n int) { m.wake(word, n) }

// Post reads a post.
func (m *mailSide) Post(slot []byte) native.Post { return native.ReadPost(slot) }

// Bind gives a point the process's memory and stacks.
func (m *mailSide) Bind(p *native.Point) {
	p.Mem = &processMemory{m.p}
	p.Callers = func(r *native.Regs, pcs []uint64) int { return walkFrames(p.Mem, r.SP, r.BP, p.Ret, pcs) }
}

// Block is what the gate writes to for ActionLeave.
func (m *mailSide) Block(sp uint64, p *native.Point) (addr uint64, size int) {
	return native.LeaveBlock(sp, p.Go)
}

// CanLeave looks for stack and code where the thread would go on.
func (m *mailSide) CanLeave(now *native.Regs, p *native.Point) error {
	block, size := m.Block(now.SP, p)
	if err := m.p.ReadMem(block, make([]byte, size)); err != nil {
		return fmt.Errorf("the new stack pointer is no stack: %w", err)
	}
	lo, n := native.Around(now.IP)
	code := make([]byte, n)
	if err := m.p.ReadMem(lo, code); err != nil {
		return fmt.Errorf("the new instruction pointer is no code: %w", err)
	}
	if native.JumpsOver(code, now.IP, m.isDetour) {
		return fmt.Errorf("the new instruction pointer 0x%x is inside the jump of another probe", now.IP)
	}
	return nil
}

// isDetour says whether an address is in generated code.
func (m *mailSide) isDetour(addr uint64) bool {
	maps, err := m.p.Maps()
	if err != nil {
		return true // a jump leads there, and nobody knows where that is
	}
	in, ok := procfs.FindMap(maps, addr)
	return ok && ours(in)
}

// close gives our mapping back. Precondition: Shut. The counts are gone.
func (m *mailSide) close() error {
	m.Forget()
	return m.mailMem.close()
}

// processMemory is the memory of a process as a handler reads and writes it.
type processMemory struct{ p *ptrace.Process }

// Read reads memory, whatever the pages permit.
func (m *processMemory) Read(addr uint64, buf []byte) error { return m.p.ReadMem(addr, buf) }

// Write writes memory, through pages that are read-only too. Other threads may see the bytes
// in any order.
func (m *processMemory) Write(addr uint64, buf []byte) error {
	n, err := m.p.WriteMemSome(addr, buf)
	if err == nil && n < len(buf) {
		err = fmt.Errorf("process %d: write of %d bytes at %#x: %w at %#x", m.p.PID(), len(buf), addr, ErrFault, addr+uint64(n))
	}
	return err
}

var _ native.Memory = (*processMemory)(nil)

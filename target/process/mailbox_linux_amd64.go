package process

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/arch"
	"kprobes.dev/kprobes/arch/amd64"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/target"
)

// maxWorkers bounds the handlers that run at once, those that are Sleepable apart: of these
// there are no more than slots.
const maxWorkers = 8

// mailbox serves the threads of a process that wait in the gate. Its workers wait for the
// bell; each serves one thread after another. There is one worker more than run handlers,
// up to maxWorkers.
type mailbox struct {
	*mailMem
	p    *Proc
	addr uint64 // in the process
	gate Range  // the gate's code

	// retired are the changes that took out sites whose detours are not free yet: the
	// target's, like its own fields.
	retired map[*target.Site]uint64

	turn  atomic.Uint32 // slots are looked through from here on
	tasks sync.Map      // *amd64.Regs of handlers that run: id of the thread
	wg    sync.WaitGroup

	mu     sync.Mutex // guards what follows
	over   *sync.Cond // a run of a handler has ended
	calls  map[uint64]*call
	byCall map[*arch.Call]*call
	free   []int       // descriptors
	ended  []endedCall // in order of time
	used   int
	count  int // workers
	idle   int // of them, those that run no handler
	closed bool
}

// call is a handler at a descriptor.
type call struct {
	arch.Call
	h    *target.Handler
	desc int
	runs int // in progress
}

// endedCall is a descriptor that a thread may still be on its way to post, from a detour
// that was removed before or by this change.
type endedCall struct {
	desc   int
	change uint64
}

func newMailbox(p *Proc, mem *mailMem, addr uint64) *mailbox {
	m := &mailbox{mailMem: mem, p: p, addr: addr, calls: map[uint64]*call{}, byCall: map[*arch.Call]*call{}, retired: map[*target.Site]uint64{}}
	m.over = sync.NewCond(&m.mu)
	return m
}

// init fills in the first page.
func (m *mailbox) init(pid int) {
	atomic.StoreUint32(m.word32(amd64.MailPIDOff), uint32(pid))
	atomic.StoreUint64(m.word64(amd64.MailVerOff), amd64.MailVersion)
	atomic.StoreUint64(m.word64(amd64.MailMagicOff), amd64.MailMagic)
}

// add makes a handler callable. No thread is in a detour that was removed before the change
// oldest.
func (m *mailbox) add(h *target.Handler, oldest uint64) (*arch.Call, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errno.Errorf(unix.ESHUTDOWN, "process %d: its mailbox is closed", m.p.pid)
	}
	for len(m.ended) > 0 && m.ended[0].change < oldest {
		m.free, m.ended = append(m.free, m.ended[0].desc), m.ended[1:]
	}
	var desc int
	switch n := len(m.free); {
	case n > 0:
		desc, m.free = m.free[n-1], m.free[:n-1]
	case m.used < amd64.MailDescs:
		desc = m.used
		m.used++
	default:
		return nil, errno.Errorf(unix.ENOSPC, "handlers %d: a process has room for %d", m.used+1, amd64.MailDescs)
	}
	at := descAt(desc)
	atomic.StoreUint64(m.word64(at+amd64.MailMissedOff), 0)
	atomic.StoreUint64(m.word64(at+amd64.MailStopOff), 0)
	atomic.StoreUint32(m.word32(at+amd64.MailDeadOff), 0)
	c := &call{Call: arch.Call{Desc: m.addr + uint64(at)}, h: h, desc: desc}
	h.Point.Mem, h.Point.Callers = &processMemory{m.p}, c.callers
	m.calls[c.Desc], m.byCall[&c.Call] = c, c
	if m.count == 0 {
		m.hire()
	}
	return &c.Call, nil
}

// end forgets a call, and waits until its handler runs no more. No site uses it since a
// change.
func (m *mailbox) end(a *arch.Call, change uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.byCall[a]
	if c == nil {
		return
	}
	m.off(c)
	delete(m.calls, c.Desc)
	delete(m.byCall, a)
	for c.runs > 0 {
		m.over.Wait()
	}
	m.ended = append(m.ended, endedCall{c.desc, change})
}

// off switches a call off: threads that hit it do not wait.
func (m *mailbox) off(c *call) {
	atomic.StoreUint32(m.word32(descAt(c.desc)+amd64.MailDeadOff), 1)
}

// missed reads a call's counts.
func (m *mailbox) missed(a *arch.Call) target.Missed {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.byCall[a]
	if c == nil {
		return target.Missed{}
	}
	at := descAt(c.desc)
	return target.Missed{
		System:  atomic.LoadUint64(m.word64(at + amd64.MailMissedOff)),
		Stopped: atomic.LoadUint64(m.word64(at + amd64.MailStopOff)),
	}
}

// shut lets nobody wait any more, lets go who waits, and ends the workers once they have
// done what they are at.
func (m *mailbox) shut() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	atomic.StoreUint32(m.word32(amd64.MailOffOff), amd64.MailClosed)
	bell := m.word32(amd64.MailBellOff)
	atomic.AddUint32(bell, 1)
	m.wake(bell, math.MaxInt32)
	m.wg.Wait()
	m.refuseAll()
}

// refuseAll lets threads go that nobody serves.
func (m *mailbox) refuseAll() {
	for slot := range amd64.MailSlots {
		if m.move(slot, amd64.SlotPosted, amd64.SlotRefused) || m.move(slot, amd64.SlotTaken, amd64.SlotRefused) {
			m.wake(m.state(slot), 1)
		}
	}
}

// inUse says whether a slot is not free.
func (m *mailbox) inUse() bool {
	for slot := range amd64.MailSlots {
		if atomic.LoadUint32(m.state(slot)) != amd64.SlotFree {
			return true
		}
	}
	return false
}

// freeAll frees the slots that we do not own. Precondition: no thread is in the gate.
func (m *mailbox) freeAll() {
	for slot := range amd64.MailSlots {
		for _, state := range []uint32{amd64.SlotClaimed, amd64.SlotPosted, amd64.SlotAnswered, amd64.SlotRefused} {
			m.move(slot, state, amd64.SlotFree)
		}
	}
}

// close gives our mapping back. Precondition: shut. The counts are gone.
func (m *mailbox) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.byCall)
	clear(m.calls)
	return m.mailMem.close()
}

// hire starts a worker. Precondition: mu is held.
func (m *mailbox) hire() {
	m.count++
	m.idle++
	m.wg.Add(1)
	go m.work()
}

// work is a worker.
func (m *mailbox) work() {
	defer m.leave()
	bell, idle := m.word32(amd64.MailBellOff), m.word32(amd64.MailIdleOff)
	for {
		atomic.AddUint32(idle, 1)
		rung := atomic.LoadUint32(bell)
		atomic.CompareAndSwapUint32(m.word32(amd64.MailOffOff), amd64.MailMuted, amd64.MailOn) // we live
		slot, ok := m.take()
		if !ok && !m.isClosed() {
			m.sleep(bell, rung)
		}
		atomic.AddUint32(idle, ^uint32(0))
		if ok {
			m.serve(slot)
		} else if m.isClosed() {
			return
		}
	}
}

// leave is the end of a worker. One whose handler has ended its goroutine has a successor.
func (m *mailbox) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count--
	m.idle--
	if !m.closed {
		m.hire()
	}
	m.wg.Done()
}

func (m *mailbox) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// take takes a slot with a post. All slots have their turn.
func (m *mailbox) take() (slot int, ok bool) {
	first := int(m.turn.Load())
	for i := range amd64.MailSlots {
		slot = (first + i) % amd64.MailSlots
		if atomic.LoadUint32(m.state(slot)) == amd64.SlotPosted && m.move(slot, amd64.SlotPosted, amd64.SlotTaken) {
			m.turn.Store(uint32(slot + 1))
			return slot, true
		}
	}
	return 0, false
}

// serve runs the handler that the post in a slot asks for.
func (m *mailbox) serve(slot int) {
	r := &handling{m: m, slot: slot, post: amd64.ReadPost(append([]byte(nil), m.slot(slot)...))}
	if r.c = m.begin(r.post.Desc); r.c == nil {
		if m.move(slot, amd64.SlotTaken, amd64.SlotRefused) {
			m.wake(m.state(slot), 1)
		} else {
			m.move(slot, amd64.SlotAbandoned, amd64.SlotFree)
		}
		return
	}
	if r.c.h.Sleepable {
		m.wg.Go(r.do)
		return
	}
	m.busy(1)
	defer m.busy(-1)
	r.do()
}

// busy notes that a worker begins or ends to run a handler.
func (m *mailbox) busy(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.idle -= n
	if m.idle == 0 && m.count < maxWorkers && !m.closed {
		m.hire()
	}
}

// begin finds a call and notes a run of it; nil: it has ended, or there never was one.
func (m *mailbox) begin(desc uint64) *call {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.calls[desc]
	if c != nil {
		c.runs++
	}
	return c
}

// handling is one run of a handler.
type handling struct {
	m    *mailbox
	c    *call
	slot int
	post amd64.Post
}

// do runs the handler and answers. The handler may end its goroutine.
func (r *handling) do() {
	now := r.post.Regs
	now.IP = r.c.h.Point.Addr
	now.Bind(&r.c.h.Point)
	r.m.tasks.Store(&now, r.post.TID)
	action, whole := arch.ActionDrop, false
	defer func() {
		if !whole {
			trap, why := trapOf(recover())
			action = arch.ActionDrop // of a return probe's entry, as if the hit were missed
			if !r.fault(&now, trap, why) {
				now = r.post.Regs
			}
		}
		r.m.tasks.Delete(&now)
		r.answer(&now, action)
		r.done()
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a pointer of the process, used as one of ours
	action = r.c.h.Run(&now, r.post.Instance)
	r.check(&now, action)
	whole = true
}

// check panics if an action can not be done.
func (r *handling) check(now *amd64.Regs, action arch.Action) {
	if action > arch.ActionDrop {
		panic(fmt.Sprintf("action %d", action))
	}
	if action != arch.ActionLeave {
		return
	}
	block, size := amd64.LeaveBlock(now.SP, r.c.h.Point.Go)
	if err := r.m.p.ReadMem(block, make([]byte, size)); err != nil {
		panic(fmt.Sprintf("the new stack pointer is no stack: %v", err))
	}
	if err := r.m.p.ReadMem(now.IP, make([]byte, 1)); err != nil {
		panic(fmt.Sprintf("the new instruction pointer is no code: %v", err))
	}
}

// Trap numbers of the CPU (SDM vol. 3A, table 7-1).
const (
	trapDivide = 0
	trapPage   = 14
)

// trapOf tells what a panic is: a fault that the CPU has met, or one of Go's.
func trapOf(v any) (trap int, why string) {
	e, ok := v.(runtime.Error)
	switch {
	case v == nil:
		return target.TrapPanic, "the handler ended its goroutine"
	case !ok:
		return target.TrapPanic, fmt.Sprint(v)
	case strings.Contains(e.Error(), "divide by zero"):
		return trapDivide, e.Error()
	case strings.Contains(e.Error(), "invalid memory address"):
		return trapPage, e.Error()
	}
	return target.TrapPanic, e.Error()
}

// fault tells the handler's owner of a fault; a call whose owner does not deal with it is
// switched off.
func (r *handling) fault(now *amd64.Regs, trap int, why string) (dealt bool) {
	defer func() {
		if !dealt {
			_ = recover() // of the owner's Fault: it is switched off in any case
			r.m.off(r.c)
		}
	}()
	return r.c.h.Fault != nil && r.c.h.Fault(now, trap, why)
}

// answer gives the thread its registers back, if it still waits.
func (r *handling) answer(now *amd64.Regs, action arch.Action) {
	block, _ := amd64.LeaveBlock(now.SP, r.c.h.Point.Go)
	r.post.PutAnswer(r.m.slot(r.slot), now, action, block)
	if r.m.move(r.slot, amd64.SlotTaken, amd64.SlotAnswered) {
		r.m.wake(r.m.state(r.slot), 1)
		return
	}
	r.m.move(r.slot, amd64.SlotAbandoned, amd64.SlotFree)
}

func (r *handling) done() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.c.runs--
	r.m.over.Broadcast()
}

// processMemory is the memory of a process as a handler reads and writes it.
type processMemory struct{ p *Proc }

// Read reads memory, whatever the pages permit.
func (m *processMemory) Read(addr uint64, buf []byte) error { return m.p.ReadMem(addr, buf) }

// Write writes memory, through pages that are read-only too. Other threads may see the bytes
// in any order.
func (m *processMemory) Write(addr uint64, buf []byte) error {
	n, err := m.p.access("write", unix.Pwrite, addr, buf)
	if err == nil && n < len(buf) {
		err = fmt.Errorf("process %d: write of %d bytes at %#x: %w at %#x", m.p.pid, len(buf), addr, ErrFault, addr+uint64(n))
	}
	return err
}

var _ amd64.Memory = (*processMemory)(nil)

// callers is the chain of return addresses by the frame pointers.
func (c *call) callers(r *amd64.Regs, pcs []uint64) int {
	return walkFrames(c.h.Point.Mem, r.SP, r.BP, c.h.Point.Ret, pcs)
}

package mailbox

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/target"
)

// hire starts a worker. Precondition: mu is held.
func (m *Box) hire() {
	m.count++
	m.idle++
	m.wg.Add(1)
	go m.work()
}

// work is a worker.
func (m *Box) work() {
	defer m.leave()
	bell, idle, me := m.Word32(arch.MailBellOff), m.Word32(arch.MailIdleOff), GoID()
	for !m.lost.Load() {
		atomic.AddUint32(idle, 1)
		rung := atomic.LoadUint32(bell)
		atomic.CompareAndSwapUint32(m.Word32(arch.MailOffOff), arch.MailMuted, arch.MailOn) // we live
		slot, ok := m.take()
		if !ok && !m.closed.Load() {
			m.side.Wait(bell, rung)
		}
		if m.lost.Load() {
			return
		}
		atomic.AddUint32(idle, ^uint32(0))
		if ok {
			m.serve(slot, me)
		} else if m.closed.Load() {
			return
		}
	}
}

// leave is the end of a worker. One whose handler has ended its goroutine has a successor.
func (m *Box) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count--
	m.idle--
	if !m.closed.Load() {
		m.hire()
	}
	m.wg.Done()
}

// take takes a slot with a post. All slots have their turn.
func (m *Box) take() (slot int, ok bool) {
	first := int(m.turn.Load())
	for i := range m.Slots {
		slot = (first + i) % m.Slots
		if atomic.LoadUint32(m.State(slot)) == arch.MailSlotPosted && m.Move(slot, arch.MailSlotPosted, arch.MailSlotTaken) {
			m.turn.Store(uint32(slot + 1))
			return slot, true
		}
	}
	return 0, false
}

// serve runs the handler that the post in a slot asks for. me is the goroutine that calls.
func (m *Box) serve(slot int, me uint64) {
	r := &handling{m: m, slot: slot, post: m.side.Post(append([]byte(nil), m.Slot(slot)...))}
	if r.c = m.begin(r.post.Desc); r.c == nil {
		if m.Move(slot, arch.MailSlotTaken, arch.MailSlotRefused) {
			m.side.Wake(m.State(slot), 1)
		} else {
			m.Move(slot, arch.MailSlotAbandoned, arch.MailSlotFree)
		}
		return
	}
	if r.c.h.Sleepable {
		m.wg.Go(func() { r.do(GoID()) })
		return
	}
	m.busy(1)
	defer m.busy(-1)
	r.do(me)
}

// busy notes that a worker begins or ends to run a handler.
func (m *Box) busy(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.idle -= n
	if m.idle == 0 && m.count < m.most && !m.closed.Load() {
		m.hire()
	}
}

// begin finds a call and notes a run of it; nil: it has ended, or there never was one.
func (m *Box) begin(desc uint64) *call {
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
	m    *Box
	c    *call
	slot int
	post native.Post
}

// do runs the handler on the goroutine me and answers. The handler may end its goroutine.
func (r *handling) do(me uint64) {
	now := r.post.Regs
	if off := r.c.h.Off; off != nil && off.Load() {
		r.answer(&now, arch.ActionDrop)
		r.done()
		return
	}
	now.IP = r.c.h.Point.Addr
	now.Bind(&r.c.h.Point)
	r.m.tasks.Store(&now, r.post.TID)
	action, whole := arch.ActionDrop, false
	running.Store(me, r.m.side)
	defer func() {
		running.Delete(me)
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
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a pointer of the target, used as one of this process
	action = r.c.h.Run(&now, r.post.Instance)
	r.check(&now, action)
	whole = true
}

// check panics if an action can not be done.
func (r *handling) check(now *native.Regs, action arch.Action) {
	if action > arch.ActionDrop {
		panic(fmt.Sprintf("action %d", action))
	}
	if action != arch.ActionLeave {
		return
	}
	if err := r.land(now); err != nil {
		panic(err.Error())
	}
	if err := r.m.side.CanLeave(now, &r.c.h.Point); err != nil {
		panic(err.Error())
	}
}

// land has the thread go on in the detour that it came from, if its place is there.
func (r *handling) land(now *native.Regs) error {
	mem := r.c.h.Point.Mem
	var word [8]byte
	if err := mem.Read(native.LandingWord(r.post.Resume), word[:]); err != nil {
		return err
	}
	at := binary.LittleEndian.Uint64(word[:])
	if at == 0 {
		return nil
	}
	var head [native.LandingHead]byte
	if err := mem.Read(at, head[:]); err != nil {
		return err
	}
	n, ok := native.LandingSize(head[:])
	if !ok {
		return fmt.Errorf("the detour's table of landings at 0x%x has been overwritten", at)
	}
	table := make([]byte, n)
	if err := mem.Read(at, table); err != nil {
		return err
	}
	to, inside := native.Land(table, now.IP)
	if inside {
		return fmt.Errorf("the new instruction pointer 0x%x is inside an instruction, where the probe's jump stands", now.IP)
	}
	now.IP = to
	return nil
}

// Trap numbers of the CPU (SDM vol. 3A, table 7-1) that Handler.Fault is told.
const (
	TrapDivide = 0
	TrapPage   = 14
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
		return TrapDivide, e.Error()
	case strings.Contains(e.Error(), "invalid memory address"):
		return TrapPage, e.Error()
	}
	return target.TrapPanic, e.Error()
}

// fault tells the handler's owner of a fault; a call whose owner does not deal with it is
// switched off.
func (r *handling) fault(now *native.Regs, trap int, why string) (dealt bool) {
	defer func() {
		if !dealt {
			_ = recover() // of the owner's Fault: it is switched off in any case
			r.m.off(r.c)
		}
	}()
	return r.c.h.Fault != nil && r.c.h.Fault(now, trap, target.Why(why))
}

// answer gives the thread its registers back, if it still waits.
func (r *handling) answer(now *native.Regs, action arch.Action) {
	if r.m.lost.Load() {
		return
	}
	block, _ := r.m.side.Block(now.SP, &r.c.h.Point)
	r.post.PutAnswer(r.m.Slot(r.slot), now, action, block)
	if r.m.Move(r.slot, arch.MailSlotTaken, arch.MailSlotAnswered) {
		r.m.side.Wake(r.m.State(r.slot), 1)
		return
	}
	r.m.Move(r.slot, arch.MailSlotAbandoned, arch.MailSlotFree)
}

func (r *handling) done() {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	r.c.runs--
	r.m.over.Broadcast()
}
